"""Attention maps: between words, over an image, along a sound, and over the words of a text."""

import io
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from rich.cells import cell_len
from torch import Tensor

from unifier.files import printable, write_text
from unifier.report.plot_style import FIGURE_STYLE, plot_style
from unifier_tokenizers import (
    NO_POSITION,
    FrameTokenizer,
    PatchTokenizer,
    PretrainedTextTokenizer,
    SubwordTokenizer,
    Tokenizer,
    Units,
    WordTokenizer,
)
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.image import to_array

GRAY = "#7b828b"
"""Gray that is legible on white and on black."""

BLUE, ORANGE = "#2f7df6", "#f08a24"

COLOR_SETTINGS = ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color")

ATTENTION_STYLE: dict[Any, Any] = FIGURE_STYLE | {"axes.grid": False} | dict.fromkeys(COLOR_SETTINGS, GRAY)

MAX_FRAMES = 256
"""Maximum number of drawn frames. The frames of a longer sound are averaged, to limit the file size."""


MAX_INCHES = 30
"""Maximum side of a matrix of words in inches. The memory for a drawing is quadratic in its side."""

MAX_DRAWN_WORDS, MAX_PANEL_COLUMNS = 11, 4
"""Maximum number of words whose attention to a picture is drawn, and maximum number of pictures in a row."""

LINE_CELLS = 64
"""Number of characters in a line of a text."""

BAR_HEIGHT = 0.42
"""Height of the highest bar below a line of a text, relative to the height of a line."""

CHARACTER, LINE = 0.1, 0.42
"""Width of a character and height of a line of a text, in inches. The font has characters of equal width."""


DRAWN_TOKENIZERS = (PatchTokenizer, AudioTokenizer, SubwordTokenizer, PretrainedTextTokenizer, WordTokenizer)
"""Tokenizers whose inputs `draw_received` draws."""


def draw_received(path: Path, raw: Any, tokenizer: Tokenizer, units: Units, received: Tensor, title: str) -> None:
    """Draw the attention that each token of an input receives: over a picture, along a sound, or over a text.

    Args:
        path: The SVG file to write.
        raw: The raw input.
        tokenizer: The tokenizer of the input, which must be one of `DRAWN_TOKENIZERS`.
        units: The encoded input.
        received: Attention per token (N,), relative to uniform attention. Tokens without a position are not drawn.
        title: The title of the figure.
    """
    located = units.positions[0] != NO_POSITION
    values = received[located]
    if isinstance(tokenizer, PatchTokenizer):
        grid = tokenizer.patch_grid(units)
        box = grid.left, grid.right, grid.bottom, grid.top
        cells = values.view(grid.rows, grid.columns).numpy()
        draw_over_image(path, to_array(raw, tokenizer.channels), cells, box, title)
    elif isinstance(tokenizer, AudioTokenizer):
        # Several patches can have the same time.
        times, frame = tokenizer.position_values(units)[0, located].unique(return_inverse=True)
        mean = torch.zeros(len(times)).scatter_reduce(0, frame, values, "mean", include_self=False)
        spectrogram = tokenizer.spectrogram(raw).numpy(force=True)
        if isinstance(tokenizer, FrameTokenizer):  # The last token can extend beyond the end of the spectrogram.
            start, end = tokenizer.frame_times(torch.tensor([-0.5, spectrogram.shape[1] - 0.5])).tolist()
        else:
            margin = tokenizer.tiles.stride[0] * tokenizer.frame_step / 2
            start, end = float(times[0]) - margin, float(times[-1]) + margin
        draw_over_audio(path, spectrogram, (start, end), times.numpy(), mean.numpy(), title)
    elif isinstance(tokenizer, WordTokenizer):
        words = tokenizer.words(raw)
        has_spaces = tokenizer.split == "words"
        draw_over_text(path, words, [k if has_spaces else 0 for k in range(len(words))], values.numpy(), title)
    else:
        assert isinstance(tokenizer, SubwordTokenizer | PretrainedTextTokenizer)
        ids = units.values[located].tolist()
        draw_over_text(
            path, tokenizer.vocabulary.tokens(ids), tokenizer.vocabulary.word_ids(ids), values.numpy(), title
        )


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
    cell = min(0.3, MAX_INCHES / max(len(source), len(target)))
    with drawing(path, 1.5 + cell * len(source), 1.5 + cell * len(target)) as figure:
        axes = figure.add_subplot()
        axes.imshow(attention, cmap=transparent_colors(BLUE, 1), vmin=0, vmax=1, interpolation="nearest")
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
    with drawing(path, 6.2, 2.6 * min(max(height / width, 0.5), 2) + 0.3) as figure:
        left, right = figure.subplots(1, 2)
        extent = (0, width, height, 0)
        left.imshow(image if image.shape[2] == 3 else gray, cmap="gray", vmin=0, vmax=255, extent=extent)
        left.set_title(title)
        # With vmin=-255, black pixels are drawn in gray, so the attention color is visible on black pixels.
        right.imshow(gray, cmap="gray", vmin=-255, vmax=255, extent=extent)
        heat = right.imshow(received, cmap=transparent_colors(ORANGE, 0.9), vmin=0, extent=box, interpolation="nearest")
        right.set(title="attention received", xlim=(0, width), ylim=(height, 0))
        for axes in (left, right):
            axes.set_axis_off()
        bar = figure.colorbar(heat, ax=right, shrink=0.8, ticks=MaxNLocator(4))
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.set_label("relative to uniform attention")


def draw_words_over_image(
    path: Path,
    raw: Any,
    tokenizer: PatchTokenizer,
    units: Units,
    received: Tensor,
    words: Sequence[str],
    title: str,
) -> None:
    """Draw a picture, and the attention that its patches receive from each word of a text (Xu et al. 2015, figure 3).

    Args:
        path: The SVG file to write.
        raw: The raw picture.
        tokenizer: The tokenizer of the picture.
        units: The encoded picture.
        received: Attention (words, N) from each word, relative to uniform attention.
        words: The words. Only the first `MAX_DRAWN_WORDS` words are drawn.
        title: The title of the picture.
    """
    image, grid = to_array(raw, tokenizer.channels), tokenizer.patch_grid(units)
    located = units.positions[0] != NO_POSITION
    height, width = image.shape[:2]
    gray, extent, words = image.mean(2), (0, width, height, 0), words[:MAX_DRAWN_WORDS]
    columns = min(len(words) + 1, MAX_PANEL_COLUMNS)
    lines = -(-(len(words) + 1) // columns)
    side = 1.9
    with drawing(path, side * columns, (side * min(max(height / width, 0.5), 2) + 0.3) * lines) as figure:
        panels = figure.subplots(lines, columns, squeeze=False).flatten()
        panels[0].imshow(image if image.shape[2] == 3 else gray, cmap="gray", vmin=0, vmax=255, extent=extent)
        panels[0].set_title(title, fontsize=9, wrap=True)
        for axes, word, weights in zip(panels[1:], words, received[:, located], strict=False):
            cells = weights.view(grid.rows, grid.columns).numpy()
            axes.imshow(gray, cmap="gray", vmin=-255, vmax=255, extent=extent)
            area, colors = (grid.left, grid.right, grid.bottom, grid.top), transparent_colors(ORANGE, 0.9)
            axes.imshow(cells, cmap=colors, vmin=0, vmax=float(received.max()), extent=area, interpolation="nearest")
            axes.set(title=word, xlim=(0, width), ylim=(height, 0))
        for axes in panels:
            axes.set_axis_off()


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
    with drawing(path, 6.4, 3.6) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        above.imshow(means, cmap="magma", origin="lower", aspect="auto", extent=(*span, 0, bands), interpolation="none")
        above.set(title=title, ylabel="band")
        below.fill_between(times, received, step="mid", color=ORANGE, alpha=0.35, linewidth=0)
        below.step(times, received, where="mid", color=ORANGE, linewidth=1.4)
        below.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
        below.text(span[1], 1, " uniform", va="center", fontsize=9, clip_on=False)
        below.set(xlabel="seconds", ylabel="attention\nreceived", xlim=span, ylim=(0, None))


def draw_over_text(
    path: Path,
    tokens: Sequence[str],
    words: Sequence[int],
    received: NDArray[np.floating],
    title: str,
    bold_word: int | None = None,
) -> None:
    """Draw a text in lines. The bar below each token is the attention that the token receives.

    Args:
        path: The SVG file to write.
        tokens: The text of each token.
        words: The word index of each token. The tokens of a word are drawn without a gap.
        received: Attention per token (N,), relative to uniform attention.
        title: The title of the figure.
        bold_word: The index of a word in bold letters.
    """
    places, line, cell = list[tuple[int, int, int]](), 0, 0
    for token, word, previous in zip(tokens, words, (-1, *words), strict=False):
        width = max(cell_len(token), 1)
        cell += int(word != previous and cell > 0)
        if cell and cell + width > LINE_CELLS:
            line, cell = line + 1, 0
        places.append((line, cell, width))
        cell += width
    columns = max(cell + width for _, cell, width in places)
    uniform = BAR_HEIGHT / max(float(received.max()), 1)
    heights = uniform * received
    with drawing(path, max(CHARACTER * columns, 3) + 0.9, LINE * (line + 1) + 0.7) as figure:
        axes = figure.add_subplot()
        for token, word, height, (row, left, width) in zip(tokens, words, heights.tolist(), places, strict=True):
            text = axes.text(left + width / 2, row, token, ha="center", va="center", family="monospace", fontsize=10)
            text.set_fontweight("bold" if word == bold_word else "normal")
            axes.add_patch(Rectangle((left + 0.05, row + 0.7 - height), width - 0.1, height, color=ORANGE, linewidth=0))
        for row in range(line + 1):
            axes.plot([0, columns], [row + 0.7 - uniform] * 2, color=GRAY, linewidth=0.8, linestyle=":")
        axes.text(columns, 0.7 - uniform, " uniform", va="center", fontsize=9)
        axes.set(xlim=(0, columns), ylim=(line + 0.8, -0.4), xlabel="attention received")
        axes.set_title(title, pad=10)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)


@contextmanager
def drawing(path: Path, width: float, height: float) -> Generator[Figure]:
    """Create a figure with the given width and height in inches, and save it as SVG with a transparent background."""
    with plot_style(ATTENTION_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, dpi=100, metadata={"Date": None})
        write_text(path, printable(buffer.getvalue(), keep="\n\t"))


def transparent_colors(color: str, opacity: float) -> LinearSegmentedColormap:
    """Return a colormap from fully transparent to a color with the given opacity."""
    return LinearSegmentedColormap.from_list(color, [(*to_rgb(color), alpha) for alpha in (0, opacity)])
