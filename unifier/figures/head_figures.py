"""Small multiples of attention: one panel per layer and attention head."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from unifier.analysis.attention_heads import LayerAttention
from unifier.report.plot_attention import BLUE, drawing, transparent_colors

MAX_HEADS = 8
"""Maximum number of drawn heads of a layer."""

MIN_WEIGHT = 0.05
"""Smallest weight that is drawn as a line."""

DARKEST = 0.02
"""Share of the cells with a weight that have the darkest color.

The first token of a decoder attends to itself only. Its weight of 1 would make the other cells too pale.
"""

PANEL, WORD = 1.5, 0.14
"""Width of a panel, and height of a word, in inches."""


def draw_head_lines(path: Path, layers: Sequence[LayerAttention]) -> None:
    """Draw each head as lines between words. The thickness of a line is the weight.

    A row of panels is a layer, and a column is a head. The words that attend are on the left.

    Args:
        path: The SVG file to write.
        layers: The layers, in the order of the rows. All tokens must have texts.
    """
    columns = min(most := max(len(layer.weights) for layer in layers), MAX_HEADS)
    heights = [WORD * max(layer.weights.shape[1:]) for layer in layers]
    with drawing(path, 0.9 + PANEL * columns, sum(heights) + 0.35 * len(layers)) as figure:
        _note_omitted(figure, most)
        grid = figure.subplots(len(layers), columns, squeeze=False, height_ratios=heights)
        for layer, row in zip(layers, grid, strict=True):
            for axes in row:
                axes.set_axis_off()
            for head, (axes, weights) in enumerate(zip(row, layer.weights, strict=False), 1):
                axes.set_title(f"{layer.part} {layer.layer}.{head}", fontsize=8)
                _draw_lines(axes, layer.queries, layer.keys, weights)


def draw_head_matrices(path: Path, layers: Sequence[LayerAttention]) -> None:
    """Draw the weights of each head as a matrix, whose rows are the tokens that attend.

    The darkest cells of a matrix are its largest weights, in the share `DARKEST`.

    Args:
        path: The SVG file to write.
        layers: The layers, in the order of the rows.
    """
    parts = [list(group) for _, group in groupby(layers, key=lambda layer: layer.part)]
    columns = min(most := max(len(layer.weights) for layer in layers), MAX_HEADS)
    with drawing(path, 1.2 + 0.8 * columns, 0.8 * len(layers) + 0.3 * len(parts)) as figure:
        _note_omitted(figure, most)
        axes_of_parts = figure.subplots(len(parts), 1, squeeze=False, height_ratios=list(map(len, parts)))[:, 0]
        for axes, group in zip(axes_of_parts, parts, strict=True):
            # The last layer of a trunk may have fewer queries, because a head may read only the class token.
            heads, queries, keys = np.max([layer.weights[:MAX_HEADS].shape for layer in group], 0)
            gap = -(-max(queries, keys) // 12)
            joined = np.zeros((len(group) * (queries + gap), heads * (keys + gap)))
            for row, layer in enumerate(group):
                for head, weights in enumerate(layer.weights[:MAX_HEADS]):
                    top, left = row * (queries + gap), head * (keys + gap)
                    largest = np.quantile(weights[weights > 0], 1 - DARKEST, method="higher")
                    joined[top : top + len(weights), left : left + keys] = (weights / largest).clip(max=1)
            axes.imshow(joined, cmap=transparent_colors(BLUE, 1), interpolation="nearest", aspect="auto")
            axes.hlines(np.arange(1, len(group)) * (queries + gap) - (gap + 1) / 2, *axes.get_xlim(), lw=0.5, alpha=0.3)
            axes.vlines(np.arange(1, heads) * (keys + gap) - (gap + 1) / 2, *axes.get_ylim(), lw=0.5, alpha=0.3)
            axes.set_xticks(np.arange(heads) * (keys + gap) + keys / 2, [f"head {k + 1}" for k in range(heads)])
            axes.set_yticks(
                np.arange(len(group)) * (queries + gap) + queries / 2, [f"{each.part} {each.layer}" for each in group]
            )
            axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
            axes.spines[:].set_visible(False)


def _note_omitted(figure: Figure, num_heads: int) -> None:
    """Write a title if a layer has more heads than are drawn."""
    if num_heads > MAX_HEADS:
        figure.suptitle(f"the first {MAX_HEADS} of {num_heads} heads", fontsize=8)


def _draw_lines(axes: Axes, queries: Sequence[str], keys: Sequence[str], weights: NDArray[np.floating]) -> None:
    """Draw the tokens that attend on the left, the other tokens on the right, and lines between them."""
    for texts, x, align in ((queries, -0.05, "right"), (keys, 1.05, "left")):
        for y, text in enumerate(texts):
            axes.text(x, y, text, ha=align, va="center", fontsize=5)
    pairs = np.argwhere(weights >= MIN_WEIGHT)
    axes.add_collection(
        LineCollection(
            [((0, query), (1, key)) for query, key in pairs],
            linewidths=[2.5 * weights[query, key] for query, key in pairs],
            colors=BLUE,
            capstyle="round",
        )
    )
    axes.set(xlim=(-0.8, 1.8), ylim=(max(weights.shape) - 0.5, -0.5))
