"""A spectrogram or waveform cut into columns, and joined again.

Patches back to the pictures they were cut from, and pictures to patches again."""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers.tokens import NO_POSITION

PerAxis = TypeVar("PerAxis", int, Tensor)


def num_tiles(side: PerAxis, patch: int, stride: int) -> PerAxis:
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
        return num_tiles(self.bands, self.patch[1], self.stride[1])

    def times(self, frames: PerAxis) -> PerAxis:
        """How many tiles stand one after the other where there are so many frames."""
        return num_tiles(frames, self.patch[0], self.stride[0])

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


class ImageBatch(NamedTuple):
    """Pictures of a batch, each in the upper left corner of its canvas."""

    pixels: Tensor
    """(B, C, H, W)."""
    sizes: Tensor
    """(B, 2) int64: each picture's own height and width, in pixels."""


def patches_to_images(values: Tensor, positions: Tensor, patch: int, stride: int) -> ImageBatch:
    """Patches (B, C x patch x patch, N) at positions (B, 2, N) put together, with 0 beyond a picture's own size.

    A picture is as large as its patches make it: the black that filled up the last ones has become part of it.
    """
    sizes = positions.amax(2) * stride + patch
    height, width = sizes.amax(0).tolist()
    pixels = values.unflatten(1, (-1, patch * patch)).flatten(2)
    index = _places(positions, patch, stride, height, width)[:, None].expand_as(pixels)
    canvas = pixels.new_zeros(*pixels.shape[:2], height * width + 1).scatter_(2, index, pixels)
    return ImageBatch(canvas[..., :-1].unflatten(2, (height, width)), sizes)


def images_to_patches(pixels: Tensor, positions: Tensor, patch: int, stride: int) -> Tensor:
    """Pictures (B, C, H, W) cut at positions (B, 2, N) into patches (B, C x patch x patch, N); 0 at `NOWHERE`."""
    index = _places(positions, patch, stride, *pixels.shape[2:])[:, None].expand(-1, pixels.shape[1], -1)
    found = functional.pad(pixels.flatten(2), (0, 1)).gather(2, index)
    return found.unflatten(2, (patch * patch, -1)).flatten(1, 2)


def _places(positions: Tensor, patch: int, stride: int, height: int, width: int) -> Tensor:
    """Where each pixel of each patch lies in its picture, counted row by row: (B, patch x patch x N).

    The pixels of a patch at `NOWHERE` lie one past the picture's last.
    """
    along = torch.arange(patch, device=positions.device)
    inside = (along[:, None] * width + along).flatten()
    corners = (positions[:, 0] * width + positions[:, 1]) * stride
    places = corners[:, None] + inside[:, None]
    return places.masked_fill_(positions[:, :1] == NO_POSITION, height * width).flatten(1)
