"""Lines, axes and colours of the figures, as they stand on the drawn figure."""

from collections.abc import Callable, Iterator, Mapping
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
