"""Many tensors of unlike length in one memory-mapped array."""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.mapped import Mapped
from unifier_tokenizers import InputError


@final
class Packed:
    """Tensors (..., n) of unlike n, one after the other in a file that lives as long as they do.

    They take memory only while they are read, so a split may be larger than memory. n comes first in the file: a
    column's numbers lie together, and a batch is gathered column by column.
    """

    def __init__(self) -> None:
        self._columns: Mapped | None = None
        self._starts = Mapped(np.int64)
        self._starts.append(np.zeros(1, np.int64))

    def append(self, part: Tensor) -> None:
        """Add a tensor (..., n); none can be added once one was read.

        Raises InputError where its type or its other sides are not those of the first.
        """
        array = part.movedim(-1, 0).contiguous().numpy()
        if self._columns is None:
            self._columns = Mapped(array.dtype, array.shape[1:])
        first = self._columns
        if (array.dtype, array.shape[1:]) != (first.dtype, first.sides):
            raise InputError(
                f"an example of {_said(array.dtype, array.shape[1:])} stands beside one of "
                f"{_said(first.dtype, first.sides)}: encode all alike"
            )
        first.append(array)
        self._starts.append(np.array([len(first)]))

    def __getitem__(self, index: int) -> Tensor:
        start, end = self._starts.read()[index : index + 2]
        return self._all()[start:end].movedim(0, -1)

    def lengths(self) -> NDArray[np.int32]:
        """n of each of them."""
        return np.diff(self._starts.read()).astype(np.int32)

    def padded(self, indices: Sequence[int] | NDArray[np.int64], fill: float) -> tuple[Tensor, Tensor]:
        """Some of them side by side (B, ..., n), padded to the longest with `fill`; and where they are real (B, n)."""
        rows, bounds = np.asarray(indices), self._starts.read()
        starts, ends = torch.from_numpy(bounds[rows]), torch.from_numpy(bounds[rows + 1])
        lengths = ends - starts
        place = torch.arange(int(lengths.max()))
        real = place < lengths[:, None]
        columns = self._all()[(starts[:, None] + place).clamp_(max=int(bounds[-1]) - 1)]
        if not real.all():
            columns[~real] = fill
        return columns.movedim(1, -1), real

    def _all(self) -> Tensor:
        assert self._columns is not None
        return torch.from_numpy(self._columns.read())


def _said(dtype: np.dtype[np.generic], sides: tuple[int, ...]) -> str:
    return f"{dtype} ({', '.join([*map(str, sides), 'n'])})"
