"""An array that may be larger than memory."""

from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, final
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray


@final
class Mapped:
    """Rows (n, ...) that are written one after the other to a file, and read from there.

    They take memory only while they are read, and the system takes that back where it is short. The file is `file`, or
    one without a name that lives as long as they do.
    """

    def __init__(self, dtype: DTypeLike, sides: tuple[int, ...] = (), file: Path | None = None) -> None:
        self.dtype, self.sides = np.dtype(dtype), sides
        self._rows = 0
        # Closed once it is mapped, or with this.
        self._file = TemporaryFile() if file is None else file.open("w+b")  # noqa: SIM115
        finalize(self, self._file.close)
        self._array: NDArray[Any] | None = None

    @staticmethod
    def of(rows: NDArray[Any]) -> NDArray[Any]:
        """The same rows, which take no memory any more."""
        mapped = Mapped(rows.dtype, rows.shape[1:])
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
            shape = (self._rows, *self.sides)
            # Writable, or torch warns; nobody writes. Nothing at all cannot be mapped.
            mapped = np.memmap(self._file, self.dtype, "r+", shape=shape) if self._rows else np.empty(shape, self.dtype)
            self._file.close()
            self._array = np.asarray(mapped)
        return self._array
