"""Attention maps: between words, over an image, and along a sound."""

import io
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

from unifier.files import printable, write_text
from unifier.report.plot_style import FIGURE_STYLE, figures_folder, plot_style

GRAY = "#7b828b"
"""Gray that is legible on white and on black."""

BLUE, ORANGE = "#2f7df6", "#f08a24"

COLOR_SETTINGS = ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color")

ATTENTION_STYLE: dict[Any, Any] = FIGURE_STYLE | {"axes.grid": False} | dict.fromkeys(COLOR_SETTINGS, GRAY)

MAX_FRAMES = 256
"""Maximum number of drawn frames. The frames of a longer sound are averaged, to limit the file size."""


def draw_alignment(
    path: Path,
    source: Sequence[str],
    target: Sequence[str],
    attention: NDArray[np.floating],
    gold: Collection[tuple[int, int]] = (),
) -> None:
    """Draw the attention from target words to source words.

    Args:
        path: The SVG file to write.
        source: The words that receive attention, one per column.
        target: The words that attend to the source words, one per row.
        attention: Weights (target words, source words) from 0 to 1.
        gold: The pairs (source, target) of the true alignment, whose cells are outlined.
    """
    cell = 0.3
    with _drawing(path, 1.5 + cell * len(source), 1.5 + cell * len(target)) as figure:
        axes = figure.add_subplot()
        axes.imshow(attention, cmap=_transparent_colors(BLUE, 1), vmin=0, vmax=1, interpolation="nearest")
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


def draw_over_image(
    path: Path,
    image: NDArray[np.uint8],
    received: NDArray[np.floating],
    box: tuple[float, float, float, float],
    title: str,
) -> None:
    """Draw two panels: an image, and the attention that each patch of the image receives.

    Args:
        path: The SVG file to write.
        image: Pixels (height, width, 1 or 3).
        received: Attention per patch (rows, columns), relative to uniform attention.
        box: The area of the patches in pixels: left, right, bottom, top.
        title: The title of the image.
    """
    height, width = image.shape[:2]
    gray = image.mean(2)
    with _drawing(path, 6.2, 2.6 * min(max(height / width, 0.5), 2) + 0.3) as figure:
        left, right = figure.subplots(1, 2)
        extent = (0, width, height, 0)
        left.imshow(image if image.shape[2] == 3 else gray, cmap="gray", vmin=0, vmax=255, extent=extent)
        left.set_title(title)
        # With vmin=-255, black pixels are drawn in gray, so the attention color is visible on black pixels.
        right.imshow(gray, cmap="gray", vmin=-255, vmax=255, extent=extent)
        heat = right.imshow(
            received, cmap=_transparent_colors(ORANGE, 0.9), vmin=0, extent=box, interpolation="nearest"
        )
        right.set(title="attention received", xlim=(0, width), ylim=(height, 0))
        for axes in (left, right):
            axes.set_axis_off()
        bar = figure.colorbar(heat, ax=right, shrink=0.8, ticks=MaxNLocator(4))
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.set_label("relative to uniform attention")


def draw_over_audio(
    path: Path,
    spectrogram: NDArray[np.floating],
    span: tuple[float, float],
    times: NDArray[np.floating],
    received: NDArray[np.floating],
    title: str,
) -> None:
    """Draw two panels: a spectrogram, and the attention that each token of the spectrogram receives.

    Args:
        path: The SVG file to write.
        spectrogram: Log-mel energies (bands, frames).
        span: The start and the end of the spectrogram in seconds.
        times: The times (N,) of the tokens in seconds.
        received: Attention per token (N,), relative to uniform attention.
        title: The title of the spectrogram.
    """
    bands, frames = spectrogram.shape
    step = -(-frames // MAX_FRAMES)
    means = np.stack([part.mean(1) for part in np.array_split(spectrogram, -(-frames // step), axis=1)], 1)
    with _drawing(path, 6.4, 3.6) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        above.imshow(means, cmap="magma", origin="lower", aspect="auto", extent=(*span, 0, bands), interpolation="none")
        above.set(title=title, ylabel="mel band")
        below.fill_between(times, received, step="mid", color=ORANGE, alpha=0.35, linewidth=0)
        below.step(times, received, where="mid", color=ORANGE, linewidth=1.4)
        below.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
        below.text(span[1], 1, " uniform", va="center", fontsize=9, clip_on=False)
        below.set(xlabel="seconds", ylabel="attention\nreceived", xlim=span, ylim=(0, None))


@contextmanager
def _drawing(path: Path, width: float, height: float) -> Generator[Figure]:
    """Create a figure with the given width and height in inches, and save it as SVG with a transparent background."""
    with plot_style(ATTENTION_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figures_folder(path.parent.parent)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, dpi=100, metadata={"Date": None})
        write_text(path, printable(buffer.getvalue(), keep="\n\t"))


def _transparent_colors(color: str, opacity: float) -> LinearSegmentedColormap:
    """Return a colormap from fully transparent to a color with the given opacity."""
    return LinearSegmentedColormap.from_list(color, [(*to_rgb(color), alpha) for alpha in (0, opacity)])
