"""Figures of a masked autoencoder: the input, its visible part, and the reconstruction."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from unifier.files import printable, write_text
from unifier.report.plot_attention import ATTENTION_STYLE, GRAY
from unifier.report.plot_style import plot_style

PANELS = ("original", "visible", "reconstructed")

HIDDEN_COLOR = (*to_rgb(GRAY), 0.25)

MAX_DRAWN_FRAMES = 512
"""Maximum number of drawn frames of a sound, to limit the file size. Later frames are left out."""


@final
class Reconstruction(NamedTuple):
    """An input and its reconstruction: pixels (height, width, 1 or 3), a spectrogram (bands, frames) or channels."""

    original: NDArray[np.floating]
    visible: NDArray[np.floating]
    """The input, with NaN at hidden places."""
    reconstructed: NDArray[np.floating]
    """The input, with predictions at hidden places."""
    r2: float
    """R2 of the normalized hidden values, in percent."""


def draw_reconstructed_images(path: Path, images: Sequence[Reconstruction]) -> None:
    """Draw one column per image, with the original, the visible patches and the reconstruction below each other.

    Args:
        path: The SVG file to write.
        images: Pixels from 0 to 255.
    """
    height = max(image.original.shape[0] / image.original.shape[1] for image in images)
    with plot_style(ATTENTION_STYLE):
        figure = Figure(figsize=(0.95 * len(images) + 1, 3 * 0.95 * height + 0.5), layout="constrained")
        grid = figure.subplots(3, len(images), squeeze=False)
        for column, image in enumerate(images):
            for row, (name, pixels) in enumerate(zip(PANELS, image[:3], strict=True)):
                axes: Axes = grid[row][column]
                hidden = np.isnan(pixels[..., :1])
                colors = np.broadcast_to(np.nan_to_num(pixels).clip(0, 255) / 255, (*pixels.shape[:2], 3))
                # Hidden patches are transparent gray, because a picture may contain any opaque color.
                shade = np.broadcast_to(HIDDEN_COLOR, (*pixels.shape[:2], 4))
                opaque = np.concatenate([colors, np.ones_like(hidden)], 2)
                axes.imshow(np.where(hidden, shade, opaque), interpolation="nearest")
                _hide_axes(axes, name if column == 0 else "")
            grid[2][column].set_xlabel(f"R2 {image.r2:.0f} %", fontsize=9)
        _save(figure, path)


def draw_reconstructed_sounds(path: Path, sounds: Sequence[Reconstruction], frame_step: float) -> None:
    """Draw one column per sound, with the original spectrogram, its visible part and the reconstruction.

    Args:
        path: The SVG file to write.
        sounds: Log-mel spectrograms.
        frame_step: The time between two frames, in seconds.
    """
    colors = colormaps["magma"].with_extremes(bad=HIDDEN_COLOR)
    with plot_style(ATTENTION_STYLE):
        figure = Figure(figsize=(3.4 * len(sounds) + 0.6, 4.6), layout="constrained")
        grid = figure.subplots(3, len(sounds), squeeze=False, sharex="col")
        for column, sound in enumerate(sounds):
            # The padding of the last token is as low as silence, and would darken the other frames.
            low, high = np.quantile(sound.original, (0.02, 1)).tolist()
            for row, (name, spectrogram) in enumerate(zip(PANELS, sound[:3], strict=True)):
                axes: Axes = grid[row][column]
                shown = spectrogram[:, :MAX_DRAWN_FRAMES]
                extent = (0, shown.shape[1] * frame_step, 0, len(shown))
                axes.imshow(
                    np.ma.masked_invalid(shown),
                    cmap=colors,
                    vmin=low,
                    vmax=high,
                    origin="lower",
                    aspect="auto",
                    extent=extent,
                    interpolation="none",
                )
                axes.set(yticks=[], ylabel=name if column == 0 else "")
            grid[2][column].set_xlabel(f"seconds (R2 {sound.r2:.0f} %)")
        _save(figure, path)


def _hide_axes(axes: Axes, name: str) -> None:
    """Remove ticks and borders, and write the name of a row to the left."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_ylabel(name, rotation="horizontal", ha="right", va="center")


def _save(figure: Figure, path: Path) -> None:
    buffer, metadata = io.StringIO(), {"Date": None}
    figure.savefig(buffer, format="svg", transparent=True, dpi=100, metadata=metadata)
    write_text(path, printable(buffer.getvalue(), keep="\n\t"))
