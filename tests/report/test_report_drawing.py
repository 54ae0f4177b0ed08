"""Lines, axes and colors of the figures, as they stand on the drawn figure."""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from unifier.files import read_csv, write_csv
from unifier.report.conditions import group_conditions
from unifier.report.plot_curves import draw_curves, line_styles
from unifier.report.plot_layers import draw_gradients, draw_representation
from unifier.report.plot_scaling import draw_sweeps
from unifier.report.plot_scores import draw_lengths
from unifier.report.plot_style import COLORS, STYLE, FigureWriter, SavedFigure, faded
from unifier.report.read_results import read_results

Rows = Callable[..., dict[str, Any]]
Comparison = Callable[..., Path]

SHEET = FigureWriter(Path(), {"digits": "#d55e00", "en-fr": "#0072b2", "music": "#009e73"})


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Axes]]:
    """The axes of each figure that is drawn, by its name; nothing is written."""
    found: dict[str, Axes] = {}

    def keep(_: FigureWriter, figure: Figure, name: str, section: str, alt: str, *_more: Any) -> SavedFigure:
        found[name] = figure.axes[0]
        return SavedFigure(section, Path(name), alt, [])

    monkeypatch.setattr(FigureWriter, "save", keep)
    with mpl.rc_context(STYLE):
        yield found


def height(text: Text) -> float:
    """Where a line's name stands."""
    assert isinstance(text, Annotation)
    return text.xyann[1]


def names(axes: Axes) -> list[str]:
    """What stands at the ticks of the horizontal axis, between its ends."""
    axes.get_figure(root=True).draw_without_rendering()  # pyright: ignore[reportOptionalMemberAccess]
    low, high = axes.get_xlim()
    return [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]


def test_what_was_measured_once_is_a_dot(
    kept: Mapping[str, Axes], tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    rows = [row("digits", 90.0, mode="joint", experiment="joint"), row("digits", 91.0)]
    rows = read_results(comparison(tmp_path, rows)).rows
    for one in rows:
        table = [line for line in read_csv(one["folder"] / "metrics.csv") if line["val/digits/accuracy"]]
        write_csv(one["folder"] / "metrics.csv", table[-1:])
    cosine = {"layer": "norm", "tokens": 5, "cosine": 0.5}
    pairs = [{**cosine, "task_a": "digits", "task_b": other} for other in ("digits", "music")]
    write_csv(rows[0]["folder"] / "interference.csv", pairs)
    draw_curves(group_conditions(rows), SHEET)
    draw_gradients(rows, SHEET)
    for name in ("curves-digits-tokens", "gradients-norm"):
        lines = kept[name].lines[:2]
        assert [len(np.atleast_1d(line.get_xdata())) for line in lines] == [1, 1]
        assert [line.get_marker() for line in lines] == ["o", "o"]


def test_seconds_are_plain_numbers(kept: Mapping[str, Axes], tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    for seconds in (1.6, 5000.0):
        rows = [
            row("digits", 90.0 + k, mode=mode, budget={"seconds": seconds}) for k, mode in enumerate(("solo", "joint"))
        ]
        draw_curves(group_conditions(read_results(comparison(tmp_path / f"{seconds}", rows)).rows), SHEET)
        said = names(kept["curves-digits-seconds"])
        assert 2 <= len(said) <= 4
        assert all(0 < float(one.replace(",", "")) <= seconds for one in said)
        assert names(kept["curves-digits-tokens"])[-1].endswith(" k")


def light(color: str) -> float:
    """Relative luminance of sRGB, as WCAG 2.2 defines it."""
    parts = np.array(to_rgb(color))
    return float(np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("color", COLORS)
def test_the_faintest_of_an_task_s_lines_can_still_be_told_from_the_paper(color: str) -> None:
    assert 1.05 / (light(faded(color, 1)) + 0.05) > 2.6
    assert faded(color, 0) == color


def test_a_condition_has_one_look_in_all_figures_and_its_task_s_color(
    kept: Mapping[str, Axes], tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    moved = [
        row("en-fr", 50.0, mode="transfer", start="genres", trainable="none", shuffled=one) for one in (False, True)
    ]
    moved.append(row("en-fr", 55.0, mode="transfer", trainable="none"))
    joint = row("en-fr", 60.0, mode="joint", experiment="joint")
    rows = read_results(comparison(tmp_path, [row("en-fr", 61.0), joint, *moved])).rows
    for one in rows:
        groups = [{"words": words, "to": words, "bleu": 50.0} for words in (3, 9)]
        (one["folder"] / "lengths.json").write_text(json.dumps({"en-fr": groups}))
    found = group_conditions(rows)
    draw_curves(found, SHEET)
    draw_lengths(found, SHEET)
    said = {
        name: {text.get_text().replace("\n", " "): text.get_color() for text in axes.texts}
        for name, axes in kept.items()
    }
    lengths = said.pop("lengths-en-fr")
    assert len(lengths) == 5
    assert all(own.items() <= lengths.items() for own in said.values())
    assert lengths["solo"] == lengths["joint"] == SHEET.colors["en-fr"]
    assert len(set(lengths.values())) == 4
    dashes = [line.get_linestyle() for line in kept["lengths-en-fr"].lines]
    assert dashes.count("--") == 1
    red, _, blue = np.array([to_rgb(str(color)) for color in lengths.values()]).T
    assert (blue > red).all(), "shades of the task's own blue"


def test_conditions_of_a_page_s_only_task_are_told_by_color(row: Rows) -> None:
    found = group_conditions([row("en-fr", 50.0, varied={"rung": rung}) for rung in range(13)])
    styles = line_styles(found, FigureWriter(Path(), {"en-fr": COLORS[0]}))
    assert len(set(styles.values())) == 13
    assert len({color for color, _ in styles.values()}) == len(COLORS)


def test_of_many_pairs_of_trunks_those_with_shuffled_weights_are_left_out(kept: Mapping[str, Axes]) -> None:
    solo = {"experiment": "own", "mode": "solo", "start": None, "shuffled": False, "trainable": "all", "varied": {}}
    measured = {"task": "digits", "layer": "blocks.0", "cka": 0.5, "cka_chance": 0.1, "cka_calibrated": 0.4, "cka_p": 0}
    moved = [
        solo | {"mode": "transfer", "start": start, "shuffled": shuffled}
        for start in ("genres", "texts", "from_shuffled")
        for shuffled in (True, False)
    ]
    draw_representation([measured | {"a": solo, "b": one} for one in moved], SHEET)
    drawn = {text.get_text().replace("\n", " ") for text in kept["representation-digits-cka"].texts} - {"chance"}
    assert {f"{start}, all trained" for start in ("genres", "texts", "from shuffled")} < drawn
    assert len(drawn) == 4


def test_a_pair_of_tasks_is_named_in_both_colors(
    kept: Mapping[str, Axes], tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    rows = read_results(comparison(tmp_path, [row("digits", 90.0, mode="joint", experiment="joint")])).rows
    draw_gradients(rows, SHEET)
    texts = [(text.get_text(), text.get_color()) for text in sorted(kept["gradients-blocks.0"].texts, key=height)][::-1]
    pairs = [(first, second) for first, second in pairwise(texts) if first[0].endswith(" and")]
    assert len(pairs) == 3
    for (first, its), (second, own) in pairs:
        assert (its, own) == (SHEET.colors[first.removesuffix(" and")], SHEET.colors[second])


@pytest.mark.parametrize("times", [1.1, 2.2, 9.0, 11.0, 30.0, 100.0, 1e3, 1e4])
def test_names_at_the_ticks_of_an_axis_of_flops_stand_apart(kept: Mapping[str, Axes], row: Rows, times: float) -> None:
    rows = [row("digits", 90.0, varied={"dim": dim}, budget={"flops": 1.25e9 * times**dim}) for dim in (0, 0.5, 1)]
    draw_sweeps(group_conditions(rows), SHEET)
    axes = kept["sweep-digits-flops"]
    assert len([name for name in names(axes) if name]) >= 2
    shown = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert all(left.x1 < right.x0 for left, right in pairwise(sorted(shown, key=lambda box: box.x0)))
