"""Figures of results: what is drawn can be read, and what is said beneath is so."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from unifier.files import write_csv
from unifier.report.conditions import group_conditions
from unifier.report.plot_curves import chosen_of, draw_curves
from unifier.report.plot_scores import draw_confusions, draw_grids, draw_joint, draw_scores
from unifier.report.plot_style import STYLE, FigureWriter, LineEnd, SavedFigure, label_ends, panel
from unifier.report.read_results import read_results
from unifier.report.tables import describe_matching

Rows = Callable[..., dict[str, Any]]
Comparison = Callable[..., Path]


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    """Figures are drawn as a page has them."""
    with mpl.rc_context(STYLE):
        yield


def boxes(axes: Axes) -> list[Bbox]:
    """Where the names beside an axis's lines lie, from the top, in pixels."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    names = [text for text in axes.texts if isinstance(text, Annotation)]
    return sorted((name.get_window_extent() for name in names), key=lambda box: -box.y0)


@pytest.mark.parametrize("height", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("names", [["joint"] * 6, ["grammar shuffled, frozen, dim=32, batch_tokens=256"] * 5])
def test_names_at_one_height_neither_overlap_nor_leave_the_axes(names: list[str], height: float) -> None:
    _, axes = panel()
    title = axes.set_title("a title")
    axes.set(xlabel="tokens read", ylim=(0, 1))
    label_ends(axes, [LineEnd(height, name, "red") for name in names])
    found = boxes(axes)
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(found))
    frame = axes.get_window_extent()
    assert found[0].y1 < title.get_window_extent().y0
    assert found[-1].y0 > frame.y0 - found[-1].height


def test_a_name_that_stands_alone_is_as_high_as_its_line() -> None:
    _, axes = panel()
    axes.set_ylim(0, 1)
    ends = [LineEnd(0.9, "high", "red"), LineEnd(0.1, "low", "blue"), LineEnd(0.5, "between", "green")]
    label_ends(axes, ends)
    placed = {text.get_text(): text.xyann[1] for text in axes.texts if isinstance(text, Annotation)}
    assert placed == {end.text: pytest.approx(end.height) for end in ends}


def test_a_long_name_is_written_whole() -> None:
    _, axes = panel()
    name = ", ".join(f"setting_{k}={k}" for k in range(9))
    label_ends(axes, [LineEnd(0.5, name, "red")])
    assert " ".join(axes.texts[0].get_text().split()) == name
    assert np.diff(axes.get_window_extent().intervaly) >= np.diff(boxes(axes)[0].intervaly)


def said(path: Path) -> str:
    """All letters of a figure."""
    return " ".join(" ".join(ElementTree.parse(path).getroot().itertext()).split())


def test_every_rung_and_every_control_is_drawn(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    rungs = [f"rung{k}" for k in range(13)]
    folder = comparison(tmp_path, [row("en-fr", 50.0 + k, varied={"rung": rung}) for k, rung in enumerate(rungs)])
    (scores,) = draw_scores(group_conditions(read_results(folder).rows), FigureWriter(tmp_path, {"en-fr": "#0072b2"}))
    letters = said(scores.path)
    assert all(f"rung={rung} " in letters for rung in rungs)
    assert "drawn" not in letters
    assert "every condition" in scores.alt


def test_what_is_drawn_is_counted_and_named(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    rungs = [f"rung{k}" for k in range(20)]
    folder = comparison(tmp_path, [row("en-fr", 50.0 + k, varied={"rung": rung}) for k, rung in enumerate(rungs)])
    found = group_conditions(read_results(folder).rows)
    sheet = FigureWriter(tmp_path, {"en-fr": "#0072b2"})
    (scores,) = draw_scores(found, sheet)
    assert "18 of 20 conditions drawn, the best on validation beside rung=rung0" in said(scores.path)
    assert "scores of 18 of 20 conditions" in scores.alt
    assert "solo" not in said(scores.path)
    for one in found[-2:]:  # no cost at which both of its runs were scored
        apart = {**one.rows[0], "folder": tmp_path / one.label}
        (tmp_path / one.label).mkdir()
        write_csv(tmp_path / one.label / "metrics.csv", [{"budget/tokens": 1e6, "val/en-fr/bleu": 50.0}])
        cast("list[Any]", one.rows).append(apart)
    letters = said(draw_curves(found, sheet)[0].path)
    assert "2 of 20 conditions drawn, the best on validation beside rung=rung0" in letters


def test_what_stands_beside_the_best_is_named_where_it_is(row: Rows) -> None:
    rows = [row("digits", 90.0), row("digits", 91.0, mode="joint", experiment="joint")]
    rows += [row("digits", 60.0, mode="transfer", trainable=tuned) for tuned in ("norms", "none")]
    found = group_conditions(rows)
    best = "the best on validation"
    assert chosen_of(found, found) == ""
    assert chosen_of(found[:2], found) == "2 of 4 conditions drawn, solo and joint"
    assert chosen_of(found[:3], found) == f"3 of 4 conditions drawn, {best} beside solo and joint"
    assert chosen_of(found[2:], found) == f"2 of 4 conditions drawn, {best}"


def test_joint_minus_solo_says_what_is_matched_between_these_alone(tmp_path: Path, row: Rows) -> None:
    rows = [row("digits", 90.0 + k, seed=k) for k in range(2)]
    rows += [row("digits", 91.0 + 2 * k, seed=k, mode="joint", experiment="joint") for k in range(2)]
    rows += [row("digits", 50.0 + k, seed=k, mode="transfer", start="music", trainable="none") for k in range(2)]
    found, sheet = group_conditions(rows), FigureWriter(tmp_path, {"digits": "#0072b2"})
    (joint,), (scores,) = draw_joint(found, sheet), draw_scores(found, sheet)
    assert [("not counted" in said(one.path), "within 2 %" in said(one.path)) for one in (joint, scores)] == [
        (False, True),
        (True, True),
    ]


def test_what_is_matched_is_said_of_each_task_by_itself(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    rows = [
        row(task, 50.0, varied={"dim": dim}, budget={"tokens": tokens})
        for task, spent in (("digits", (1000, 1000)), ("music", (9000, 8000)))
        for dim, tokens in zip((8, 16), spent, strict=True)
    ]
    rows.append(row("en-fr", 50.0))
    folder = comparison(tmp_path, rows)
    found = group_conditions(read_results(folder).rows)
    digits, music = "Equal within 2 %: tokens, FLOPs", "different: tokens 8.0–9.0 k"
    of_tasks = describe_matching(found)
    assert of_tasks.keys() == {"digits", "music"}, "en-fr is held against nothing"
    assert digits in of_tasks["digits"]
    assert music in of_tasks["music"]
    (scores,) = draw_scores(found, FigureWriter(tmp_path, dict.fromkeys(("digits", "music", "en-fr"), "#0072b2")))
    assert f"digits: e{digits[1:]}" in said(scores.path)
    assert music in said(scores.path)
    assert "tokens 1.0" not in said(scores.path)


def test_figures_of_many_settings_and_of_two_classes_have_room(
    tmp_path: Path, row: Rows, comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Figure] = {}
    whole = FigureWriter.save

    def keep(self: FigureWriter, figure: Figure, name: str, *more: Any) -> SavedFigure:
        drawn[name] = figure
        return whole(self, figure, name, *more)  # which warns where axes have no room, and a warning is an error

    monkeypatch.setattr(FigureWriter, "save", keep)
    varied = [{"dim": dim, "batch_tokens": 1024, "decoder_depth": depth} for dim in (8, 16) for depth in (2, 4)]
    rows: list[dict[str, Any]] = []
    for task, start in (("digits", "genres"), ("music", "pictures")):
        for own in varied:
            rows += [row(task, 50.0, varied=own), row(task, 52.0, varied=own, mode="joint", experiment="joint")]
            moved = {"mode": "transfer", "start": start, "trainable": "none"}
            rows += [row(task, 40.0, varied=own, shuffled=one, **moved) for one in (False, True)]
    folder = comparison(tmp_path, rows)
    for one in json.loads((folder / "comparison.json").read_text())["rows"]:
        told = {"labels": ["cat", "a dog"], "counts": [[8, 2], [1, 9]]}
        (Path(one["folder"]) / "confusions.json").write_text(json.dumps({one["task"]: told}))
    study = read_results(folder)
    found, sheet = group_conditions(study.rows), FigureWriter(tmp_path, {"digits": "#0072b2", "music": "#d55e00"})
    for draw in (draw_scores, draw_joint, draw_grids, draw_confusions, draw_curves):
        draw(found, sheet)
    assert len(drawn) > 15
    for name, figure in drawn.items():
        (axes,) = figure.axes
        assert min(axes.get_window_extent().size) > 0.4 * figure.dpi, name
        low, high = sorted(axes.get_ylim())
        letters = [text for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high]
        letters += [*figure.findobj(lambda one: isinstance(one, Text) and one.get_fontweight() == "bold"), *axes.texts]
        for text in letters:
            if isinstance(text, Text) and text.get_text():
                box = text.get_window_extent()
                assert min(box.x0, box.y0) >= -1, (name, text.get_text())
                assert box.x1 <= figure.bbox.x1 + 1, (name, text.get_text())
                assert box.y1 <= figure.bbox.y1 + 1, (name, text.get_text())
