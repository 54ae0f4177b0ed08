"""The pieces of a sequence lie in the same row of consecutive batches, and every piece occurs once in an epoch."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from unifier.data.dataloader import EvalDataLoader, TrainDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.data.streams import sequences
from unifier_tokenizers import Units

LENGTHS = [5, 1, 9, 3]
"""The number of pieces of each text. A piece has 4 tokens, except for the last piece, which has 2 tokens."""
PIECES = [(text, k) for text, count in enumerate(LENGTHS) for k in range(count)]


def split_of(indices: list[int]) -> EncodedSplit:
    """Return the pieces at `indices`. The values are the number of the text."""
    units = [
        Units(torch.full((n,), text), torch.arange(4 * k, 4 * k + n)[None])
        for text, k in (PIECES[i] for i in indices)
        for n in [2 if k == LENGTHS[text] - 1 else 4]
    ]
    return EncodedSplit(units, [torch.tensor(0)] * len(units), indices)


WHOLE = split_of([*range(len(PIECES))])


def test_sequences_begin_at_position_0_and_after_a_missing_piece() -> None:
    assert [len(part) for part in sequences(WHOLE)] == LENGTHS
    assert [part.tolist() for part in sequences(split_of([0, 1, 3, 4, 6, 7]))] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("max_tokens", [4, 13, 1000])
def test_train_rows_continue(max_tokens: int) -> None:
    """In one epoch, a row changes its sequence only at the end of a text, at the wrap and at the end of the row."""

    def draw(seed: int, done: int = 0) -> list[list[int]]:
        loader = TrainDataLoader({"a": WHOLE}, max_tokens=max_tokens, seed=seed, budget={"epochs": 3}, streams=["a"])
        loader.batches_done = done
        return [batch.example_indices.tolist() for _, batch in loader]

    batches = draw(0)
    assert draw(0) == batches != draw(1)
    assert draw(0, done=2) == batches[2:]
    num_rows = max(max_tokens // 4, 1)
    assert max(map(len, batches)) == min(num_rows, len(PIECES))
    epochs = np.array_split(np.array(batches, dtype=object), 3) if len(batches) % 3 == 0 else []
    assert len(epochs) == 3
    for epoch in epochs:
        assert sorted(i for batch in epoch for i in batch) == [*range(len(PIECES))]
        breaks = sum(
            after != before + 1 and PIECES[before][1] != LENGTHS[PIECES[before][0]] - 1
            for first, second in pairwise(epoch)
            for before, after in zip(first, second, strict=False)
        )
        assert breaks == 0  # A text that is cut by the wrap ends with its row.


@pytest.mark.parametrize("max_tokens", [4, 9, 1000])
def test_evaluation_reads_each_text_in_one_row(max_tokens: int) -> None:
    loader = EvalDataLoader({"a": WHOLE}, max_tokens=max_tokens, streams=["a"])
    read: dict[int, list[int]] = {}
    previous: list[int] = []
    for _, batch in loader:
        for row, i in enumerate(batch.example_indices.tolist()):
            read.setdefault(PIECES[i][0], []).append(PIECES[i][1])
            assert PIECES[i][1] == 0 or previous[row] == i - 1
        previous = batch.example_indices.tolist()
        assert len(previous) * 4 <= max(max_tokens, 4)
    assert read == {text: [*range(count)] for text, count in enumerate(LENGTHS)}
