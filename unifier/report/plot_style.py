"""The style of all figures (colors, fonts, labels), and the writer of SVG and CSV files."""

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final
from xml.sax.saxutils import escape

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from unifier.files import printable, write_csv, write_text
from unifier.report.schema import add_problem
from unifier_tokenizers import InputError

DrawnT = TypeVar("DrawnT")

INK, MUTED = "#2b3138", "#5f6771"

COLORS = ("#0072b2", "#d55e00", "#009e73", "#b3589a", "#b07c00", "#3d95c9")
"""The Okabe-Ito palette, which is safe for color-blind readers, with darker shades of its light colors."""

DARK_COLORS = {INK: "#e3e6ea", MUTED: "#a9b2bc", "#0072b2": "#4aa8e8", "#d55e00": "#ff8a3d", "#009e73": "#2bc79a"}
"""A mapping from each color to its replacement in dark mode."""

HEAT_MAP_COLORS = LinearSegmentedColormap.from_list("shades", ["#e8eff6", "#7fb2d9", "#0b5a94"])

MAX_FIGURES = 24
"""Maximum number of settings with an own figure in a section of the page. A figure takes about 0.1 seconds."""

TITLE_LETTERS, TITLE_LINE = 10.5, 0.185
"""Number of letters of a title per inch, and height of a line of the title in inches."""

FIGURE_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # SVG text can be searched and read aloud.
    "svg.hashsalt": "unifier",  # With a constant salt, equal figures produce equal files.
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": MUTED,
    "grid.alpha": 0.18,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "savefig.transparent": True,
    "text.parse_math": False,  # The names of tasks and settings may contain a dollar sign.
}

MAX_STEM = 60
"""Maximum length of a figure's file name in characters. File systems limit a name to 255 bytes."""

LABEL_SIZE = 9
"""Font size of a figure's labels, in points."""

NOTE_SIZE, NOTE_LINE = 9, 12.5
"""Font size and line height of a figure's note, in points."""


@contextmanager
def plot_style(style: Mapping[Any, Any] = FIGURE_STYLE) -> Generator[None]:
    """Apply a style to figures that are drawn and saved within the context.

    Warnings about missing glyphs are silenced, because the browser's fonts render the text.
    """
    with mpl.rc_context(dict(style)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@final
@dataclass(frozen=True)
class SavedFigure:
    """A saved figure."""

    section: str
    """The page section of the figure."""
    path: Path
    """The path of the SVG file."""
    alt: str
    """Alternative text for readers who cannot see the figure."""
    table: Sequence[Mapping[str, Any]]
    """The numbers in the figure."""
    note: str = ""
    """Explanation of the figure, which is the caption on the page and the text below the drawing in the SVG file."""
    svg: str = ""
    """The SVG code of the drawing without the note."""


@final
@dataclass(frozen=True)
class FigureWriter:
    """Writer of figures, with one color per task."""

    folder: Path
    """The folder of a run or a comparison, in which figures are written to the subfolder `figures`."""
    colors: Mapping[str, str]
    """The color of each task."""
    caveat: str = ""
    """A sentence that is added to the note of each figure."""
    used_names: set[str] = field(default_factory=set[str])
    """The file names, without suffix, of the figures saved so far."""

    def save(
        self, figure: Figure, name: str, section: str, alt: str, table: Sequence[Mapping[str, Any]], note: str = ""
    ) -> SavedFigure:
        """Write the figure to figures/NAME.svg, and its numbers to figures/NAME.csv.

        Args:
            figure: The drawing.
            name: The file name without suffix. Unsafe characters become dashes, and a number is appended to a name that
                is already used.
            section: The page section of the figure.
            alt: Alternative text for readers who cannot see the figure.
            table: The numbers in the figure.
            note: Explanation of the figure, written below the drawing.
        """
        folder = figures_folder(self.folder)
        note = ". ".join(filter(None, (note, self.caveat)))
        svg = render_svg(figure, alt)
        path = folder / f"{self._unused(name)}.svg"
        write_text(path, _add_note(svg, textwrap.wrap(printable(note), round(figure.get_figwidth() * 16))))
        rows = [{escape_formula(key): escape_formula(cell) for key, cell in row.items()} for row in table]
        write_csv(path.with_suffix(".csv"), rows)
        return SavedFigure(section, path, alt, table, note, svg)

    def limit(self, items: Iterable[DrawnT], section: str) -> list[DrawnT]:
        """Return the first `MAX_FIGURES` items of a page section. Report other items as a problem of the page."""
        drawn = list(items)
        if left_out := drawn[MAX_FIGURES:]:
            reason = f"{section} of {len(left_out)} more settings, because a section has at most {MAX_FIGURES} figures"
            add_problem(self.folder / "figures", reason)
        return drawn[:MAX_FIGURES]

    def _unused(self, name: str) -> str:
        """Return a file name that is not used yet, and mark the name as used."""
        stem = re.sub(r"[^\w.]+", "-", name)[:MAX_STEM]
        names = (stem if k == 1 else f"{stem}-{k}" for k in itertools.count(1))
        unused = next(name for name in names if name not in self.used_names)
        self.used_names.add(unused)
        return unused


def render_svg(figure: Figure, alt: str) -> str:
    """Return a figure as SVG, with colors for a light and a dark page.

    Args:
        figure: The drawing.
        alt: Alternative text for readers who cannot see the figure.
    """
    for axes in figure.axes:
        _wrap_title(figure, axes)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Title": alt})
    return printable(buffer.getvalue().replace("</style>", f"{_dark_rules()}</style>", 1), keep="\n\t")


def figures_folder(folder: Path) -> Path:
    """Create and return the subfolder `figures`. Raises InputError if it is a link, which may lead anywhere."""
    figures = folder / "figures"
    if figures.is_symlink():
        raise InputError(f"{figures} is a link, and a report writes only into its own folder: remove the link")
    figures.mkdir(parents=True, exist_ok=True)
    return figures


def escape_formula(cell: Any) -> Any:
    """Prefix a text that a spreadsheet would run as a formula by an apostrophe. Return numbers unchanged."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    return cell if re.fullmatch(r"[+-][\d.]+(e[+-]?\d+)?", cell) else f"'{cell}"


def task_colors(tasks: Sequence[str]) -> dict[str, str]:
    """Return a color for each task."""
    return {task: COLORS[k % len(COLORS)] for k, task in enumerate(tasks)}


def create_panel(width: float = 4.2, height: float = 2.6) -> tuple[Figure, Axes]:
    """Create a figure with one panel, from width and height in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _wrap_title(figure: Figure, axes: Axes) -> None:
    """Wrap the title of a panel, because a long title leaves no room, and make the figure higher by the new lines."""
    title = axes.get_title("left").split("\n")
    lines = [line for part in title for line in textwrap.wrap(part, round(TITLE_LETTERS * figure.get_figwidth()))]
    if len(lines) > len(title):
        figure.set_figheight(figure.get_figheight() + TITLE_LINE * (len(lines) - len(title)))
        axes.set_title("\n".join(lines), loc="left")


def fade(color: str, share: float) -> str:
    """Mix a color with gray: `share` / 2 is the proportion of gray, from 0 to 1/2."""
    channels = zip(to_rgb(color), to_rgb("#a8b0b9"), strict=True)
    red, green, blue = (channel + 0.5 * share * (gray - channel) for channel, gray in channels)
    return to_hex((red, green, blue))


def point_marker(points: Sized) -> str:
    """Return the marker "o" for a single point, else "". A single point would be invisible without a marker."""
    return "o" if len(points) == 1 else ""


def plot_intervals(axes: Axes, x: ArrayLike, y: ArrayLike, color: str, **halves: Any) -> None:
    """Plot dots with interval bars. Pass the bar lengths as `xerr` or `yerr` of `Axes.errorbar`."""
    axes.errorbar(x, y, fmt="o", color=color, markersize=5, ecolor=(color, 0.45), elinewidth=3, **halves)


def plot_heat_map(
    axes: Axes,
    cells: NDArray[np.floating],
    limits: tuple[float, float],
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    size: float = 10,
) -> None:
    """Plot a matrix as colored cells with a text in each cell.

    Args:
        axes: An empty panel.
        cells: Values (rows, columns). A cell with NaN has no color.
        limits: The values of the lightest and the darkest color.
        texts: The text of each cell.
        rows: The name of each row.
        columns: The name of each column.
        size: The font size of the texts in points.
    """
    low, high = limits
    axes.imshow(cells, cmap=HEAT_MAP_COLORS, vmin=low, vmax=high, aspect="auto")
    for row, (values, line) in enumerate(zip(cells, texts, strict=True)):
        for column, (cell, text) in enumerate(zip(values, line, strict=True)):
            dark = high > low and (cell - low) / (high - low) > 0.6
            color = MUTED if np.isnan(cell) else "#ffffff" if dark else "#14171a"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


class LineEnd(NamedTuple):
    """Label and end point of a plotted line."""

    height: float
    """The y value of the end point."""
    text: str
    color: str
    x: float | None = None
    """The x value of the end point, or None at the right edge of the panel.

    If `x` is not None, a thin line connects the end point with its label.
    """


MAX_AXIS_LETTERS = 30
"""Maximum number of letters in a line of the label of a vertical axis."""


def axis_label(text: str) -> str:
    """Return the label of a vertical axis, in several lines if it is longer than the axis."""
    return textwrap.fill(text, MAX_AXIS_LETTERS)


MAX_LABEL_LETTERS = 22
"""Maximum number of letters in a line of a label."""

LABEL_LINE = 0.17
"""Line height of a label, in inches."""

FRAME_HEIGHT = 0.8
"""Height of the title and the horizontal axis of a figure, in inches."""


def label_ends(axes: Axes, ends: Sequence[LineEnd]) -> None:
    """Write the label of each line as close as possible to the end of the line, without overlapping labels.

    The vertical axis must be linear. The height of the figure is increased if the labels need more space.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    ranked = sorted(ends, key=lambda end: end.height)
    labels = [textwrap.wrap(end.text, MAX_LABEL_LETTERS) for end in ranked]
    halves = np.array([LABEL_LINE * len(lines) / 2 for lines in labels])
    figure.set_figheight(max(figure.get_figheight(), FRAME_HEIGHT + 2 * halves.sum()))
    low, high = axes.get_ylim()
    inch = (high - low) / (figure.get_figheight() - FRAME_HEIGHT)
    # Subtract the total height of all lower labels from each label height. The labels do not overlap if the resulting
    # differences are ascending. Isotonic regression finds the nearest ascending differences.
    space = inch * np.cumsum([0.0, *(halves[1:] + halves[:-1])])
    bottom = low + inch * (halves[0] - LABEL_LINE / 4)
    top = high - inch * (halves[-1] - LABEL_LINE / 4) - space[-1]
    heights = isotonic_regression([end.height for end in ranked] - space).x.clip(bottom, top) + space
    for end, height, lines in zip(ranked, heights, labels, strict=True):
        axes.annotate(
            "\n".join(lines),
            (1.02, height) if end.x is None else (end.x, end.height),
            (1.02, height),
            xycoords=("axes fraction" if end.x is None else "data", "data"),
            textcoords=("axes fraction", "data"),
            arrowprops=None if end.x is None else {"arrowstyle": "-", "color": MUTED, "alpha": 0.4, "linewidth": 0.6},
            va="center",
            color=end.color,
            fontsize=LABEL_SIZE,
            annotation_clip=False,
        )


def _dark_rules() -> str:
    """Return the CSS that replaces colors in dark mode."""
    rules = (
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK_COLORS.items()
        for kind in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{''.join(rules)}}}"


def _add_note(svg: str, lines: Sequence[str]) -> str:
    """Increase the height of an SVG, and write the lines of a note below the drawing."""
    size = re.search(r'height="([\d.]+)pt" viewBox="0 0 ([\d.]+) [\d.]+"', svg)
    if size is None or not lines:
        return svg
    height = float(size[1])
    higher = height + NOTE_LINE * (len(lines) + 0.5)
    family = ", ".join(f"'{name}'" for name in FIGURE_STYLE["font.sans-serif"])
    style = f"font: {NOTE_SIZE}px {family}, sans-serif; fill: {MUTED}"
    texts = (
        f'<text x="4" y="{height + NOTE_LINE * (k + 1):g}" style="{style}">{escape(line)}</text>\n'
        for k, line in enumerate(lines)
    )
    svg = svg.replace(size[0], f'height="{higher:g}pt" viewBox="0 0 {size[2]} {higher:g}"', 1)
    before, end, after = svg.rpartition("</svg>")
    return before + "".join(texts) + end + after
