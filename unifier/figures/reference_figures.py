"""Figures of the attention from the last word of a sentence to the word on which the target depends."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unifier.analysis.activations import iterate_batches
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.data.source import optional_method
from unifier.experiment import Task
from unifier.files import write_text
from unifier.report.plot_attention import draw_over_text
from unifier.report.plot_style import create_panel, figures_folder, plot_heat_map, plot_style, render_svg
from unifier.trunks.trunk import AttentiveTrunk
from unifier_tokenizers import SubwordTokenizer

MAX_DRAWN_WORDS = 60
"""Maximum number of tokens of the sentence that is drawn."""


def draw_reference(
    folder: Path, name: str, trunk: AttentiveTrunk, task: Task, split: EncodedSplit, rows: Sequence[int]
) -> dict[str, Any]:
    """Draw the attention of every head to the referent, and one sentence with the attention of the best head.

    The best head is the head with the largest mean attention from the last token to the referent.

    Args:
        folder: The run's folder.
        name: The name of the task.
        trunk: The trained trunk.
        task: The task. The split "val" of its source has a method `referent`, which returns the index of a word.
        split: The task's encoded split "val".
        rows: The indices of the examples in the split.

    Returns:
        The layer and the head of the best head, counted from 0, and the mean attention "weights" (layers, heads). The
        result is empty if the inputs are not texts, or if the split has no method `referent`.
    """
    referent = optional_method(open_split(task.source, "val"), "referent")
    tokenizer = task.tokenizer
    if referent is None or not isinstance(tokenizer, SubwordTokenizer) or not trunk.layer_outputs():
        return {}
    sums, longest = list[Tensor](), (0, rows[0])
    for batch_rows, tokens, _ in iterate_batches(task, split, rows):
        layers = trunk.attention(tokens, trunk.effective_mode(task.head.attention_mode))[1]
        for k, row in enumerate(batch_rows):
            words = torch.tensor(tokenizer.vocabulary.word_ids(split.values[row].tolist()))
            is_referent = words == referent(int(split.indices[row]))
            last = torch.stack([layer[k, :, len(words) - 1, : len(words)].cpu() for layer in layers])
            sums.append(last[..., is_referent].sum(-1))
            longest = max(longest, (len(words) if len(words) <= MAX_DRAWN_WORDS else 0, row))
    weights = torch.stack(sums).float().mean(0)
    layer, head = divmod(int(weights.argmax()), weights.shape[1])
    _draw_heads(figures_folder(folder) / f"reference-{name}-heads.svg", weights)
    ((_, tokens, _),) = iterate_batches(task, split, [longest[1]])
    received = trunk.attention(tokens, trunk.effective_mode(task.head.attention_mode))[1][layer][0, head, -1]
    ids = split.values[longest[1]].tolist()
    draw_over_text(
        figures_folder(folder) / f"reference-{name}-text.svg",
        tokenizer.vocabulary.tokens(ids),
        tokenizer.vocabulary.word_ids(ids),
        (received.float().cpu() * len(ids)).numpy(),
        f"attention of the last word, layer {layer + 1}, head {head + 1}; the referent is bold",
        referent(int(split.indices[longest[1]])),
    )
    return {"layer": layer, "head": head, "weights": weights.tolist()}


def _draw_heads(path: Path, weights: Tensor) -> None:
    """Draw the mean attention (layers, heads) from the last token to the referent as a heat map."""
    layers, heads = weights.shape
    with plot_style():
        figure, axes = create_panel(1.6 + 0.7 * heads, 1.2 + 0.4 * layers)
        texts = [[f"{value:.2f}" for value in row] for row in weights.tolist()]
        rows, columns = [f"layer {k + 1}" for k in range(layers)], [f"head {k + 1}" for k in range(heads)]
        plot_heat_map(axes, weights.numpy(), (0, 1), texts, rows, columns)
        axes.set(title="attention to the referent")
        write_text(path, render_svg(figure, "mean attention of each head from the last word to the referent"))
