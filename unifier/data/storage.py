"""Many tensors of different lengths in one memory-mapped array.

An array that may be larger than memory."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, final
from weakref import finalize

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from unifier_tokenizers import InputError


@final
class RaggedArray:
    """Tensors (..., n) of unlike n, one after the other in a file: `file`, or one that lives as long as they do.

    They take memory only while they are read, so a split may be larger than memory. n comes first in the file: a
    column's numbers lie together, and a batch is gathered column by column.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._written: tuple[MemmapArray, MemmapArray] | None = None
        """All columns, and where each tensor's begin, with where the last one ends."""
        self._held: _Held | None = None

    @staticmethod
    def from_array(columns: NDArray[Any], lengths: Sequence[int] | NDArray[np.int64]) -> "RaggedArray":
        """Tensors that lie in an array already, n first, of these lengths."""
        bounds = np.cumsum([0, *lengths], dtype=np.int64)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # and nobody writes
            return RaggedArray._of(_Held(torch.from_numpy(columns), bounds[:-1], bounds[1:]))

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> "RaggedArray":
        """Those of them, in this order, where they lie."""
        rows, held = np.asarray(indices, np.int64), self._read()
        return RaggedArray._of(held._replace(starts=held.starts[rows], ends=held.ends[rows]))

    @staticmethod
    def _of(held: "_Held") -> "RaggedArray":
        packed = RaggedArray()
        packed._held = held
        return packed

    def append(self, part: Tensor) -> None:
        """Add a tensor (..., n); none can be added once one was read.

        Raises InputError where its type or its other sides are not those of the first.
        """
        array = part.movedim(-1, 0).contiguous().numpy()
        if self._written is None:
            self._written = MemmapArray(array.dtype, array.shape[1:], self._file), MemmapArray(np.int64)
            self._written[1].append(np.zeros(1, np.int64))
        first, bounds = self._written
        if (array.dtype, array.shape[1:]) != (first.dtype, first.row_shape):
            raise InputError(
                f"an example of {_said(array.dtype, array.shape[1:])} stands beside one of "
                f"{_said(first.dtype, first.row_shape)}: encode all alike"
            )
        first.append(array)
        bounds.append(np.array([len(first)]))

    @property
    def layout(self) -> str:
        """The type and the sides that all of them have."""
        columns = self._read().columns.numpy()
        return _said(columns.dtype, columns.shape[1:])

    def __getitem__(self, index: int) -> Tensor:
        columns, starts, ends = self._read()
        return columns[starts[index] : ends[index]].movedim(0, -1)

    def lengths(self, indices: Sequence[int] | NDArray[np.int64] | slice = slice(None)) -> NDArray[np.int32]:
        """n of each of them, or of some."""
        _, starts, ends = self._read()
        return (ends[indices] - starts[indices]).astype(np.int32)

    def padded(
        self, indices: Sequence[int] | NDArray[np.int64], pad_value: float, crop: "Crop | None" = None
    ) -> tuple[Tensor, Tensor]:
        """Some of them side by side (B, ..., n), padded to the longest with `fill`; and where they are real (B, n).

        Of each no more than a `piece` is read, where one is given.
        """
        rows, held = np.asarray(indices), self._read()
        starts, ends = torch.from_numpy(held.starts[rows]), torch.from_numpy(held.ends[rows])
        if crop is not None:
            starts = starts + crop.start
            ends = ends.minimum(starts + crop.most)
        lengths = ends - starts
        place = torch.arange(int(lengths.max()))
        real = place < lengths[:, None]
        columns = held.columns[(starts[:, None] + place).clamp_(max=len(held.columns) - 1)]
        if not real.all():
            columns[~real] = pad_value
        return columns.movedim(1, -1), real

    def _read(self) -> "_Held":
        if self._held is None:
            assert self._written is not None
            columns, bounds = (part.read() for part in self._written)
            self._held = _Held(torch.from_numpy(columns), bounds[:-1], bounds[1:])
        return self._held


class Crop(NamedTuple):
    """A stretch of each of some tensors (..., n): from `start` (B,) on, `most` of n or as many as there are."""

    start: Tensor
    most: int


class _Held(NamedTuple):
    """What is read: all columns (n, ...), and where each tensor's begin and end."""

    columns: Tensor
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def _said(dtype: np.dtype[np.generic], sides: tuple[int, ...]) -> str:
    return f"{dtype} ({', '.join([*map(str, sides), 'n'])})"


@final
class MemmapArray:
    """Rows (n, ...) that are written one after the other to a file, and read from there.

    They take memory only while they are read, and the system takes that back where it is short. The file is `file`, or
    one without a name that lives as long as they do.
    """

    def __init__(self, dtype: DTypeLike, sides: tuple[int, ...] = (), file: Path | None = None) -> None:
        self.dtype, self.row_shape = np.dtype(dtype), sides
        self._rows = 0
        # Closed once it is mapped, or with this.
        self._file = TemporaryFile() if file is None else file.open("w+b")  # noqa: SIM115
        finalize(self, self._file.close)
        self._array: NDArray[Any] | None = None

    @staticmethod
    def from_array(rows: NDArray[Any]) -> NDArray[Any]:
        """The same rows, which take no memory any more."""
        mapped = MemmapArray(rows.dtype, rows.shape[1:])
        mapped.append(rows)
        return mapped.read()

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows (m, ...); none can be added once they were read."""
        self._file.write(np.ascontiguousarray(rows, self.dtype).data)
        self._rows += len(rows)

    def __len__(self) -> int:
        return self._rows

    def read(self) -> NDArray[Any]:
        """All rows (n, ...)."""
        if self._array is None:
            self._file.flush()
            shape = (self._rows, *self.row_shape)
            # Writable, or torch warns; nobody writes. Nothing at all cannot be mapped.
            mapped = np.memmap(self._file, self.dtype, "r+", shape=shape) if self._rows else np.empty(shape, self.dtype)
            self._file.close()
            self._array = np.asarray(mapped)
        return self._array
