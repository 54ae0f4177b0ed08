"""An arm's encoded examples through a trained trunk: outputs of its layers, and attention.

The output of each layer of a trunk, for a batch."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from unifier.analysis.attention import STATISTICS, Aligned, attention_statistics, between_words
from unifier.data.dataloader import Batch, collate, cut
from unifier.data.dataset import split_of
from unifier.data.encoding import Encoded
from unifier.experiment import Arm
from unifier.heads.text_generation import AttentiveHead, before
from unifier.nn.attention import Visible
from unifier.trunks.trunk import AttentiveTrunk, Trunk
from unifier_tokenizers import NOWHERE, SubwordTokenizer, Tokens
from unifier_tokenizers.text import WORD

COLUMNS = 2048
"""The most columns at a time, padding counted: attention takes memory by the square of N."""


def spread(length: int, most: int) -> list[int]:
    """At most so many places of a sequence, evenly spaced, always the same."""
    return [i * length // most for i in range(most)] if length > most else list(range(length))


def batches(arm: Arm, split: Encoded, rows: Sequence[int]) -> Iterator[tuple[list[int], Tokens, Batch]]:
    """Some rows of a split, those of like length together: which, as columns where the head's weights are, as data."""
    device = next((parameter.device for parameter in arm.head.parameters()), torch.device("cpu"))
    lengths = split.lengths()
    order = np.array(rows, np.int64)
    for part in cut(order[np.lexsort(lengths[order].T[::-1])], lengths, COLUMNS):
        batch = collate(split, part).to(device)
        yield part.tolist(), arm.embed(batch), batch


def representations(trunk: Trunk, arm: Arm, split: Encoded, rows: Sequence[int]) -> dict[str, Tensor]:
    """For each layer, as `by_layer` names them, the mean of each row's real columns: (rows, D) float32."""
    found: dict[str, dict[int, Tensor]] = {}
    for part, tokens, _ in batches(arm, split, rows):
        for layer, columns in by_layer(trunk, tokens, arm.head.visible).items():
            means = mean_columns(columns, tokens.mask).cpu()
            found.setdefault(layer, {}).update(zip(part, means, strict=True))
    return {layer: torch.stack([means[row] for row in rows]) for layer, means in found.items()}


def statistics(trunk: AttentiveTrunk, arm: Arm, split: Encoded, rows: Sequence[int]) -> list[dict[str, float | None]]:
    """For each layer the mean of each of `STATISTICS` over the rows' columns; None where there is nothing to say."""
    found: list[list[dict[str, Tensor]]] = []
    for part, tokens, _ in batches(arm, split, rows):
        places = [arm.tokenizer.coordinates(split.units(row)).T for row in part]
        coordinates = pad_sequence(places, batch_first=True).mT.to(tokens.matrix.device)
        placed = tokens.mask & (tokens.positions[:, 0] != NOWHERE)
        visible = arm.head.visible
        weights = trunk.attention(tokens, visible)[1]
        found.append([attention_statistics(each, tokens.mask, visible, coordinates, placed) for each in weights])
    return [
        {name: _mean(torch.cat([batch[name] for batch in layer])) for name in STATISTICS}
        for layer in zip(*found, strict=True)
    ]


def _mean(values: Tensor) -> float | None:
    mean = float(values.nanmean())
    return None if math.isnan(mean) else mean


def last_attention(trunk: AttentiveTrunk, arm: Arm, split: Encoded, row: int) -> Tensor:
    """One row's attention in the last layer: (H, N, N)."""
    ((_, tokens, _),) = batches(arm, split, [row])
    return trunk.attention(tokens, arm.head.visible)[1][-1][0].cpu()


def aligned(trunk: Trunk, arm: Arm, split: Encoded, rows: Sequence[int]) -> dict[int, Aligned]:
    """For each row of a translation its words, and where the decoder looks; `split` is the arm's "val", encoded.

    Empty for an arm that is none: subwords in, a text out, and attention between them. Left out are sentences that the
    vocabulary cuts into other words than `WORD` does, as one of level "word" cuts "n'".
    """
    head, tokenizer = arm.head, arm.tokenizer
    if not (isinstance(head, AttentiveHead) and isinstance(tokenizer, SubwordTokenizer)):
        return {}
    examples = split_of(arm.source, "val")
    gold = getattr(examples, "alignment", None)
    found: dict[int, Aligned] = {}
    for part, tokens, batch in batches(arm, split, rows):
        attention = head.attention(head.read(trunk, tokens), before(batch.target))
        for one, row in zip(attention, part, strict=True):
            index = int(split.indices[row])
            source, target = (WORD.findall(text) for text in examples[index])
            source_words = tokenizer.vocabulary.words(split.values[row].tolist())
            target_words = head.vocabulary.words(split.target(row).tolist())
            if (source_words[-1], target_words[-1]) == (len(source), len(target)):
                cut_out = one[: len(target_words), : len(source_words)]
                attended = between_words(cut_out, target_words, source_words)
                found[row] = Aligned(source, target, attended, set(gold(index)) if gold else set())
    return found


def by_layer(trunk: Trunk, tokens: Tokens, visible: Visible = "all") -> dict[str, Tensor]:
    """What enters the trunk ("columns"), and what each layer gives back, each (B, N, D).

    A layer is named as the trunk's parameters are: "blocks.0", "layers.0". A trunk that tells of none by `readers` is
    one layer, "trunk".

    The layer itself may be only the part beside the residual path, as a convolution is: hence what reads it is asked.
    """
    found = {"columns": tokens.matrix.transpose(1, 2)}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found[name] = inputs[0]

        return hook

    handles = [module.register_forward_pre_hook(keep(name)) for name, module in trunk.readers().items()]
    try:
        answer = trunk(tokens, visible)
    finally:
        for handle in handles:
            handle.remove()
    if len(found) == 1:
        found["trunk"] = answer.matrix.transpose(1, 2)
    return found


def mean_columns(columns: Tensor, mask: Tensor) -> Tensor:
    """The mean (B, D) of those columns (B, N, D) that are real by mask (B, N)."""
    return columns.float().masked_fill(~mask[:, :, None], 0).sum(1) / mask.sum(1, keepdim=True)
