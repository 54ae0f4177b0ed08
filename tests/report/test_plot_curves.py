"""Learning curves: their points, axes, styles, and the conditions that are drawn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from tests.report.conftest import FROZEN, JOINT, make_comparison, make_row, read_conditions
from unifier.files import read_csv, write_csv, write_json
from unifier.report.conditions import group_conditions
from unifier.report.plot_curves import describe_selection, draw_curves, line_styles, select_conditions
from unifier.report.plot_layers import draw_gradients
from unifier.report.plot_scores import draw_lengths
from unifier.report.plot_style import COLORS, FigureWriter
from unifier.report.read_results import read_results


def test_single_measurement_is_a_dot(drawn_axes: Mapping[str, Axes], writer: FigureWriter, tmp_path: Path) -> None:
    rows = [make_row(**JOINT), make_row("digits", 91.0)]
    rows = read_results(make_comparison(tmp_path, rows)).rows
    for one in rows:
        table = [line for line in read_csv(one["folder"] / "metrics.csv") if line["val/digits/accuracy"]]
        write_csv(one["folder"] / "metrics.csv", table[-1:])
    cosine = {"layer": "norm", "tokens": 5, "cosine": 0.5}
    pairs = [{**cosine, "task_a": "digits", "task_b": other} for other in ("digits", "music")]
    write_csv(rows[0]["folder"] / "interference.csv", pairs)
    draw_curves(group_conditions(rows), writer)
    draw_gradients(rows, writer)
    for name in ("curves-digits-tokens", "gradients-norm"):
        lines = drawn_axes[name].lines[:2]
        assert [(np.size(line.get_xdata()), line.get_marker()) for line in lines] == [(1, "o")] * 2


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.6, 5000.0])
def test_seconds_have_no_unit_prefix(
    drawn_axes: Mapping[str, Axes], writer: FigureWriter, tmp_path: Path, seconds: float
) -> None:
    def ticks(axes: Axes) -> list[str]:
        axes.get_figure(root=True).draw_without_rendering()  # pyright: ignore[reportOptionalMemberAccess]
        low, high = axes.get_xlim()
        return [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]

    rows = [make_row(mode=mode, budget={"seconds": seconds}) for mode in ("solo", "joint")]
    draw_curves(read_conditions(tmp_path, rows), writer)
    labels = ticks(drawn_axes["curves-digits-seconds"])
    assert 2 <= len(labels) <= 4
    assert all(0 < float(label.replace(",", "")) <= seconds for label in labels)
    assert ticks(drawn_axes["curves-digits-tokens"])[-1].endswith(" k")


@pytest.mark.slow
def test_joint_curve_is_over_its_task_s_tokens(writer: FigureWriter, tmp_path: Path, figure_style: None) -> None:
    rows = [make_row(), make_row("digits", 91.0, **JOINT)]
    budget = rows[1]["result"]["budget"]
    rows[1]["result"]["budget"] = {**budget, "tokens": 3 * budget["tokens"]}
    figures = draw_curves(read_conditions(tmp_path, rows), writer)
    table = next(figure.table for figure in figures if figure.path.stem == "curves-digits-tokens")
    ends = {line["condition"]: line["tokens"] for line in table}
    assert ends == {"solo": 64_000, "joint": pytest.approx(64_000)}
    assert all(line["minimum"] <= line["mean"] <= line["maximum"] for line in table)


def test_condition_has_one_style_in_all_figures(
    drawn_axes: dict[str, Axes], writer: FigureWriter, tmp_path: Path
) -> None:
    rows = [make_row("en-fr", 61.0), make_row("en-fr", 60.0, **JOINT)]
    rows += [make_row("en-fr", 50.0, start="genres", shuffled=s, **FROZEN) for s in (False, True)]
    rows.append(make_row("en-fr", 55.0, **FROZEN))
    rows = read_results(make_comparison(tmp_path, rows)).rows
    for one in rows:
        buckets = [{"words": words, "to": words, "bleu": 50.0} for words in (3, 9)]
        write_json(one["folder"] / "lengths.json", {"en-fr": buckets})
    draw_curves(group_conditions(rows), writer)
    draw_lengths(group_conditions(rows), writer)
    dashes = [line.get_linestyle() for line in drawn_axes["lengths-en-fr"].lines]
    colors = {
        name: {text.get_text().replace("\n", " "): text.get_color() for text in axes.texts}
        for name, axes in drawn_axes.items()
    }
    lengths = colors.pop("lengths-en-fr")
    assert all(of_figure.items() <= lengths.items() for of_figure in colors.values())
    assert lengths["solo"] == lengths["joint"] == writer.colors["en-fr"]
    assert (len(lengths), len(set(lengths.values()))) == (5, 4)
    assert dashes.count("--") == 1
    red, _, blue = np.array([to_rgb(str(color)) for color in lengths.values()]).T
    assert (red > blue).all(), "shades of the task's own color"


def test_conditions_of_a_single_task_differ_in_color(tmp_path: Path) -> None:
    conditions = group_conditions([make_row("en-fr", 50.0, varied={"rung": rung}) for rung in range(13)])
    styles = line_styles(conditions, FigureWriter(tmp_path, {"en-fr": COLORS[0]}))
    assert len(set(styles.values())) == 13
    assert len({color for color, _ in styles.values()}) == len(COLORS)


def test_drawn_conditions_are_best_on_validation() -> None:
    rows = [make_row("digits", score, varied={"dim": dim}) for dim, score in ((16, 90.0), (32, 85.0), (64, 93.0))]
    for row, score in zip(rows, (88.0, 91.0, 90.0), strict=True):
        row["result"]["metrics"]["val/digits/accuracy"] = score
    assert [condition.label for condition in select_conditions(group_conditions(rows), 2)] == ["dim=16", "dim=32"]


def test_selection_names_best_and_references() -> None:
    rows = [make_row(), make_row("digits", 91.0, **JOINT)]
    rows += [make_row("digits", 60.0, mode="transfer", trainable=trainable) for trainable in ("norms", "none")]
    conditions = group_conditions(rows)
    best = "the best on validation"
    for drawn, text in (
        (conditions, ""),
        (conditions[:2], "2 of 4 conditions drawn, solo and joint"),
        (conditions[:3], f"3 of 4 conditions drawn, {best} beside solo and joint"),
        (conditions[2:], f"2 of 4 conditions drawn, {best}"),
    ):
        assert describe_selection(drawn, conditions) == text


@pytest.mark.slow
def test_curve_without_common_cost_is_not_drawn(writer: FigureWriter, tmp_path: Path, figure_style: None) -> None:
    rows = [make_row("en-fr", 50.0 + k, varied={"rung": f"rung{k}"}) for k in range(20)]
    conditions = read_conditions(tmp_path, rows)
    for condition in conditions[-2:]:
        later = {**condition.rows[0], "folder": tmp_path / condition.label}
        later["folder"].mkdir()
        write_csv(later["folder"] / "metrics.csv", [{"budget/tokens": 1e6, "val/en-fr/bleu": 50.0}])
        cast("list[Any]", condition.rows).append(later)
    note = draw_curves(conditions, writer)[0].note
    assert note.endswith("2 of 20 conditions drawn, the best on validation beside rung=rung0")
