"""Attention maps: between words, over a picture, along a sound."""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from unifier.report.plot_style import STYLE, plot_style

GRAY = "#7b828b"
"""A gray that is read on white and on black."""


BLUE, ORANGE = "#2f7df6", "#f08a24"


INK_FROM = ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color")


ATTENTION_STYLE: dict[Any, Any] = STYLE | {"axes.grid": False} | dict.fromkeys(INK_FROM, GRAY)


MAX_FRAMES = 256
"""A longer sound's are averaged: a drawing has no more pixels, and should be a small file."""


def _glass(color: str, strongest: float) -> LinearSegmentedColormap:
    """From nothing to a color of some opacity, over whatever lies beneath."""
    return LinearSegmentedColormap.from_list(color, [(*to_rgb(color), alpha) for alpha in (0, strongest)])


@contextmanager
def _drawing(path: Path, width: float, height: float) -> Generator[Figure]:
    """A figure of that many inches, saved as SVG on a transparent ground; pictures lie in it as PNG."""
    with plot_style(ATTENTION_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, transparent=True, dpi=100, metadata={"Date": None})


def draw_alignment(
    path: Path,
    source: Sequence[str],
    target: Sequence[str],
    attention: NDArray[np.floating],
    gold: Collection[tuple[int, int]] = (),
) -> None:
    """Attention (target words, source words), with the cells (source, target) of the true alignment outlined."""
    cell = 0.3
    with _drawing(path, 1.5 + cell * len(source), 1.5 + cell * len(target)) as figure:
        axes = figure.add_subplot()
        axes.imshow(attention, cmap=_glass(BLUE, 1), vmin=0, vmax=1, interpolation="nearest")
        for s, t in gold:
            axes.add_patch(Rectangle((s - 0.5, t - 0.5), 1, 1, fill=False, edgecolor=ORANGE, linewidth=1.6))
        axes.set_xticks(range(len(source)), source, rotation=60, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(target)), target)
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axes.spines[:].set_visible(False)
        axes.set_xticks(np.arange(len(source) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(target) + 1) - 0.5, minor=True)
        axes.tick_params(which="minor", length=0)
        axes.grid(which="minor", color=GRAY, alpha=0.25, linewidth=0.6)
        axes.set_xlabel("outlined: the true alignment" if gold else "")


def draw_over_picture(
    path: Path,
    picture: NDArray[np.uint8],
    received: NDArray[np.floating],
    box: tuple[float, float, float, float],
    said: str,
) -> None:
    """A picture (height, width, 1 or 3), and what attention its patches (rows, columns) receive.

    `box` is where the patches lie: left, right, bottom and top, in pixels.
    """
    height, width = picture.shape[:2]
    gray = picture.mean(2)
    with _drawing(path, 6.2, 2.6 * min(max(height / width, 0.5), 2) + 0.3) as figure:
        left, right = figure.subplots(1, 2)
        extent = (0, width, height, 0)
        left.imshow(picture if picture.shape[2] == 3 else gray, cmap="gray", vmin=0, vmax=255, extent=extent)
        left.set_title(said)
        right.imshow(gray, cmap="gray", vmin=-255, vmax=255, extent=extent)  # lifted, to show color on black
        shown = right.imshow(received, cmap=_glass(ORANGE, 0.9), vmin=0, extent=box, interpolation="nearest")
        right.set(title="attention received", xlim=(0, width), ylim=(height, 0))
        for axes in (left, right):
            axes.set_axis_off()
        bar = figure.colorbar(shown, ax=right, shrink=0.8, ticks=MaxNLocator(4))
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.set_label("relative to uniform attention")


def draw_over_sound(
    path: Path,
    spectrogram: NDArray[np.floating],
    span: tuple[float, float],
    times: NDArray[np.floating],
    received: NDArray[np.floating],
    said: str,
) -> None:
    """A spectrogram (bands, frames) from second to second, and below it what attention each time (N,) receives."""
    bands, frames = spectrogram.shape
    step = -(-frames // MAX_FRAMES)
    shown = np.stack([part.mean(1) for part in np.array_split(spectrogram, -(-frames // step), axis=1)], 1)
    with _drawing(path, 6.4, 3.6) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        above.imshow(shown, cmap="magma", origin="lower", aspect="auto", extent=(*span, 0, bands), interpolation="none")
        above.set(title=said, ylabel="mel band")
        below.fill_between(times, received, step="mid", color=ORANGE, alpha=0.35, linewidth=0)
        below.step(times, received, where="mid", color=ORANGE, linewidth=1.4)
        below.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
        below.text(span[1], 1, " uniform", va="center", fontsize=8, clip_on=False)
        below.set(xlabel="seconds", ylabel="attention\nreceived", xlim=span, ylim=(0, None))
