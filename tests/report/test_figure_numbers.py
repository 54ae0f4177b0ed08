"""Figures have the numbers of their conditions, and no interval or mean that the report does not claim."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import JOINT, Row, make_comparison, make_gains, make_row, with_metric
from unifier.files import write_csv
from unifier.report.conditions import group_conditions
from unifier.report.plot_curves import select_conditions
from unifier.report.plot_layers import draw_gradients, draw_representation
from unifier.report.plot_scaling import draw_efficiency, draw_sweeps
from unifier.report.plot_scores import draw_joint
from unifier.report.plot_style import FigureWriter
from unifier.report.read_results import read_results

pytestmark = pytest.mark.usefixtures("figure_style")


def trunk_pair(a: Row, b: Row, cka: float) -> dict[str, Any]:
    measured = {"cka": cka, "cka_chance": 0.0, "cka_calibrated": cka, "cka_p": 0.01}
    return {"task": "digits", "seed": 0, "layer": "blocks.0", "a": a, "b": b, **measured}


def test_drawn_equal_gains_have_no_interval(writer: FigureWriter, svg_text: Callable[[Path], str]) -> None:
    (figure,) = draw_joint(group_conditions(make_gains("digits", 2.0, 2.0)), writer)
    assert (figure.table[0]["joint minus solo low"], figure.table[0]["joint minus solo high"]) == ("", "")
    assert "No interval over seeds" in svg_text(figure.path)


def test_gains_without_common_scale_have_no_mean(writer: FigureWriter) -> None:
    music = [with_metric(row, "macro_auc", 1.0) for row in make_gains("music", 0.2, 0.3)]
    (figure,) = draw_joint(group_conditions([*make_gains("digits", 2.0, 2.5), *music]), writer)
    assert [line["task"] for line in figure.table] == ["digits", "music"]


def test_each_setting_has_its_own_joint_figure(writer: FigureWriter) -> None:
    rows = [make_row(varied={"patch": p}, **way) for p in (2, 4) for way in ({}, JOINT)]
    names = [figure.path.stem for figure in draw_joint(group_conditions(rows), writer)]
    assert names == ["joint-minus-solo-patch-2", "joint-minus-solo-patch-4"]


def test_equal_sweep_scores_have_no_interval(writer: FigureWriter) -> None:
    costs = {patch: {"tokens": 64_000 // patch} for patch in (2, 4)}
    rows = [make_row("digits", 80.0, seed, varied={"patch": p}, budget=costs[p]) for seed in (0, 1) for p in costs]
    for figure in draw_sweeps(group_conditions(rows), writer):
        assert [line["half interval"] for line in figure.table] == ["", ""]


@pytest.mark.parametrize(("metric", "max_score"), [("macro_auc", 1.0), ("negative_mse", 0.0)])
def test_error_is_named_after_its_metric(metric: str, max_score: float, writer: FigureWriter) -> None:
    rows = [make_row("digits", max_score - 0.5 / n, varied={"share": n}) for n in (0.1, 1.0)]
    (figure,) = draw_efficiency(group_conditions([with_metric(row, metric, max_score) for row in rows]), writer)
    assert f"Error: {max_score:g} minus {metric.replace('_', ' ')}" in figure.note


def test_score_rounded_above_the_best_is_drawn(writer: FigureWriter) -> None:
    scores = {0.125: 60.0, 0.25: 80.0, 0.5: 99.0, 1.0: 100.00000000000004}
    rows = [make_row("digits", score, varied={"share": share}) for share, score in scores.items()]
    (figure,) = draw_efficiency(group_conditions([with_metric(row, "f1", 100.0) for row in rows]), writer)
    assert figure.table[-1]["error"] == 0


def test_drawn_conditions_are_best_on_validation() -> None:
    rows = [make_row("digits", score, varied={"dim": dim}) for dim, score in ((16, 90.0), (32, 85.0), (64, 93.0))]
    for row, score in zip(rows, (88.0, 91.0, 90.0), strict=True):
        row["result"]["metrics"]["val/digits/accuracy"] = score
    assert [condition.label for condition in select_conditions(group_conditions(rows), 2)] == ["dim=16", "dim=32"]


def test_three_experiments_are_two_trunk_pairs(writer: FigureWriter) -> None:
    first, second, third = (make_row(experiment=name) for name in ("attending", "averaging", "rotating"))
    (figure,) = draw_representation([trunk_pair(first, second, 0.2), trunk_pair(first, third, 0.9)], writer)
    assert {line["trunks"]: line["raw"] for line in figure.table} == {
        "attending and averaging": 0.2,
        "attending and rotating": 0.9,
    }


def test_trunks_of_two_settings_are_two_pairs(writer: FigureWriter) -> None:
    pairs = [
        trunk_pair(make_row(varied={"dim": dim}), make_row(varied={"dim": dim}, **JOINT), cka)
        for dim, cka in ((32, 0.1), (64, 0.9))
    ]
    (figure,) = draw_representation(pairs, writer)
    assert [line["trunks"] for line in figure.table] == ["dim=32 and joint, dim=32", "dim=64 and joint, dim=64"]


def test_two_settings_have_two_gradient_figures(writer: FigureWriter, tmp_path: Path) -> None:
    rows = [make_row(task, varied={"dim": dim}, **JOINT) for dim in (32, 64) for task in ("digits", "music")]
    results = read_results(make_comparison(tmp_path / "runs", rows))
    for row in results.rows:
        line = {"step": 0, "tokens": 100, "layer": "blocks.0", "task_a": "digits", "task_b": "music"}
        write_csv(row["folder"] / "interference.csv", [{**line, "cosine": row["varied"]["dim"] / 100}])
    figures = draw_gradients(results.rows, writer)
    assert {figure.path.stem: figure.table[0]["cosine"] for figure in figures} == {
        "gradients-blocks.0-joint-dim-32": 0.32,
        "gradients-blocks.0-joint-dim-64": 0.64,
    }
