"""The share of a batch that one of several processes computes, and random numbers that do not depend on the share."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from unifier_tokenizers.errors import InputError


class BatchShare(NamedTuple):
    """Consecutive examples of a batch, from `start` to `stop`."""

    start: int
    stop: int
    total: int
    """The number of examples in the whole batch."""
    weight: float
    """The share's part of all targets in the batch. The losses of all shares, times their weights, add up."""

    @staticmethod
    def of(counts: Sequence[int], rank: int, size: int) -> "BatchShare":
        """Return the share of one process.

        A process without targets computes the example with most targets, with weight 0. Therefore, all processes have
        gradients of the same parameters.

        Args:
            counts: The number of targets of each example in the batch.
            rank: The rank of the process, from 0 to `size` - 1.
            size: The number of processes.
        """
        start, stop = (k * len(counts) // size for k in (rank, rank + 1))
        own = sum(counts[start:stop])
        if not own:
            start = counts.index(max(counts))
            stop = start + 1
        return BatchShare(start, stop, len(counts), own / max(sum(counts), 1))

    def rows(self, whole: Tensor) -> Tensor:
        """Return the share's rows of a tensor (B, ...). The tensor may contain several copies of the batch, (K B, ...).

        The share's rows of the copies follow each other.
        """
        if len(whole) == self.total:
            return whole[self.start : self.stop]
        return whole.view(-1, self.total, *whole.shape[1:])[:, self.start : self.stop].flatten(0, 1)


_share: BatchShare | None = None
"""The share that this process computes at present, or None for whole batches."""


@contextmanager
def use_share(share: BatchShare | None) -> Generator[None]:
    """Let layers draw random numbers for the whole batch, and use only the numbers of the share's examples."""
    global _share
    previous, _share = _share, share
    try:
        yield
    finally:
        _share = previous


def is_shared() -> bool:
    """Return True if this process computes only a share of a batch at present."""
    return _share is not None


def drawn_shape(shape: torch.Size) -> torch.Size:
    """Return the shape of the random numbers to draw for a tensor (B, ...): the shape with all examples of the batch.

    Raises:
        InputError: The first axis of the tensor is not the axis of the examples.
    """
    if _share is None:
        return shape
    copies, rest = divmod(shape[0], _share.stop - _share.start)
    if rest:
        raise InputError(
            f"random numbers of the shape {tuple(shape)} are drawn, not one row per example: use one process"
        )
    return torch.Size((copies * _share.total, *shape[1:]))


def own_rows(drawn: Tensor) -> Tensor:
    """Return the rows of this process's examples from random numbers of the shape `drawn_shape`."""
    return drawn if _share is None else _share.rows(drawn)


def sum_over_shares(own: Tensor) -> Tensor:
    """Return the sum of a tensor over the shares of all processes, with gradients to the shares of all processes.

    All processes must call this function equally often, with tensors of the same shape.
    """
    if _share is None:
        return own
    from torch.distributed.nn.functional import all_reduce

    # A share of weight 0 repeats an example of another share.
    return all_reduce(own if _share.weight else own * 0)


def mean_over_shares(own: Tensor) -> Tensor:
    """Return the mean of all values in the shares of all processes, which may have different numbers of values."""
    if _share is None:
        return own.mean()
    total, count = sum_over_shares(torch.stack([own.sum(), own.new_tensor(own.numel())]))
    return total / count
