"""A spectrogram or waveform cut into columns, and joined again."""

from dataclasses import dataclass
from typing import TypeVar, final

import torch
from torch import Tensor
from torch.nn import functional

Count = TypeVar("Count", int, Tensor)


def tiles_over(side: Count, patch: int, stride: int) -> Count:
    """How many tiles, each a step after the one before it, it takes to reach over a side: one at least."""
    further = -((patch - side) // stride)
    return further * (further > 0) + 1


@final
@dataclass(frozen=True)
class Tiles:
    """Tiles of a plane (frames, bands), one a column (P, N): frame after frame, and all tiles of one time in turn.

    A waveform is a plane of one band, whose frames are samples.
    """

    bands: int
    patch: tuple[int, int]
    """The sides of a tile (frames, bands)."""
    stride: tuple[int, int]
    """The steps between tiles (frames, bands); below the patch, tiles overlap."""
    silence: float
    """What fills a tile that reaches past the plane."""

    @property
    def across(self) -> int:
        """How many tiles stand at one time."""
        return tiles_over(self.bands, self.patch[1], self.stride[1])

    def times(self, frames: Count) -> Count:
        """How many tiles stand one after the other where there are so many frames."""
        return tiles_over(frames, self.patch[0], self.stride[0])

    def frames(self, times: Tensor) -> Tensor:
        """How many frames so many tiles reach over."""
        return (times - 1) * self.stride[0] + self.patch[0]

    def cut(self, plane: Tensor) -> Tensor:
        """Planes (..., frames, bands) -> columns (..., P, N)."""
        counts = self.times(plane.shape[-2]), self.across
        past = [
            (count - 1) * step + side - there
            for count, step, side, there in zip(counts, self.stride, self.patch, plane.shape[-2:], strict=True)
        ]
        plane = functional.pad(plane, (0, past[1], 0, past[0]), value=self.silence)
        tiles = plane.unfold(-2, self.patch[0], self.stride[0]).unfold(-2, self.patch[1], self.stride[1])
        return tiles.flatten(-2).flatten(-3, -2).mT.contiguous()

    def join(self, values: Tensor, times: Tensor) -> Tensor:
        """Columns (B, P, N), of which each example has its `times` (B,), -> planes (B, frames, bands); padding is 0."""
        side, (step, rise) = self.patch[0], self.stride
        tiles = values.unflatten(1, self.patch).unflatten(-1, (-1, self.across)).permute(0, 3, 1, 4, 2)
        rows = tiles[..., :rise].flatten(3)  # B, T, side, bands; of tiles (B, T, side, G, height)
        if self.patch[1] > rise:
            rows = torch.cat([rows, tiles[..., -1, rise:]], dim=3)
        rows = rows[..., : self.bands]
        plane = rows[:, :, :step].flatten(1, 2)
        if side == step:
            return plane
        # What an example's last tile reaches beyond its step stands in no later one.
        plane = functional.pad(plane, (0, 0, 0, side - step))
        each = torch.arange(len(values), device=values.device)[:, None]
        beyond, last = torch.arange(side - step, device=values.device), times[:, None] - 1
        plane[each, (last + 1) * step + beyond] = rows[each, last, step + beyond]
        return plane
