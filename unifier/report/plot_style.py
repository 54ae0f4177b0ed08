"""What all figures share: colors, fonts, and the SVG with its numbers as CSV."""

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Generator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from unifier.files import write_csv, write_text

INK, SOFT = "#2b3138", "#6b737d"


COLORS = ("#0072b2", "#d55e00", "#009e73", "#b3589a", "#b07c00", "#3d95c9")
"""Told apart with every kind of color vision, after Okabe and Ito; light ones darkened to be read on white."""


DARK = {INK: "#e3e6ea", SOFT: "#9aa3ad", "#0072b2": "#4aa8e8", "#d55e00": "#ff8a3d", "#009e73": "#2bc79a"}
"""What colors become where the reader's screen is dark."""


SHADES = LinearSegmentedColormap.from_list("shades", ["#e8eff6", "#7fb2d9", "#0b5a94"])
"""Of a heat map, from the least to the most."""


STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "unifier",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": SOFT,
    "grid.alpha": 0.18,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "text.color": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "savefig.transparent": True,
    "text.parse_math": False,  # what has a name of the user's may hold a dollar
}


@contextmanager
def plot_style(style: dict[Any, Any] = STYLE) -> Generator[None]:
    """What figures are drawn and saved in."""
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's own font is used
        yield


@final
@dataclass(frozen=True)
class SavedFigure:
    """A figure on disk."""

    section: str
    """The part of the page that it belongs to."""
    path: Path
    alt: str
    """What it shows, for who cannot see it."""
    table: Sequence[Mapping[str, Any]]
    """The numbers that it shows."""


@final
@dataclass(frozen=True)
class FigureWriter:
    """Where figures go, and the color of each task."""

    folder: Path
    """A run's or a comparison's; figures lie in its folder of that name."""
    colors: Mapping[str, str]
    used_names: set[str] = field(default_factory=set[str])
    """The names of its figures so far."""

    def save(
        self, figure: Figure, name: str, section: str, alt: str, table: Sequence[Mapping[str, Any]], note: str = ""
    ) -> SavedFigure:
        """Write figures/<name>.svg, the note beneath it, and figures/<name>.csv with the numbers that it shows."""
        at = self.folder / "figures"
        at.mkdir(parents=True, exist_ok=True)
        if note:
            lines = textwrap.wrap(note, round(figure.get_figwidth() * 19))
            figure.set_figheight(figure.get_figheight() + 0.13 * len(lines))
            figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7.5, color=SOFT)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Title": alt})
        rules = "".join(
            f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
            for light, dark in DARK.items()
            for kind in ("fill", "stroke")
        )
        dark = f"@media (prefers-color-scheme: dark){{{rules}}}"
        own = re.sub(r"[^\w.]+", "-", name)  # settings stand in names, and hold anything
        names = (own if k == 1 else f"{own}-{k}" for k in itertools.count(1))
        own = next(name for name in names if name not in self.used_names)
        self.used_names.add(own)
        path = at / f"{own}.svg"
        write_text(path, file.getvalue().replace("</style>", f"{dark}</style>", 1))
        write_csv(path.with_suffix(".csv"), table)
        return SavedFigure(section, path, alt, table)


def task_colors(tasks: Sequence[str]) -> dict[str, str]:
    """A color for each task, the same in all figures."""
    return {task: COLORS[k % len(COLORS)] for k, task in enumerate(tasks)}


def panel(width: float = 3.2, height: float = 2.3) -> tuple[Figure, Axes]:
    """One empty panel, in inches: one a figure, so that a page may set them side by side or one below another."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def faded(color: str, share: float) -> str:
    """A color on its way to gray: at 0 itself, at 1 half-way there, that small letters may still be read."""
    ends = zip(to_rgb(color), to_rgb("#a8b0b9"), strict=True)
    red, green, blue = (own + 0.5 * share * (gray - own) for own, gray in ends)
    return to_hex((red, green, blue))


def dot(points: Sized) -> str:
    """The marker of a line through these points: a dot where there is but one, and so no line."""
    return "o" if len(points) == 1 else ""


def dots(axes: Axes, x: ArrayLike, y: ArrayLike, color: str, **halves: Any) -> None:
    """Dots with their intervals, half of each under `xerr` or `yerr`."""
    axes.errorbar(x, y, fmt="o", color=color, markersize=5, ecolor=(color, 0.45), elinewidth=3, **halves)


def heat_map(
    axes: Axes,
    cells: NDArray[np.floating],
    span: tuple[float, float],
    said: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    size: float = 9,
) -> None:
    """Cells (rows, columns) in shades from the span's least to its most, NaN in none, with what is said in each."""
    low, high = span
    axes.imshow(cells, cmap=SHADES, vmin=low, vmax=high, aspect="auto")
    for row, (line, texts) in enumerate(zip(cells, said, strict=True)):
        for column, (cell, text) in enumerate(zip(line, texts, strict=True)):
            dark = high > low and (cell - low) / (high - low) > 0.6
            color = SOFT if np.isnan(cell) else "#ffffff" if dark else "#14171a"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


class LineEnd(NamedTuple):
    """Where a line ends, and what is to be written there."""

    height: float
    text: str
    color: str
    at: float | None = None
    """Where on the horizontal axis it ends, if not at the right; a thin line then leads to what is written."""


WIDE = 22
"""The most letters of a line's name side by side; what is longer goes on below."""


LINE = 0.15
"""Inches from one line of such a name to the next."""


FRAME = 0.7
"""Inches of a figure's height that its title and the horizontal axis take."""


def label_ends(axes: Axes, ends: Sequence[LineEnd]) -> None:
    """Write each line's name beside its end, or as near as the others let it; on a linear axis.

    A figure that is too low for all names is made higher.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    order = sorted(ends, key=lambda end: end.height)
    texts = [textwrap.wrap(end.text, WIDE) for end in order]
    halves = np.array([LINE * len(lines) / 2 for lines in texts])
    figure.set_figheight(max(figure.get_figheight(), FRAME + 2 * halves.sum()))
    low, high = axes.get_ylim()
    inch = (high - low) / (figure.get_figheight() - FRAME)
    # Less the room below them, names need only keep their order: the nearest that do are an isotonic regression.
    below = inch * np.cumsum([0.0, *(halves[1:] + halves[:-1])])
    least, most = low + inch * (halves[0] - LINE / 4), high - inch * (halves[-1] - LINE / 4) - below[-1]
    heights = isotonic_regression([end.height for end in order] - below).x.clip(least, most) + below
    for end, height, lines in zip(order, heights, texts, strict=True):
        axes.annotate(
            "\n".join(lines),
            (1.02, height) if end.at is None else (end.at, end.height),
            (1.02, height),
            xycoords=("axes fraction" if end.at is None else "data", "data"),
            textcoords=("axes fraction", "data"),
            arrowprops=None if end.at is None else {"arrowstyle": "-", "color": SOFT, "alpha": 0.4, "linewidth": 0.6},
            va="center",
            color=end.color,
            fontsize=8,
            annotation_clip=False,
        )
