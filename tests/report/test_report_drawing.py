"""Lines, axes and colours of the figures, as they stand on the drawn figure."""

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

from unifier.files import read_table, write_table
from unifier.report.conditions import conditions
from unifier.report.plot_curves import draw_curves, looks
from unifier.report.plot_layers import draw_gradients, draw_representation
from unifier.report.plot_scaling import draw_sweeps
from unifier.report.plot_scores import draw_lengths
from unifier.report.plot_style import COLOURS, STYLE, Drawn, Sheet, faded
from unifier.report.read_results import read_study

Rows = Callable[..., dict[str, Any]]
Comparison = Callable[..., Path]

SHEET = Sheet(Path(), {"digits": "#d55e00", "en-fr": "#0072b2", "music": "#009e73"})


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Axes]]:
    """The axes of each figure that is drawn, by its name; nothing is written."""
    found: dict[str, Axes] = {}

    def keep(_: Sheet, figure: Figure, name: str, section: str, alt: str, *_more: Any) -> Drawn:
        found[name] = figure.axes[0]
        return Drawn(section, Path(name), alt, [])

    monkeypatch.setattr(Sheet, "save", keep)
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
    rows = read_study(comparison(tmp_path, rows)).rows
    for one in rows:
        table = [line for line in read_table(one["folder"] / "metrics.csv") if line["val/digits/accuracy"]]
        write_table(one["folder"] / "metrics.csv", table[-1:])
    cosine = {"layer": "norm", "tokens": 5, "cosine": 0.5}
    pairs = [{**cosine, "arm_a": "digits", "arm_b": other} for other in ("digits", "music")]
    write_table(rows[0]["folder"] / "interference.csv", pairs)
    draw_curves(conditions(rows), SHEET)
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
        draw_curves(conditions(read_study(comparison(tmp_path / f"{seconds}", rows)).rows), SHEET)
        said = names(kept["curves-digits-seconds"])
        assert 2 <= len(said) <= 4
        assert all(0 < float(one.replace(",", "")) <= seconds for one in said)
        assert names(kept["curves-digits-tokens"])[-1].endswith(" k")


def light(colour: str) -> float:
    """Relative luminance of sRGB, as WCAG 2.2 defines it."""
    parts = np.array(to_rgb(colour))
    return float(np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("colour", COLOURS)
def test_the_faintest_of_an_arm_s_lines_can_still_be_told_from_the_paper(colour: str) -> None:
    assert 1.05 / (light(faded(colour, 1)) + 0.05) > 2.6
    assert faded(colour, 0) == colour


def test_a_condition_has_one_look_in_all_figures_and_its_arm_s_colour(
    kept: Mapping[str, Axes], tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    moved = [row("en-fr", 50.0, mode="transfer", start="genres", tuned="none", shuffled=one) for one in (False, True)]
    moved.append(row("en-fr", 55.0, mode="transfer", tuned="none"))
    joint = row("en-fr", 60.0, mode="joint", experiment="joint")
    rows = read_study(comparison(tmp_path, [row("en-fr", 61.0), joint, *moved])).rows
    for one in rows:
        groups = [{"words": words, "to": words, "bleu": 50.0} for words in (3, 9)]
        (one["folder"] / "lengths.json").write_text(json.dumps({"en-fr": groups}))
    found = conditions(rows)
    draw_curves(found, SHEET)
    draw_lengths(found, SHEET)
    said = {
        name: {text.get_text().replace("\n", " "): text.get_color() for text in axes.texts}
        for name, axes in kept.items()
    }
    lengths = said.pop("lengths-en-fr")
    assert len(lengths) == 5
    assert all(own.items() <= lengths.items() for own in said.values())
    assert lengths["solo"] == lengths["joint"] == SHEET.colours["en-fr"]
    assert len(set(lengths.values())) == 4
    dashes = [line.get_linestyle() for line in kept["lengths-en-fr"].lines]
    assert dashes.count("--") == 1
    red, _, blue = np.array([to_rgb(str(colour)) for colour in lengths.values()]).T
    assert (blue > red).all(), "shades of the arm's own blue"


def test_conditions_of_a_page_s_only_arm_are_told_by_colour(row: Rows) -> None:
    found = conditions([row("en-fr", 50.0, varied={"rung": rung}) for rung in range(13)])
    styles = looks(found, Sheet(Path(), {"en-fr": COLOURS[0]}))
    assert len(set(styles.values())) == 13
    assert len({colour for colour, _ in styles.values()}) == len(COLOURS)


def test_of_many_pairs_of_trunks_those_with_shuffled_weights_are_left_out(kept: Mapping[str, Axes]) -> None:
    solo = {"experiment": "own", "mode": "solo", "start": None, "shuffled": False, "tuned": "all", "varied": {}}
    measured = {"arm": "digits", "layer": "blocks.0", "cka": 0.5, "cka_chance": 0.1, "cka_calibrated": 0.4, "cka_p": 0}
    moved = [
        solo | {"mode": "transfer", "start": start, "shuffled": shuffled}
        for start in ("genres", "texts", "from_shuffled")
        for shuffled in (True, False)
    ]
    draw_representation([measured | {"a": solo, "b": one} for one in moved], SHEET)
    drawn = {text.get_text().replace("\n", " ") for text in kept["representation-digits-cka"].texts} - {"chance"}
    assert {f"{start}, all trained" for start in ("genres", "texts", "from shuffled")} < drawn
    assert len(drawn) == 4


def test_a_pair_of_arms_is_named_in_both_colours(
    kept: Mapping[str, Axes], tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    rows = read_study(comparison(tmp_path, [row("digits", 90.0, mode="joint", experiment="joint")])).rows
    draw_gradients(rows, SHEET)
    texts = [(text.get_text(), text.get_color()) for text in sorted(kept["gradients-blocks.0"].texts, key=height)][::-1]
    pairs = [(first, second) for first, second in pairwise(texts) if first[0].endswith(" and")]
    assert len(pairs) == 3
    for (first, its), (second, own) in pairs:
        assert (its, own) == (SHEET.colours[first.removesuffix(" and")], SHEET.colours[second])


@pytest.mark.parametrize("times", [1.1, 2.2, 9.0, 11.0, 30.0, 100.0, 1e3, 1e4])
def test_names_at_the_ticks_of_an_axis_of_flops_stand_apart(kept: Mapping[str, Axes], row: Rows, times: float) -> None:
    rows = [row("digits", 90.0, varied={"dim": dim}, budget={"flops": 1.25e9 * times**dim}) for dim in (0, 0.5, 1)]
    draw_sweeps(conditions(rows), SHEET)
    axes = kept["sweep-digits-flops"]
    assert len([name for name in names(axes) if name]) >= 2
    shown = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert all(left.x1 < right.x0 for left, right in pairwise(sorted(shown, key=lambda box: box.x0)))
