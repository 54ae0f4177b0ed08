"""Lines, axes and colours of the figures, as they stand on the drawn figure."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unifier.report.figures.curves import draw_curves
from unifier.report.figures.drawing import STYLE, Drawn, Sheet
from unifier.report.figures.layers import draw_gradients
from unifier.report.figures.scaling import draw_sweeps
from unifier.report.numbers.conditions import conditions
from unifier.report.numbers.gather import read_study
from unifier.study.files import read_table, write_table

Rows = Callable[..., dict[str, Any]]
Comparison = Callable[..., Path]

SHEET = Sheet(Path(), "", {"digits": "#d55e00", "en-fr": "#0072b2", "music": "#009e73"})


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Axes]]:
    """The axes of each figure that is drawn, by its name; nothing is written."""
    found: dict[str, Axes] = {}

    def keep(_: Sheet, figure: Figure, name: str, section: str, says: str, *_more: object) -> Drawn:
        found[name] = figure.axes[0]
        return Drawn(section, Path(name), says)

    monkeypatch.setattr(Sheet, "save", keep)
    with mpl.rc_context(STYLE):
        yield found


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


@pytest.mark.parametrize("times", [1.1, 2.2, 9.0, 11.0, 30.0, 100.0, 1e3, 1e4])
def test_names_at_the_ticks_of_an_axis_of_flops_stand_apart(kept: Mapping[str, Axes], row: Rows, times: float) -> None:
    rows = [row("digits", 90.0, varied={"dim": dim}, budget={"flops": 1.25e9 * times**dim}) for dim in (0, 0.5, 1)]
    draw_sweeps(conditions(rows), SHEET)
    axes = kept["sweep-digits-flops"]
    assert len([name for name in names(axes) if name]) >= 2
    shown = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert all(left.x1 < right.x0 for left, right in pairwise(sorted(shown, key=lambda box: box.x0)))
