"""The shards of a packed split: files with consecutive examples, of which only a few are on the local disk."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.shard_folder import PackFile, PackStore
from unifier.data.storage import Crop, RaggedArray, StoredTensors

PartName = Literal["values", "positions", "targets"]

LENGTH_COLUMNS: Mapping[PartName, int] = {"values": 0, "positions": 0, "targets": 1}
"""Column of the lengths of each part in `Shards.lengths`."""


@final
class Shards:
    """The shards of one split.

    Args:
        store: The files of the packed data set.
        files: The file of each shard.
        counts: The number of examples in each shard.
        lengths: The number of tokens N and the length of the stored target of each example, (n, 2) int32.
        window: The number of shards among which training shuffles examples.
    """

    def __init__(
        self,
        store: PackStore,
        files: Sequence[PackFile],
        counts: Sequence[int],
        lengths: NDArray[np.int32],
        window: int,
    ) -> None:
        self.store, self.files, self.lengths, self.window = store, files, lengths, window
        self.bounds = np.cumsum([0, *counts], dtype=np.int64)
        """Row of the first example of each shard, and the number of all examples."""
        self._present: tuple[int, ...] = ()
        self._next: tuple[int, ...] = ()
        self._known_offsets: dict[tuple[int, int], NDArray[np.int64]] = {}

    def part(self, name: PartName) -> StoredTensors:
        """Return the values, positions or targets of all examples."""
        return ShardedTensors(self, name)

    def rows(self, window: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows of all examples in some shards."""
        return np.concatenate([np.arange(*self.bounds[k : k + 2]) for k in window])

    def windows(self, seed: int) -> Iterator[tuple[int, ...]]:
        """Yield the windows of endless epochs: the shards in random order, `window` shards at a time.

        If one window has all shards, the shards keep their order, so the batches are those of a local split.
        """
        generator, count = torch.Generator().manual_seed(seed), len(self.files)
        while True:
            order = torch.randperm(count, generator=generator).tolist() if self.window < count else range(count)
            for start in range(0, count, self.window):
                yield tuple(order[start : start + self.window])

    def announce(self, present: tuple[int, ...], following: tuple[int, ...]) -> None:
        """Set the shards of the present window, and of the next window, which is copied in advance."""
        self._present, self._next = present, following

    def locate(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard of each row."""
        return np.searchsorted(self.bounds, rows, side="right") - 1

    def open(self, shard: int, name: PartName) -> RaggedArray:
        """Return the values, positions or targets of the examples in a shard. A remote shard is copied first."""
        window = [self.files[k] for k in self._present]
        tensors = self.store.tensors(self.files[shard], window)
        self.store.read_ahead([self.files[k] for k in self._present + self._next])
        return RaggedArray.from_tensor(tensors[name], self._offsets(shard, LENGTH_COLUMNS[name]))

    def _offsets(self, shard: int, column: int) -> NDArray[np.int64]:
        """Return the offset of each tensor in a shard, and the total length. Recent results are kept."""
        if (shard, column) not in self._known_offsets:
            while len(self._known_offsets) > 2 * (self.window + 1):
                self._known_offsets.pop(next(iter(self._known_offsets)))
            lengths = self.lengths[slice(*self.bounds[shard : shard + 2]), column]
            self._known_offsets[shard, column] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return self._known_offsets[shard, column]


@final
class ShardedTensors(StoredTensors):
    """Tensors of a packed split. Only the shards of the requested tensors are opened, one after another."""

    def __init__(self, shards: Shards, name: PartName) -> None:
        self._shards, self._column = shards, LENGTH_COLUMNS[name]
        self._name: PartName = name

    @property
    def layout(self) -> str:
        return self._shards.open(0, self._name).layout

    def __getitem__(self, index: int) -> Tensor:
        shard = int(self._shards.locate(np.array(index)))
        return self._shards.open(shard, self._name)[int(index - self._shards.bounds[shard])]

    def lengths(self, indices: Sequence[int] | NDArray[np.int64] | slice = slice(None)) -> NDArray[np.int32]:
        return self._shards.lengths[indices, self._column]

    def padded(
        self, indices: Sequence[int] | NDArray[np.int64], pad_value: float, crop: Crop | None = None
    ) -> tuple[Tensor, Tensor]:
        rows = np.asarray(indices)
        owners = self._shards.locate(rows)
        parts = list[tuple[Tensor, Tensor, Tensor]]()
        for shard in np.unique(owners).tolist():
            places = np.flatnonzero(owners == shard)
            own_crop = None if crop is None else Crop(crop.start[places], crop.length)
            local = rows[places] - self._shards.bounds[shard]
            part, mask = self._shards.open(shard, self._name).padded(local, pad_value, own_crop)
            parts.append((torch.from_numpy(places), part.movedim(-1, 1), mask))
        width, (_, first, _) = max(mask.shape[1] for _, _, mask in parts), parts[0]
        batch = first.new_zeros(len(rows), width, *first.shape[2:])
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for places, part, own_mask in parts:
            batch[places, : part.shape[1]] = part
            mask[places, : part.shape[1]] = own_mask
        if not mask.all():
            batch[~mask] = pad_value
        return batch.movedim(1, -1), mask
