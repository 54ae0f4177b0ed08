"""Figures of results: what is drawn can be read, and what is said beneath is so."""

from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from unifier.report.figures.drawing import STYLE, End, label_ends, panel


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
    with mpl.rc_context(STYLE):
        _, axes = panel()
        title = axes.set_title("a title")
        axes.set(xlabel="tokens read", ylim=(0, 1))
        label_ends(axes, [End(height, name, "red") for name in names])
        found = boxes(axes)
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(found))
    frame = axes.get_window_extent()
    assert found[0].y1 < title.get_window_extent().y0
    assert found[-1].y0 > frame.y0 - found[-1].height


def test_a_name_that_stands_alone_is_as_high_as_its_line() -> None:
    _, axes = panel()
    axes.set_ylim(0, 1)
    ends = [End(0.9, "high", "red"), End(0.1, "low", "blue"), End(0.5, "between", "green")]
    label_ends(axes, ends)
    placed = {text.get_text(): text.xyann[1] for text in axes.texts if isinstance(text, Annotation)}
    assert placed == {end.text: pytest.approx(end.height) for end in ends}


def test_a_long_name_is_written_whole() -> None:
    _, axes = panel()
    name = ", ".join(f"setting_{k}={k}" for k in range(9))
    label_ends(axes, [End(0.5, name, "red")])
    assert " ".join(axes.texts[0].get_text().split()) == name
    assert np.diff(axes.get_window_extent().intervaly) >= np.diff(boxes(axes)[0].intervaly)
