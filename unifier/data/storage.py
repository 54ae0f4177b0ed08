"""Arrays stored in files: `MemmapArray` for rows of equal shape, `RaggedArray` for tensors of different lengths."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, NamedTuple, final
from weakref import finalize

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from unifier_tokenizers import InputError


class Crop(NamedTuple):
    """Crops of B tensors (..., n) along the axis n, one crop for each tensor."""

    start: Tensor
    """First index of each crop (B,)."""
    length: int
    """Length of each crop. A crop is shorter if its tensor ends earlier."""


class StoredTensors(ABC):
    """Tensors (..., n) with different lengths n, in one or several files."""

    @property
    @abstractmethod
    def layout(self) -> str:
        """The data type and shape of all tensors, such as "float32 (5, n)"."""

    @abstractmethod
    def __getitem__(self, index: int) -> Tensor: ...

    @abstractmethod
    def lengths(self, indices: Sequence[int] | NDArray[np.int64] | slice = slice(None)) -> NDArray[np.int32]:
        """Return the length n of each tensor at `indices`. By default, return the lengths of all tensors."""

    @abstractmethod
    def padded(
        self, indices: Sequence[int] | NDArray[np.int64], pad_value: float, crop: Crop | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a batch of tensors, padded to the longest tensor of the batch.

        Args:
            indices: Indices of the B tensors.
            pad_value: Value of the padding.
            crop: Crop of each tensor. If `crop` is given, only the crops are read.

        Returns:
            The tensors (B, ..., n) and a mask (B, n), True for entries that are not padding.
        """


@final
class RaggedArray(StoredTensors):
    """Tensors (..., n) with different lengths n, concatenated in a file.

    The file is memory-mapped, so a split may be larger than the memory. The first axis in the file is n. The values of
    one token are therefore adjacent in the file.

    Args:
        file: The file to write. With None, a temporary file is used, which is deleted with this object.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._written: tuple[MemmapArray, MemmapArray] | None = None
        """The concatenated tensors, and the offset of each tensor. The last offset is the total length."""
        self._view: _View | None = None

    @staticmethod
    def from_array(array: NDArray[Any], lengths: Sequence[int] | NDArray[np.int64]) -> "RaggedArray":
        """Return a view of an array (n, ...) as consecutive tensors with the given lengths."""
        bounds = np.cumsum([0, *lengths], dtype=np.int64)
        with warnings.catch_warnings():
            # The warning about read-only arrays is unnecessary, because no code writes to the tensor.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return RaggedArray.from_tensor(torch.from_numpy(array), bounds)

    @staticmethod
    def from_tensor(rows: Tensor, bounds: NDArray[np.int64]) -> "RaggedArray":
        """Return a view of a tensor (n, ...). Part i begins at `bounds[i]` and ends before `bounds[i + 1]`."""
        return RaggedArray._of(_View(rows, bounds[:-1], bounds[1:]))

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> "RaggedArray":
        """Return a view of the tensors at `indices`, in the order of `indices`."""
        rows, view = np.asarray(indices, np.int64), self._read()
        return RaggedArray._of(view._replace(starts=view.starts[rows], ends=view.ends[rows]))

    @staticmethod
    def _of(view: "_View") -> "RaggedArray":
        ragged = RaggedArray()
        ragged._view = view
        return ragged

    def __getstate__(self) -> dict[str, Any]:
        """Return the content for `pickle`. A copy cannot be appended to."""
        return {"_view": self._read(), "_written": None}

    def append(self, tensor: Tensor) -> None:
        """Append a tensor (..., n). Appending is impossible after the first read.

        Raises InputError if the tensor and the first tensor differ in data type, or in the size of an axis other than
        n.
        """
        array = tensor.movedim(-1, 0).contiguous().numpy()
        if self._written is None:
            self._written = MemmapArray(array.dtype, array.shape[1:], self._file), MemmapArray(np.int64)
            self._written[1].append(np.zeros(1, np.int64))
        rows, bounds = self._written
        if (array.dtype, array.shape[1:]) != (rows.dtype, rows.row_shape):
            raise InputError(
                f"one example has tensors of {_layout_name(array.dtype, array.shape[1:])}, but another example has "
                f"{_layout_name(rows.dtype, rows.row_shape)}: encode all examples alike"
            )
        rows.append(array)
        bounds.append(np.array([len(rows)]))

    @property
    def rows(self) -> Tensor:
        """All tensors, concatenated along the first axis (n, ...)."""
        return self._read().array

    @property
    def layout(self) -> str:
        array = self.rows.numpy()
        return _layout_name(array.dtype, array.shape[1:])

    def __getitem__(self, index: int) -> Tensor:
        array, starts, ends = self._read()
        return array[starts[index] : ends[index]].movedim(0, -1)

    def lengths(self, indices: Sequence[int] | NDArray[np.int64] | slice = slice(None)) -> NDArray[np.int32]:
        _, starts, ends = self._read()
        return (ends[indices] - starts[indices]).astype(np.int32)

    def padded(
        self, indices: Sequence[int] | NDArray[np.int64], pad_value: float, crop: Crop | None = None
    ) -> tuple[Tensor, Tensor]:
        rows, view = np.asarray(indices), self._read()
        starts, ends = torch.from_numpy(view.starts[rows]), torch.from_numpy(view.ends[rows])
        if crop is not None:
            starts = starts + crop.start
            ends = ends.minimum(starts + crop.length)
        lengths = ends - starts
        offsets = torch.arange(int(lengths.max()))
        mask = offsets < lengths[:, None]
        batch = view.array[(starts[:, None] + offsets).clamp_(max=len(view.array) - 1)]
        if not mask.all():
            batch[~mask] = pad_value
        return batch.movedim(1, -1), mask

    def _read(self) -> "_View":
        if self._view is None:
            assert self._written is not None
            array, bounds = (part.read() for part in self._written)
            self._view = _View(torch.from_numpy(array), bounds[:-1], bounds[1:])
        return self._view


@final
class MemmapArray:
    """Rows (n, ...) that are first appended to a file, and then read as a memory-mapped array.

    Memory is used only for file pages that are read. The operating system can release these pages.

    Args:
        dtype: Data type of the rows.
        row_shape: Shape of one row.
        file: The file to write. With None, a temporary file is used, which is deleted with this object.
    """

    def __init__(self, dtype: DTypeLike, row_shape: tuple[int, ...] = (), file: Path | None = None) -> None:
        self.dtype, self.row_shape = np.dtype(dtype), row_shape
        self._rows = 0
        # If `read` is never called, the finalizer closes the file.
        self._file = TemporaryFile() if file is None else file.open("w+b")  # noqa: SIM115
        self._path = file or gettempdir()
        finalize(self, _discard, self._file)
        self._array: NDArray[Any] | None = None

    @staticmethod
    def from_array(rows: NDArray[Any]) -> NDArray[Any]:
        """Copy rows to a memory-mapped array, so the memory of the original rows can be freed."""
        mapped = MemmapArray(rows.dtype, rows.shape[1:])
        mapped.append(rows)
        return mapped.read()

    def __getstate__(self) -> dict[str, Any]:
        """Return the content for `pickle`. A copy cannot be appended to."""
        return {"dtype": self.dtype, "row_shape": self.row_shape, "_rows": self._rows, "_array": self.read()}

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows (m, ...). Appending is impossible after the first read."""
        with _naming_errors(self._path):
            self._file.write(np.ascontiguousarray(rows, self.dtype).data)
        self._rows += len(rows)

    def __len__(self) -> int:
        return self._rows

    def read(self) -> NDArray[Any]:
        """Return all rows (n, ...)."""
        if self._array is None:
            with _naming_errors(self._path):
                self._file.flush()
            shape = (self._rows, *self.row_shape)
            # With the mode "r+", torch prints no warning about read-only arrays. An empty file cannot be memory-mapped.
            mapped = np.memmap(self._file, self.dtype, "r+", shape=shape) if self._rows else np.empty(shape, self.dtype)
            self._file.close()
            self._array = np.asarray(mapped)
        return self._array


@contextmanager
def _naming_errors(path: Path | str) -> Generator[None]:
    """Add the path of a file, or the folder of temporary files, to an error such as a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _discard(file: IO[bytes]) -> None:
    with suppress(OSError):  # On a full disk, closing the file fails again.
        file.close()


class _View(NamedTuple):
    """Tensors that are stored in one array. Tensor i is `array[starts[i] : ends[i]]`, with the axis n first."""

    array: Tensor
    """All tensors, concatenated along the first axis (n, ...)."""
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def _layout_name(dtype: np.dtype[np.generic], row_shape: tuple[int, ...]) -> str:
    return f"{dtype} ({', '.join([*map(str, row_shape), 'n'])})"
