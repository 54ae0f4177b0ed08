"""The look of figures: labels that do not overlap, colors that can be read, files with their numbers and notes."""

import csv
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from tests.report.conftest import svg_text
from unifier.files import read_csv
from unifier.report.plot_style import (
    COLORS,
    MAX_AXIS_LETTERS,
    MAX_LABEL_LETTERS,
    FigureWriter,
    LineEnd,
    axis_label,
    create_panel,
    fade,
    figures_folder,
    label_ends,
    plot_style,
)
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("figure_style")


def label_boxes(axes: Axes) -> list[Bbox]:
    """Return the boxes of the labels beside an axis's lines from the top, in pixels."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    labels = [text for text in axes.texts if isinstance(text, Annotation)]
    return sorted((label.get_window_extent() for label in labels), key=lambda box: -box.y0)


@pytest.mark.slow
@pytest.mark.parametrize("height", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("names", [["joint"] * 6, ["grammar shuffled, frozen, dim=32, batch_tokens=256"] * 5])
def test_labels_at_one_height_stay_apart(names: list[str], height: float) -> None:
    _, axes = create_panel()
    title = axes.set_title("a title")
    axes.set(xlabel="tokens read", ylim=(0, 1))
    label_ends(axes, [LineEnd(height, name, "red") for name in names])
    boxes = label_boxes(axes)
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))
    assert boxes[0].y1 < title.get_window_extent().y0
    assert boxes[-1].y0 > axes.get_window_extent().y0 - boxes[-1].height


def test_labels_apart_are_as_high_as_their_lines() -> None:
    _, axes = create_panel()
    axes.set_ylim(0, 1)
    ends = [LineEnd(0.9, "high", "red"), LineEnd(0.1, "low", "blue"), LineEnd(0.5, "between", "green")]
    label_ends(axes, ends)
    heights = {text.get_text(): text.xyann[1] for text in axes.texts if isinstance(text, Annotation)}
    assert heights == {end.text: pytest.approx(end.height) for end in ends}


def test_long_labels_are_wrapped_and_complete() -> None:
    _, axes = create_panel()
    name = "data=/a/very/long/path/of/sounds, " + ", ".join(f"setting_{k}={k}" for k in range(9))
    label_ends(axes, [LineEnd(0.5, name, "red"), LineEnd(0.5, "solo", "blue")])
    texts = {text.get_text() for text in axes.texts} - {"solo"}
    assert ["".join(text.split()) for text in texts] == ["".join(name.split())]
    assert max(map(len, texts.pop().splitlines())) <= MAX_LABEL_LETTERS
    assert axes.get_window_extent().height >= label_boxes(axes)[0].height


def luminance(color: str) -> float:
    """Return the relative luminance of sRGB, as WCAG 2.2 defines it."""
    parts = np.array(to_rgb(color))
    return float(np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("color", COLORS)
def test_faded_color_contrasts_with_paper(color: str) -> None:
    assert 1.05 / (luminance(fade(color, 1)) + 0.05) > 2.6
    assert fade(color, 0) == color


def test_note_is_in_the_file_below_the_drawing(writer: FigureWriter) -> None:
    note = "Bar: 95 % interval <&> " + "over seeds " * 20
    figure, _ = create_panel()
    saved = writer.save(figure, "scores", "scores", "a description", [{"score": 0.5}], note)
    assert note.strip() in svg_text(saved.path)
    assert "95 %" not in saved.svg
    height, higher = (float(svg.split('height="')[1].split("pt")[0]) for svg in (saved.svg, saved.path.read_text()))
    assert higher > height + 12
    assert read_csv(saved.path.with_suffix(".csv")) == [{"score": "0.5"}]


@pytest.mark.slow
def test_figures_of_equal_names_get_own_files(writer: FigureWriter) -> None:
    saved = [writer.save(create_panel()[0], name, "", "", [{}]) for name in ("a/b: $1", "a-b- 1", "a b")]
    assert [figure.path.name for figure in saved] == ["a-b-1.svg", "a-b-1-2.svg", "a-b.svg"]
    assert all("prefers-color-scheme: dark" in figure.svg for figure in saved)


def test_svg_has_no_controls_and_csv_no_formulas(writer: FigureWriter) -> None:
    figure, axes = create_panel()
    axes.set_title("a\x1b[31m\x00b\uffff")
    table = [{"=x": cell} for cell in ("=1+1", "+a", "-a", "@a", "\ta", "\ra", "a=1", -1.5, "-1.5")]
    with plot_style():
        saved = writer.save(figure, "x" * 300, "scores", "alt \x07", table, "note \x1b")
    ElementTree.parse(saved.path)
    ElementTree.fromstring(saved.svg)
    with saved.path.with_suffix(".csv").open(newline="") as file:
        cells = [line[0] for line in csv.reader(file)]
    assert cells == ["'=x", "'=1+1", "'+a", "'-a", "'@a", "'\ta", "'\ra", "a=1", "-1.5", "-1.5"]


def test_linked_folder_of_figures_is_refused(writer: FigureWriter, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (writer.folder / "figures").symlink_to(tmp_path / "target")
    with pytest.raises(InputError, match="figures is a link"):
        writer.save(create_panel()[0], "a", "scores", "alt", [])
    with pytest.raises(InputError, match="figures is a link"):
        figures_folder(writer.folder)
    assert not list((tmp_path / "target").iterdir())


def test_long_label_of_an_axis_has_short_lines_and_all_words() -> None:
    label = "validation MCD-SL in dB (lower is better)"
    lines = axis_label(label).splitlines()
    assert max(map(len, lines)) <= MAX_AXIS_LETTERS
    assert " ".join(lines) == label
