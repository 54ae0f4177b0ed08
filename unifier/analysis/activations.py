"""An task's encoded examples through a trained trunk: outputs of its layers, and attention.

The output of each layer of a trunk, for a batch."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from unifier.analysis.attention import ATTENTION_STATISTICS, AlignedSentence, attention_statistics, word_attention
from unifier.data.dataloader import Batch, batch_by_tokens, collate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Task
from unifier.heads.text_generation import AttentiveTextHead, shift_right
from unifier.nn.attention import AttentionMode
from unifier.trunks.trunk import AttentiveTrunk, Trunk
from unifier_tokenizers import NO_POSITION, SubwordTokenizer, Tokens
from unifier_tokenizers.text import WORD_START

MAX_TOKENS = 2048
"""The most columns at a time, padding counted: attention takes memory by the square of N."""


def spread_indices(length: int, most: int) -> list[int]:
    """At most so many places of a sequence, evenly spaced, always the same."""
    return [i * length // most for i in range(most)] if length > most else list(range(length))


def iterate_batches(task: Task, split: EncodedSplit, rows: Sequence[int]) -> Iterator[tuple[list[int], Tokens, Batch]]:
    """Some rows of a split, those of like length together: which, as columns where the head's weights are, as data."""
    device = next((parameter.device for parameter in task.head.parameters()), torch.device("cpu"))
    lengths = split.lengths()
    order = np.array(rows, np.int64)
    for part in batch_by_tokens(order[np.lexsort(lengths[order].T[::-1])], lengths, MAX_TOKENS):
        batch = collate(split, part).to(device)
        yield part.tolist(), task.embed(batch), batch


def representations(trunk: Trunk, task: Task, split: EncodedSplit, rows: Sequence[int]) -> dict[str, Tensor]:
    """For each layer, as `by_layer` names them, the mean of each row's real columns: (rows, D) float32."""
    found: dict[str, dict[int, Tensor]] = {}
    for part, tokens, _ in iterate_batches(task, split, rows):
        for layer, columns in layer_activations(trunk, tokens, task.head.attention_mode).items():
            means = mean_tokens(columns, tokens.mask).cpu()
            found.setdefault(layer, {}).update(zip(part, means, strict=True))
    return {layer: torch.stack([means[row] for row in rows]) for layer, means in found.items()}


def collect_attention_statistics(
    trunk: AttentiveTrunk, task: Task, split: EncodedSplit, rows: Sequence[int]
) -> list[dict[str, float | None]]:
    """For each layer the mean of each of `STATISTICS` over the rows' columns; None where there is nothing to say."""
    found: list[list[dict[str, Tensor]]] = []
    for part, tokens, _ in iterate_batches(task, split, rows):
        places = [task.tokenizer.position_values(split.units(row)).T for row in part]
        coordinates = pad_sequence(places, batch_first=True).mT.to(tokens.matrix.device)
        placed = tokens.mask & (tokens.positions[:, 0] != NO_POSITION)
        mode = task.head.attention_mode
        weights = trunk.attention(tokens, mode)[1]
        found.append([attention_statistics(each, tokens.mask, mode, coordinates, placed) for each in weights])
    return [
        {name: _mean(torch.cat([batch[name] for batch in layer])) for name in ATTENTION_STATISTICS}
        for layer in zip(*found, strict=True)
    ]


def _mean(values: Tensor) -> float | None:
    mean = float(values.nanmean())
    return None if math.isnan(mean) else mean


def last_attention(trunk: AttentiveTrunk, task: Task, split: EncodedSplit, row: int) -> Tensor:
    """One row's attention in the last layer: (H, N, N)."""
    ((_, tokens, _),) = iterate_batches(task, split, [row])
    return trunk.attention(tokens, task.head.attention_mode)[1][-1][0].cpu()


def align_examples(trunk: Trunk, task: Task, split: EncodedSplit, rows: Sequence[int]) -> dict[int, AlignedSentence]:
    """For each row of a translation its words, and where the decoder looks; `split` is the task's "val", encoded.

    Empty for an task that is none: subwords in, a text out, and attention between them. Left out are sentences that the
    vocabulary cuts into other words than `WORD` does, as one of level "word" cuts "n'".
    """
    head, tokenizer = task.head, task.tokenizer
    if not (isinstance(head, AttentiveTextHead) and isinstance(tokenizer, SubwordTokenizer)):
        return {}
    examples = open_split(task.source, "val")
    gold = getattr(examples, "alignment", None)
    found: dict[int, AlignedSentence] = {}
    for part, tokens, batch in iterate_batches(task, split, rows):
        attention = head.attention(head.run_trunk(trunk, tokens), shift_right(batch.target))
        for one, row in zip(attention, part, strict=True):
            index = int(split.indices[row])
            source, target = (WORD_START.findall(text) for text in examples[index])
            source_words = tokenizer.vocabulary.word_ids(split.values[row].tolist())
            target_words = head.vocabulary.word_ids(split.target(row).tolist())
            if (source_words[-1], target_words[-1]) == (len(source), len(target)):
                cut_out = one[: len(target_words), : len(source_words)]
                attended = word_attention(cut_out, target_words, source_words)
                found[row] = AlignedSentence(source, target, attended, set(gold(index)) if gold else set())
    return found


def layer_activations(trunk: Trunk, tokens: Tokens, mode: AttentionMode = "bidirectional") -> dict[str, Tensor]:
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

    handles = [module.register_forward_pre_hook(keep(name)) for name, module in trunk.layer_outputs().items()]
    try:
        answer = trunk(tokens, mode)
    finally:
        for handle in handles:
            handle.remove()
    if len(found) == 1:
        found["trunk"] = answer.matrix.transpose(1, 2)
    return found


def mean_tokens(columns: Tensor, mask: Tensor) -> Tensor:
    """The mean (B, D) of those columns (B, N, D) that are real by mask (B, N)."""
    return columns.float().masked_fill(~mask[:, :, None], 0).sum(1) / mask.sum(1, keepdim=True)
