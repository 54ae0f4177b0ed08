"""Layer outputs and attention of a trained trunk, for a batch of tokens or for a task's encoded examples."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from unifier.analysis.attention import (
    ATTENTION_STATISTICS,
    AlignedSentence,
    attention_received,
    attention_statistics,
    split_words,
    word_attention,
)
from unifier.data.dataloader import Batch, batch_by_tokens, collate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Task
from unifier.heads.head import Head
from unifier.heads.text_generation import AttentiveTextHead, shift_right
from unifier.nn.attention import AttentionMode
from unifier.trunks.trunk import AttentiveTrunk, Trunk
from unifier_tokenizers import NO_POSITION, SubwordTokenizer, Tokens

MAX_BATCH_TOKENS = 2048
"""Maximum number of tokens in a batch, including padding, to limit the memory of attention."""


def representations(trunk: Trunk, task: Task, split: EncodedSplit, rows: Sequence[int]) -> dict[str, Tensor]:
    """Return each layer's output, averaged over the real tokens of each example.

    Args:
        trunk: A trained trunk.
        task: The task whose tokenizer embeds the examples.
        split: The task's encoded examples.
        rows: The indices of the examples in the split.

    Returns:
        A mapping from layer name to the averaged outputs (rows, D) in float32.
    """
    by_layer: dict[str, dict[int, Tensor]] = {}
    for batch_rows, tokens, _ in iterate_batches(task, split, rows):
        for layer, output in layer_activations(trunk, tokens, task.head.attention_mode).items():
            means = mean_tokens(output, tokens.mask).cpu()
            by_layer.setdefault(layer, {}).update(zip(batch_rows, means, strict=True))
    return {layer: torch.stack([means[row] for row in rows]) for layer, means in by_layer.items()}


def collect_attention_statistics(
    trunk: AttentiveTrunk, task: Task, split: EncodedSplit, rows: Sequence[int]
) -> list[dict[str, float | None]]:
    """Return the mean of each of the `ATTENTION_STATISTICS` over the tokens of the examples, for each layer.

    A statistic that is undefined for all tokens has the mean None.

    Args:
        trunk: A trained trunk.
        task: The task whose tokenizer embeds the examples.
        split: The task's encoded examples.
        rows: The indices of the examples in the split.
    """
    batches: list[list[dict[str, Tensor]]] = []
    mode = trunk.effective_mode(task.head.attention_mode)
    for batch_rows, tokens, _ in iterate_batches(task, split, rows):
        values = [task.tokenizer.position_values(split.units(row)).T for row in batch_rows]
        coordinates = pad_sequence(values, batch_first=True).mT.to(tokens.matrix.device)
        has_position = tokens.mask & (tokens.positions[:, 0] != NO_POSITION)
        layers = trunk.attention(tokens, mode)[1]
        batches.append([attention_statistics(layer, tokens.mask, mode, coordinates, has_position) for layer in layers])
    return [
        {name: _defined_mean(torch.cat([batch[name] for batch in layer])) for name in ATTENTION_STATISTICS}
        for layer in zip(*batches, strict=True)
    ]


def has_input_attention(trunk: Trunk, head: Head) -> TypeGuard[AttentiveTrunk]:
    """Return True if `received_attention` is defined: the trunk has layers with attention, and runs before the head."""
    return isinstance(trunk, AttentiveTrunk) and bool(trunk.layer_outputs()) and head.trunk_output != "input"


def received_attention(trunk: AttentiveTrunk, head: Head, tokens: Tokens) -> Tensor:
    """Return the attention (N,) that each token receives in the last layer, relative to uniform attention.

    Args:
        trunk: A trunk with at least one layer.
        head: The head of the task. If the head reads only the class token, the class token is the only query.
        tokens: The tokens (1, D, N) of one example, without padding.
    """
    weights = trunk.attention(tokens, head.attention_mode)[1][-1][0].float().cpu()
    is_query = torch.arange(weights.shape[-1]) < (1 if head.trunk_output == "cls" else weights.shape[-1])
    return attention_received(weights, is_query)


def align_examples(trunk: Trunk, task: Task, split: EncodedSplit, rows: Sequence[int]) -> dict[int, AlignedSentence]:
    """Return a mapping from example row to the words of a sentence and its translation, with the decoder's attention.

    The mapping is empty if the task's inputs are not subwords or the head has no attention. A sentence is skipped if
    `split_words` returns None for the sentence or for its translation.

    Args:
        trunk: A trained trunk.
        task: A translation task.
        split: The task's encoded split "val".
        rows: The indices of the examples in the split.
    """
    head, tokenizer = task.head, task.tokenizer
    if not (isinstance(head, AttentiveTextHead) and isinstance(tokenizer, SubwordTokenizer)):
        return {}
    examples = open_split(task.source, "val")
    gold_alignment = getattr(examples, "alignment", None)
    aligned: dict[int, AlignedSentence] = {}
    for batch_rows, tokens, batch in iterate_batches(task, split, rows):
        attention = head.attention(head.run_trunk(trunk, tokens), shift_right(batch.target))
        for weights, row in zip(attention, batch_rows, strict=True):
            index = int(split.indices[row])
            source = split_words(tokenizer.vocabulary, split.values[row].tolist(), examples[index].input)
            target = split_words(head.vocabulary, split.target(row).tolist(), examples[index].target)
            if source and target:
                unpadded = weights[: len(target[1]), : len(source[1])]
                by_word = word_attention(unpadded, target[1], source[1])
                gold = set(gold_alignment(index)) if gold_alignment else set[tuple[int, int]]()
                aligned[row] = AlignedSentence(source[0], target[0], by_word, gold)
    return aligned


def layer_activations(trunk: Trunk, tokens: Tokens, mode: AttentionMode = "bidirectional") -> dict[str, Tensor]:
    """Return a mapping from name to activations (B, N, D): the trunk's input and the output of each layer.

    The trunk's input is named "columns". Each layer has the name of its module, such as "blocks.0". A trunk without
    `layer_outputs` has a single layer named "trunk". Each hook records the input of the next module, because a layer's
    own module may be only a residual branch.
    """
    activations = {"columns": tokens.matrix.transpose(1, 2)}

    def record(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            activations[name] = inputs[0]

        return hook

    handles = [module.register_forward_pre_hook(record(name)) for name, module in trunk.layer_outputs().items()]
    try:
        output = trunk(tokens, mode)
    finally:
        for handle in handles:
            handle.remove()
    if len(activations) == 1:
        activations["trunk"] = output.matrix.transpose(1, 2)
    return activations


def iterate_batches(task: Task, split: EncodedSplit, rows: Sequence[int]) -> Iterator[tuple[list[int], Tokens, Batch]]:
    """Yield (rows, tokens, batch) for batches of examples with similar lengths, on the device of the task's head."""
    device = next((parameter.device for parameter in task.head.parameters()), torch.device("cpu"))
    lengths = split.lengths()
    order = np.array(rows, np.int64)
    for batch_rows in batch_by_tokens(order[np.lexsort(lengths[order].T[::-1])], lengths, MAX_BATCH_TOKENS):
        batch = collate(split, batch_rows).to(device)
        yield batch_rows.tolist(), batch.embed(task.tokenizer), batch


def mean_tokens(activations: Tensor, mask: Tensor) -> Tensor:
    """Return the mean (B, D) of activations (B, N, D) over the real tokens, for which `mask` (B, N) is True."""
    return activations.float().masked_fill(~mask[:, :, None], 0).sum(1) / mask.sum(1, keepdim=True)


def spread_indices(length: int, max_indices: int) -> list[int]:
    """Return at most `max_indices` evenly spaced indices of a sequence with `length` entries."""
    return [i * length // max_indices for i in range(max_indices)] if length > max_indices else list(range(length))


def _defined_mean(values: Tensor) -> float | None:
    mean = float(values.nanmean())
    return None if math.isnan(mean) else mean
