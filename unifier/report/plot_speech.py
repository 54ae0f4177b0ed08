"""Figures of generated speech: the spectrogram, and the attention from each step to the text."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from unifier.report.plot_attention import ATTENTION_STYLE, BLUE, drawing, transparent_colors
from unifier.report.plot_style import plot_style

WIDTH, TOP, ROW, MAX_ROWS = 6.4, 2.4, 0.17, 40
"""Sizes in inches: the width, the height of the spectrogram, the height of a token. At most 40 tokens have a text."""

PNG_DPI = 96
"""Number of dots per inch of a PNG file."""


def draw_speech(
    path: Path,
    spectrogram: NDArray[np.floating],
    attention: NDArray[np.floating],
    tokens: Sequence[str],
    seconds: float,
) -> None:
    """Draw generated speech as an SVG file: the spectrogram, and below it the alignment.

    Args:
        path: The file to write.
        spectrogram: The log power (F, frames).
        attention: The attention (steps, N) from each step to the tokens of the text.
        tokens: The texts of the N tokens.
        seconds: The length of the sound.
    """
    with drawing(path, WIDTH, TOP + _text_height(tokens)) as figure:
        _draw(figure, spectrogram, attention, tokens, seconds)


def speech_png(
    spectrogram: NDArray[np.floating], attention: NDArray[np.floating], tokens: Sequence[str], seconds: float
) -> bytes:
    """Return the figure of `draw_speech` as a PNG file."""
    file = io.BytesIO()
    with plot_style(ATTENTION_STYLE):
        figure = Figure(figsize=(WIDTH, TOP + _text_height(tokens)), dpi=PNG_DPI, layout="constrained")
        _draw(figure, spectrogram, attention, tokens, seconds)
        for part in (figure, *figure.axes):
            part.set_facecolor("none")
        FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


def _text_height(tokens: Sequence[str]) -> float:
    """Return the height of the rows of the tokens, in inches."""
    return ROW * min(max(len(tokens), 4), MAX_ROWS)


def _draw(
    figure: Figure,
    spectrogram: NDArray[np.floating],
    attention: NDArray[np.floating],
    tokens: Sequence[str],
    seconds: float,
) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, _text_height(tokens)))
    bands, count = len(spectrogram), len(tokens)
    above.imshow(
        spectrogram,
        cmap="magma",
        origin="lower",
        aspect="auto",
        extent=(0, seconds, 0, bands),
        interpolation="nearest",
    )
    above.set(ylabel="band")
    below.imshow(
        attention.T,
        cmap=transparent_colors(BLUE, 1),
        vmin=0,
        vmax=1,
        aspect="auto",
        extent=(0, seconds, count - 0.5, -0.5),
        interpolation="nearest",
    )
    if count <= MAX_ROWS:
        below.set_yticks(range(count), [token or "space" for token in tokens], fontsize=8)
    below.set(xlabel="seconds", ylabel="attention")
