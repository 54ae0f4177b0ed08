"""Streams: batches in which the pieces of a long sequence lie in the same row of consecutive batches."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from unifier.data.encoding import EncodedSplit
from unifier.data.storage import Crop

Rows = NDArray[np.int64]
"""Row indices of examples in an encoded split."""


def sequences(split: EncodedSplit) -> list[Rows]:
    """Return the pieces of each sequence. A piece at position 0, or after a missing example, begins a sequence."""
    rows = np.arange(len(split))
    first, _ = split.positions.padded(rows, 0, Crop(torch.zeros(len(rows), dtype=torch.int64), 1))
    begins = (first.flatten(1) == 0).all(1).numpy() | (np.diff(split.indices, prepend=-2) != 1)
    return np.split(rows, np.flatnonzero(begins)[1:])


def train_streams(split: EncodedSplit, num_rows: int, seed: int) -> Iterator[Rows]:
    """Yield the batches of endless epochs. Equal seeds produce equal batches.

    In each epoch, the sequences are joined in a new random order, which begins at a random piece. The pieces are then
    divided into `num_rows` rows of almost equal length, and the k-th batch contains the k-th piece of each row.
    """
    generator, parts = torch.Generator().manual_seed(seed), sequences(split)
    while True:
        order = np.concatenate([parts[k] for k in torch.randperm(len(parts), generator=generator).tolist()])
        order = np.roll(order, int(torch.randint(len(order), (), generator=generator)))
        yield from _columns(np.array_split(order, min(num_rows, len(order))))


def eval_streams(split: EncodedSplit, num_rows: int) -> Iterator[Rows]:
    """Yield the batches of one epoch, in which each row is one complete sequence."""
    longest_first = sorted(sequences(split), key=len, reverse=True)
    for start in range(0, len(longest_first), num_rows):
        yield from _columns(longest_first[start : start + num_rows])


def _columns(rows: Sequence[Rows]) -> Iterator[Rows]:
    """Yield the k-th piece of each row. The first row must be the longest, and the last row the shortest."""
    for k in range(len(rows[0])):
        yield np.array([row[k] for row in rows if k < len(row)])
