"""Patches of spectrograms, waveforms and pictures: cut into columns, and put together again."""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers.tokens import NO_POSITION

PerAxis = TypeVar("PerAxis", int, Tensor)


def num_tiles(side: PerAxis, patch: int, stride: int) -> PerAxis:
    """Return the number of tiles, one every `stride`, that cover a side; at least 1."""
    further = -((patch - side) // stride)
    return further * (further > 0) + 1


@final
@dataclass(frozen=True)
class Tiles:
    """A grid of tiles on a plane (frames, bands), one tile per column (P, N), ordered by time and then by band.

    A waveform is a plane of one band, and its frames are samples.
    """

    bands: int
    patch: tuple[int, int]
    """The sides of a tile (frames, bands)."""
    stride: tuple[int, int]
    """The steps between tiles (frames, bands); tiles overlap if a step is below the patch."""
    pad_value: float
    """The value beyond the plane, in tiles that exceed it."""

    @property
    def tiles_per_step(self) -> int:
        """The number of tiles at one time step."""
        return num_tiles(self.bands, self.patch[1], self.stride[1])

    def num_steps(self, frames: PerAxis) -> PerAxis:
        """Return the number of time steps that cover this number of frames."""
        return num_tiles(frames, self.patch[0], self.stride[0])

    def num_frames(self, steps: Tensor) -> Tensor:
        """Return the number of frames that this number of time steps covers."""
        return (steps - 1) * self.stride[0] + self.patch[0]

    def cut(self, plane: Tensor) -> Tensor:
        """Cut planes (..., frames, bands) into columns (..., P, N)."""
        counts = self.num_steps(plane.shape[-2]), self.tiles_per_step
        excess = [
            (count - 1) * step + side - size
            for count, step, side, size in zip(counts, self.stride, self.patch, plane.shape[-2:], strict=True)
        ]
        plane = functional.pad(plane, (0, excess[1], 0, excess[0]), value=self.pad_value)
        tiles = plane.unfold(-2, self.patch[0], self.stride[0]).unfold(-2, self.patch[1], self.stride[1])
        return tiles.flatten(-2).flatten(-3, -2).mT.contiguous()

    def join(self, values: Tensor, steps: Tensor) -> Tensor:
        """Join columns (B, P, N) into planes (B, frames, bands).

        Args:
            values: The columns of padded examples; padding is 0.
            steps: (B,) the number of time steps of each example.
        """
        side, (step, rise) = self.patch[0], self.stride
        tiles = values.unflatten(1, self.patch).unflatten(-1, (-1, self.tiles_per_step)).permute(0, 3, 1, 4, 2)
        rows = tiles[..., :rise].flatten(3)  # Tiles (B, T, side, G, height) become (B, T, side, bands).
        if self.patch[1] > rise:
            rows = torch.cat([rows, tiles[..., -1, rise:]], dim=3)
        rows = rows[..., : self.bands]
        plane = rows[:, :, :step].flatten(1, 2)
        if side == step:
            return plane
        # The last tile of an example extends beyond its step, and no later tile covers those frames.
        plane = functional.pad(plane, (0, 0, 0, side - step))
        example = torch.arange(len(values), device=values.device)[:, None]
        beyond, last = torch.arange(side - step, device=values.device), steps[:, None] - 1
        plane[example, (last + 1) * step + beyond] = rows[example, last, step + beyond]
        return plane


class ImageBatch(NamedTuple):
    """Pictures of a batch, each in the upper left corner of its canvas."""

    pixels: Tensor
    """(B, C, H, W)."""
    sizes: Tensor
    """(B, 2) int64: the height and width of each picture, in pixels."""


def patches_to_images(values: Tensor, positions: Tensor, patch: int, stride: int) -> ImageBatch:
    """Put patches together into pictures.

    A picture's size is the area of its patches. It includes the black pixels that filled its last patches.

    Args:
        values: (B, C x patch x patch, N) patches.
        positions: (B, 2, N) the row and column of each patch.
        patch: The side of a patch, in pixels.
        stride: The step between patches, in pixels.

    Returns:
        The pictures, with 0 beyond a picture's own size.
    """
    sizes = positions.amax(2) * stride + patch
    height, width = sizes.amax(0).tolist()
    pixels = values.unflatten(1, (-1, patch * patch)).flatten(2)
    index = _pixel_index(positions, patch, stride, height, width)[:, None].expand_as(pixels)
    canvas = pixels.new_zeros(*pixels.shape[:2], height * width + 1).scatter_(2, index, pixels)
    return ImageBatch(canvas[..., :-1].unflatten(2, (height, width)), sizes)


def images_to_patches(pixels: Tensor, positions: Tensor, patch: int, stride: int) -> Tensor:
    """Cut pictures (B, C, H, W) into patches (B, C x patch x patch, N).

    Args:
        pixels: The pictures.
        positions: (B, 2, N) the row and column of each patch; patches at `NO_POSITION` are 0.
        patch: The side of a patch, in pixels.
        stride: The step between patches, in pixels.
    """
    index = _pixel_index(positions, patch, stride, *pixels.shape[2:])[:, None].expand(-1, pixels.shape[1], -1)
    values = functional.pad(pixels.flatten(2), (0, 1)).gather(2, index)
    return values.unflatten(2, (patch * patch, -1)).flatten(1, 2)


def _pixel_index(positions: Tensor, patch: int, stride: int, height: int, width: int) -> Tensor:
    """Return the flat index of each patch's pixels in a height x width picture: (B, patch x patch x N).

    The index of a patch at `NO_POSITION` is one past the picture's last pixel.
    """
    offsets = torch.arange(patch, device=positions.device)
    inside = (offsets[:, None] * width + offsets).flatten()
    corners = (positions[:, 0] * width + positions[:, 1]) * stride
    index = corners[:, None] + inside[:, None]
    return index.masked_fill_(positions[:, :1] == NO_POSITION, height * width).flatten(1)
