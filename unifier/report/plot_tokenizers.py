"""Figures of learned tokenizers: projections of patches as tiles, and filters of a waveform as frequency responses."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from unifier.files import write_text
from unifier.report.plot_style import INK, MUTED, plot_style, render_svg

MAX_TILES = 64
"""Maximum number of drawn tiles: the tiles with the largest norms."""

TILES_PER_ROW = 16

TILE_INCHES = 0.4

MIN_TILE_PIXELS, GAP_PIXELS = 24, 2
"""Smallest side of a drawn tile, and width of the white gap between tiles."""

DECIBELS = 40
"""Range of the colors of a frequency response, below the maximum of each filter."""


def draw_tiles(path: Path, weights: NDArray[np.floating], title: str) -> None:
    """Draw the projections of patches as tiles, sorted by norm. Each tile is scaled by its largest weight.

    Args:
        path: The SVG file to write.
        weights: The weights (D, C, height, width) of the D projections. C is 1 or 3.
        title: The title of the figure.
    """
    norms = np.sqrt((weights**2).sum((1, 2, 3)))
    order = np.argsort(-norms, kind="stable")[:MAX_TILES]
    tiles = weights[order] / np.maximum(np.abs(weights[order]).max((1, 2, 3), keepdims=True), 1e-12)
    tiles = (tiles.transpose(0, 2, 3, 1) + 1) / 2  # A weight of 0 is gray.
    height, width = tiles.shape[1:3]
    columns = min(TILES_PER_ROW, len(tiles))
    rows = -(-len(tiles) // columns)
    ratio = float(np.clip(height / width, 0.5, 2))
    with plot_style():
        figure = Figure(figsize=(TILE_INCHES * columns, TILE_INCHES * ratio * rows + 0.7), layout="constrained")
        axes = figure.add_subplot()
        # One picture of all tiles is drawn thirty times as fast as one panel per tile.
        axes.imshow(join_tiles(tiles, columns), cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_axis_off()
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
        shown = f"the {len(tiles)} largest of {len(weights)}" if len(tiles) < len(weights) else f"all {len(tiles)}"
        span = f"norms {norms[order[0]]:.3g} to {norms[order[-1]]:.3g}"
        figure.supxlabel(f"{shown}, {span}", x=0.01, ha="left", fontsize=9, color=MUTED)
        _save(figure, path, f"{title}: {shown}")


def join_tiles(tiles: NDArray[np.floating], columns: int) -> NDArray[np.floating]:
    """Return one picture (rows, columns, C) of tiles (T, height, width, C) from 0 to 1, with white gaps, row by row.

    With C = 1, the picture has no axis of channels.
    """
    scale = -(-MIN_TILE_PIXELS // min(tiles.shape[1:3]))
    tiles = tiles.repeat(scale, 1).repeat(scale, 2)
    gap = (GAP_PIXELS, GAP_PIXELS)
    missing = -len(tiles) % columns
    tiles = np.pad(tiles, ((0, missing), (0, 0), (0, 0), (0, 0)), constant_values=1)
    tiles = np.pad(tiles, ((0, 0), gap, gap, (0, 0)), constant_values=1)
    count, height, width, channels = tiles.shape
    grid = tiles.reshape(count // columns, columns, height, width, channels).swapaxes(1, 2)
    picture = grid.reshape(count // columns * height, columns * width, channels)
    return picture[:, :, 0] if channels == 1 else picture


def draw_responses(
    path: Path, cosine: NDArray[np.floating], sine: NDArray[np.floating], sample_rate: int, title: str
) -> None:
    """Draw the power response of each pair of filters, sorted by center frequency.

    Args:
        path: The SVG file to write.
        cosine: The first filter (window, F) of each pair.
        sine: The second filter (window, F) of each pair.
        sample_rate: The sample rate in Hz.
        title: The title of the figure.
    """
    frequencies, power = filter_responses(cosine, sine, sample_rate)
    with plot_style():
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        decibels = 10 * np.log10(np.maximum(power / np.maximum(power.max(1, keepdims=True), 1e-30), 1e-30))
        extent = (0, frequencies[-1] / 1000, len(power) + 0.5, 0.5)
        heat = axes.imshow(
            decibels, cmap="magma", vmin=-DECIBELS, vmax=0, aspect="auto", extent=extent, interpolation="nearest"
        )
        axes.set(title=title, xlabel="kHz", ylabel="filter, by center frequency")
        axes.grid(visible=False)
        bar = figure.colorbar(heat, ax=axes, ticks=[-DECIBELS, -DECIBELS // 2, 0])
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.set_label("dB below the maximum")
        _save(figure, path, f"{title}: power response of {len(power)} filters")


def filter_responses(
    cosine: NDArray[np.floating], sine: NDArray[np.floating], sample_rate: int
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return frequencies (K,) in Hz, and the power responses (F, K), sorted by the frequency of the maximum.

    The power of a pair is the sum of the squared outputs of both filters, as in `WaveformTokenizer`.

    Args:
        cosine: The first filter (window, F) of each pair.
        sine: The second filter (window, F) of each pair.
        sample_rate: The sample rate in Hz.
    """
    size = max(1024, 1 << (len(cosine) - 1).bit_length())
    spectra = np.fft.rfft(np.stack([cosine, sine]), size, axis=1)
    power = (np.abs(spectra) ** 2).sum(0).T
    return np.fft.rfftfreq(size, 1 / sample_rate), power[np.argsort(power.argmax(1), kind="stable")]


def _save(figure: Figure, path: Path, alt: str) -> None:
    write_text(path, render_svg(figure, alt))
