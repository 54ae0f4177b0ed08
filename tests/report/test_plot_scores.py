"""Figures of test scores: every condition is drawn, the matching of costs is noted, and text has room."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.report.conftest import (
    FROZEN,
    JOINT,
    Row,
    make_comparison,
    make_gains,
    make_row,
    make_seeds,
    svg_text,
    with_metric,
)
from unifier.files import write_json
from unifier.report.conditions import Condition, group_conditions
from unifier.report.estimates import Estimate
from unifier.report.plot_curves import draw_curves
from unifier.report.plot_scores import (
    MAX_CLASSES,
    MAX_CONDITIONS,
    MAX_NUMBERED_CLASSES,
    bar_lengths,
    draw_confusions,
    draw_grids,
    draw_joint,
    draw_lengths,
    draw_scores,
    score_limits,
)
from unifier.report.plot_style import FigureWriter, SavedFigure
from unifier.report.read_results import read_results

pytestmark = pytest.mark.usefixtures("figure_style")


def with_artifacts(folder: Path, rows: list[Row], name: str, contents: list[Any]) -> list[Condition]:
    """Return the conditions of rows whose runs have written a JSON file each."""
    results = read_results(make_comparison(folder / "runs", rows))
    for result, content in zip(results.rows, contents, strict=True):
        write_json(result["folder"] / name, {result["task"]: content})
    return group_conditions(results.rows)


@pytest.mark.slow
def test_every_condition_is_drawn(writer: FigureWriter) -> None:
    rows = [make_row("en-fr", 50.0 + k, varied={"rung": f"rung{k}"}) for k in range(MAX_CONDITIONS + 2)]
    (some,) = draw_scores(group_conditions(rows), writer)
    drawn = f"{MAX_CONDITIONS} of {MAX_CONDITIONS + 2} conditions"
    assert f"{drawn} drawn, the best on validation beside rung=rung0" in svg_text(some.path)
    assert drawn in some.alt
    (every,) = draw_scores(group_conditions(rows[:13]), writer)
    text = svg_text(every.path)
    assert all(f"rung=rung{k} " in text for k in range(13))
    assert "drawn" not in text
    assert "every condition" in every.alt
    assert [line["raw"] for line in every.table] == [50.0 + k for k in range(13)]


@pytest.mark.slow
def test_joint_minus_solo_has_its_own_matching(writer: FigureWriter) -> None:
    rows = [*make_seeds("digits", 90.0, 91.0), *make_seeds("digits", 91.0, 93.0, **JOINT)]
    rows += make_seeds("digits", 50.0, 51.0, start="music", **FROZEN)
    conditions = group_conditions(rows)
    (joint,), (scores,) = draw_joint(conditions, writer), draw_scores(conditions, writer)
    assert ["not counted" in figure.note for figure in (joint, scores)] == [False, True]
    assert all("within 2 %" in figure.note for figure in (joint, scores))


def test_drawn_equal_gains_have_no_interval(writer: FigureWriter) -> None:
    (figure,) = draw_joint(group_conditions(make_gains("digits", 2.0, 2.0)), writer)
    assert (figure.table[0]["joint minus solo low"], figure.table[0]["joint minus solo high"]) == ("", "")
    assert "No interval over seeds" in svg_text(figure.path)


@pytest.mark.slow
def test_joint_figures_are_apart_by_setting_and_scale(writer: FigureWriter) -> None:
    rows = [make_row(varied={"patch": p}, **way) for p in (2, 4) for way in ({}, JOINT)]
    names = [figure.path.stem for figure in draw_joint(group_conditions(rows), writer)]
    assert names == ["joint-minus-solo-patch-2", "joint-minus-solo-patch-4"]
    music = [with_metric(row, "macro_auc", 1.0) for row in make_gains("music", 0.2, 0.3)]
    (figure,) = draw_joint(group_conditions([*make_gains("digits", 2.0, 2.5), *music]), writer)
    assert [line["task"] for line in figure.table] == ["digits", "music"], "no mean without a common scale"


@pytest.mark.slow
def test_matching_is_described_per_task(writer: FigureWriter) -> None:
    rows = [
        make_row(task, 50.0, varied={"dim": dim}, budget={"tokens": tokens})
        for task, budgets in (("digits", (1000, 1000)), ("music", (9000, 8000)))
        for dim, tokens in zip((8, 16), budgets, strict=True)
    ]
    (scores,) = draw_scores(group_conditions([*rows, make_row("en-fr", 50.0)]), writer)
    assert "digits: equal within 2 %: tokens, FLOPs" in scores.note
    assert re.search(r"music: equal.*different: tokens 8.0–9.0 k", scores.note)
    assert "tokens 1.0" not in scores.note
    assert "en-fr:" not in scores.note, "a single condition is compared with nothing"


@pytest.mark.parametrize("scores", [(99.0, 99.9), (0.1, 3.0)])
def test_bars_stay_within_possible_scores(
    drawn_axes: dict[str, Axes], writer: FigureWriter, scores: tuple[float, float]
) -> None:
    conditions = group_conditions([*make_seeds("en-fr", *scores), *make_seeds("en-fr", *scores, **JOINT)])
    draw_scores(conditions, writer)
    (bars, _) = drawn_axes["scores"].findobj(LineCollection)
    assert isinstance(bars, LineCollection)
    low, high = score_limits(conditions[0], normalized=True)
    assert (low, high) == (0, pytest.approx(100 / 0.96))
    ends = bars.get_segments()[0][:, 0]
    assert ends.min() >= low
    assert ends.max() <= high + 1e-9
    assert np.isclose(ends, (low, high)).any(), "an interval of two seeds is wider than the range"


def test_unbounded_scores_have_whole_bars() -> None:
    rows = make_seeds("digits", -3.0, 40.0)
    (condition,) = group_conditions(rows)
    assert score_limits(condition) == (-np.inf, 100)
    rows[0]["result"]["data"]["digits"]["max_score"] = None
    (condition,) = group_conditions(rows)
    assert score_limits(condition) == (-np.inf, np.inf)
    assert bar_lengths(Estimate(90.0, 20.0, 2), (-np.inf, np.inf)) == (20, 20)
    assert bar_lengths(Estimate(90.0, 20.0, 2), (0, 100)) == (20, 10)
    assert bar_lengths(Estimate(90.0, None, 1), (0, 100)) == (0, 0)


def test_settings_by_task_has_a_row_per_setting(writer: FigureWriter) -> None:
    rows = [make_row(task, 80.0, varied={"patch": patch}) for task in ("digits", "music") for patch in (2, 4)]
    (figure,) = draw_grids(group_conditions(rows), writer)
    assert [line[""] for line in figure.table] == ["patch=2", "patch=4"]


@pytest.mark.slow
def test_text_has_room(writer: FigureWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Figure] = {}
    save = FigureWriter.save

    def collect(self: FigureWriter, figure: Figure, name: str, *more: Any) -> SavedFigure:
        drawn[name] = figure
        return save(self, figure, name, *more)  # A panel without room is a warning, and a warning is an error.

    monkeypatch.setattr(FigureWriter, "save", collect)
    settings = [{"dim": dim, "batch_tokens": 1024, "decoder_depth": depth} for dim in (8, 16) for depth in (2, 4)]
    rows: list[Row] = []
    for task, start in (("digits", "genres"), ("music", "pictures")):
        for varied in settings:
            rows += [make_row(task, 50.0, varied=varied), make_row(task, 52.0, varied=varied, **JOINT)]
            rows += [make_row(task, 40.0, varied=varied, start=start, shuffled=s, **FROZEN) for s in (False, True)]
    confusions = {"labels": ["cat", "a dog"], "counts": [[8, 2], [1, 9]]}
    conditions = with_artifacts(tmp_path, rows, "confusions.json", [confusions] * len(rows))
    for draw in (draw_scores, draw_joint, draw_grids, draw_confusions, draw_curves):
        draw(conditions, writer)
    assert len(drawn) > 15
    for name, figure in drawn.items():
        (axes,) = figure.axes
        assert min(axes.get_window_extent().size) > 0.4 * figure.dpi, name
        low, high = sorted(axes.get_ylim())
        texts = [text for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high]
        texts += [*figure.findobj(lambda one: isinstance(one, Text) and one.get_fontweight() == "bold"), *axes.texts]
        for text in texts:
            if isinstance(text, Text) and text.get_text():
                box = text.get_window_extent()
                overflow = max(-box.x0, -box.y0, box.x1 - figure.bbox.x1, box.y1 - figure.bbox.y1)
                assert overflow <= 1, (name, text.get_text())


@pytest.mark.slow
def test_confusions_sum_runs_of_best_condition(writer: FigureWriter, tmp_path: Path) -> None:
    rows = [make_row("digits", 60.0, seed, varied={"dim": dim}) for dim in (8, 16) for seed in (0, 1)]
    for one in rows:
        one["result"]["metrics"]["val/digits/accuracy"] = 50.0 + one["varied"]["dim"]
    counts = [[[9, 9], [9, 9]], [[9, 9], [9, 9]], [[3, 1], [0, 2]], [[1, 1], [2, 0]]]
    contents = [{"labels": ["cat", "dog"], "counts": of_run} for of_run in counts]
    (figure,) = draw_confusions(with_artifacts(tmp_path, rows, "confusions.json", contents), writer)
    assert [(line["condition"], line["true"], line["predicted"], line["count"]) for line in figure.table] == [
        ("dim=16", "cat", "cat", 4), ("dim=16", "cat", "dog", 2),
        ("dim=16", "dog", "cat", 2), ("dim=16", "dog", "dog", 2),
    ]  # fmt: skip
    assert all(f">{share}<" in figure.svg for share in (67, 50))
    assert "Always" not in figure.note
    content = {"labels": ["ship", "frog"], "counts": [[80, 0], [5, 0]]}
    majority = with_artifacts(tmp_path / "majority", [make_row()], "confusions.json", [content])
    assert "ship would score 94.1 %" in draw_confusions(majority, writer)[0].note


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [MAX_NUMBERED_CLASSES, MAX_NUMBERED_CLASSES + 1, MAX_CLASSES + 1])
def test_confusions_of_many_classes(writer: FigureWriter, tmp_path: Path, num_classes: int) -> None:
    counts = 98 * np.eye(num_classes, dtype=int) + np.roll(np.eye(num_classes, dtype=int), 1, axis=1)
    content = {"labels": [f"class {k}" for k in range(num_classes)], "counts": counts.tolist()}
    figures = draw_confusions(
        with_artifacts(tmp_path, [make_row("digits", 60.0)], "confusions.json", [content]), writer
    )
    assert [">99<" in figure.svg for figure in figures] == (
        [num_classes <= MAX_NUMBERED_CLASSES] if num_classes <= MAX_CLASSES else []
    )


@pytest.mark.filterwarnings("ignore:Glyph")
def test_class_names_are_drawn_literally(writer: FigureWriter, tmp_path: Path) -> None:
    names = ["$\\x$", "a$b$c", "猫"]
    content = {"labels": names, "counts": np.eye(3, dtype=int).tolist()}
    (figure,) = draw_confusions(
        with_artifacts(tmp_path, [make_row("digits", 60.0)], "confusions.json", [content]), writer
    )
    assert all(f">{name}<" in figure.svg for name in names)


@pytest.mark.slow
def test_lengths_average_runs_of_each_condition(writer: FigureWriter, tmp_path: Path) -> None:
    rows = [make_row("en-fr", 60.0, seed, varied={"rung": rung}) for rung in ("gru", "transformer") for seed in (0, 1)]
    short, long = (
        {"words": 4.5, "from": 3, "to": 5, "examples": 20},
        {"words": 9.0, "from": 6, "to": 12, "examples": 30},
    )
    contents = [[short | {"bleu": 80.0 + k}, long | {"bleu": 20.0 + k}] for k in range(4)]
    (figure,) = draw_lengths(with_artifacts(tmp_path, rows, "lengths.json", contents), writer)
    assert [(line["condition"], line["words"], line["bleu"]) for line in figure.table] == [
        ("rung=gru", 4.5, 80.5), ("rung=gru", 9.0, 20.5),
        ("rung=transformer", 4.5, 82.5), ("rung=transformer", 9.0, 22.5),
    ]  # fmt: skip
