"""Many tensors of unlike length in one memory-mapped array."""

from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import final
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from unifier_tokenizers import InputError

Kind = tuple[np.dtype[np.generic], tuple[int, ...]]
"""The type of an array, and its sides but for n."""


def _said(kind: Kind) -> str:
    dtype, sides = kind
    return f"{dtype} ({', '.join([*map(str, sides), 'n'])})"


@final
class Packed:
    """Tensors (..., n) of unlike n, one after the other in a file that lives as long as they do.

    They take memory only while they are read, so a split may be larger than memory. n comes first in the file: a
    column's numbers lie together, and a batch is gathered column by column.
    """

    def __init__(self) -> None:
        self.starts = [0]
        self._file = TemporaryFile()  # noqa: SIM115  closed once it is mapped, or with this
        finalize(self, self._file.close)
        self._kind: Kind | None = None
        self._columns: Tensor | None = None

    def append(self, part: Tensor) -> None:
        """Add a tensor (..., n); none can be added once one was read.

        Raises InputError where its type or its other sides are not those of the first.
        """
        array = part.movedim(-1, 0).contiguous().numpy()
        kind = array.dtype, array.shape[1:]
        self._kind = self._kind or kind
        if kind != self._kind:
            raise InputError(f"an example of {_said(kind)} stands beside one of {_said(self._kind)}: encode all alike")
        self._file.write(array.tobytes())
        self.starts.append(self.starts[-1] + len(array))

    def __getitem__(self, index: int) -> Tensor:
        return self._all()[self.starts[index] : self.starts[index + 1]].movedim(0, -1)

    def length(self, index: int) -> int:
        """n of one of them."""
        return self.starts[index + 1] - self.starts[index]

    def padded(self, indices: Sequence[int], fill: float) -> tuple[Tensor, Tensor]:
        """Some of them side by side (B, ..., n), padded to the longest with `fill`; and where they are real (B, n)."""
        starts = torch.tensor([self.starts[i] for i in indices])
        lengths = torch.tensor([self.length(i) for i in indices])
        place = torch.arange(int(lengths.max()))
        real = place < lengths[:, None]
        columns = self._all()[(starts[:, None] + place).clamp_(max=self.starts[-1] - 1)]
        if not real.all():
            columns[~real] = fill
        return columns.movedim(1, -1), real

    def _all(self) -> Tensor:
        if self._columns is None:
            assert self._kind is not None
            dtype, inner = self._kind
            self._file.flush()
            # Writable, or torch warns; nobody writes.
            mapped = np.memmap(self._file, dtype, "r+", shape=(self.starts[-1], *inner))
            self._file.close()
            self._columns = torch.from_numpy(mapped)
        return self._columns
