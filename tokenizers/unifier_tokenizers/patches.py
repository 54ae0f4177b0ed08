"""Functions that cut spectrograms, waveforms and pictures into patches, or join patches."""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers.tokens import NO_POSITION

PerAxis = TypeVar("PerAxis", int, Tensor)


def num_tiles(side: PerAxis, patch: int, stride: int) -> PerAxis:
    """Return the number of tiles that cover a side of a plane; at least 1.

    Args:
        side: The length of the side to cover.
        patch: The length of a tile.
        stride: The step from one tile to the next.
    """
    further = -((patch - side) // stride)
    return further * (further > 0) + 1


@final
@dataclass(frozen=True)
class Tiles:
    """Grid that cuts a plane (frames, bands) into tiles.

    Each tile is one column of a matrix (P, N). Columns are sorted by time, and then by band. A waveform is a plane with
    one band, and each sample is a frame.
    """

    bands: int
    patch: tuple[int, int]
    """The size of a tile as (frames, bands)."""
    stride: tuple[int, int]
    """The step from one tile to the next as (frames, bands). Tiles overlap if the step is smaller than the tile."""
    pad_value: float
    """The value that fills the part of a tile outside the plane."""

    @property
    def tiles_per_step(self) -> int:
        """The number of tiles at one time step."""
        return num_tiles(self.bands, self.patch[1], self.stride[1])

    def num_steps(self, frames: PerAxis) -> PerAxis:
        """Return the number of time steps that cover `frames` frames."""
        return num_tiles(frames, self.patch[0], self.stride[0])

    def num_frames(self, steps: Tensor) -> Tensor:
        """Return the number of frames that `steps` time steps cover."""
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
            values: The columns of the examples. Padding columns are 0.
            steps: The number of time steps of each example (B,).
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
        # The last tile of an example is longer than a step, and no later tile covers the remaining frames of the last
        # tile.
        plane = functional.pad(plane, (0, 0, 0, side - step))
        example = torch.arange(values.shape[0], device=values.device)[:, None]
        beyond, last = torch.arange(side - step, device=values.device), steps[:, None] - 1
        plane[example, (last + 1) * step + beyond] = rows[example, last, step + beyond]
        return plane


class ImageBatch(NamedTuple):
    """Batch of pictures, each in the upper left corner of a canvas H x W."""

    pixels: Tensor
    """The pixels (B, C, H, W)."""
    sizes: Tensor
    """The height and width of each picture in pixels (B, 2), in int64."""


def patches_to_images(values: Tensor, positions: Tensor, patch: int, stride: int) -> ImageBatch:
    """Join patches into pictures.

    The size of a picture is the area that its patches cover, including black pixels in the last patches.

    Args:
        values: The patches (B, C x patch x patch, N).
        positions: The row and column of each patch (B, 2, N).
        patch: The side of a patch, in pixels.
        stride: The step from one patch to the next, in pixels.

    Returns:
        The pictures. Canvas pixels outside a picture are 0.
    """
    sizes = positions.amax(2) * stride + patch
    rows, columns = (positions.amax((0, 2)) + 1).tolist()
    for count in (rows, columns):  # torch.export must know that the canvas is not empty.
        torch._check(count >= 1)  # pyright: ignore[reportPrivateUsage]  It is documented, despite its name.
    height, width = (rows - 1) * stride + patch, (columns - 1) * stride + patch
    pixels = values.unflatten(1, (-1, patch * patch)).flatten(2)
    index = _pixel_index(positions, patch, stride, height, width)[:, None].expand_as(pixels)
    canvas = pixels.new_zeros(*pixels.shape[:2], height * width + 1).scatter_(2, index, pixels)
    return ImageBatch(canvas[..., :-1].unflatten(2, (height, width)), sizes)


def images_to_patches(pixels: Tensor, positions: Tensor, patch: int, stride: int) -> Tensor:
    """Cut pictures (B, C, H, W) into patches (B, C x patch x patch, N).

    Args:
        pixels: The pictures.
        positions: The row and column of each patch (B, 2, N). Patches at `NO_POSITION` are 0.
        patch: The side of a patch, in pixels.
        stride: The step from one patch to the next, in pixels.
    """
    index = _pixel_index(positions, patch, stride, *pixels.shape[2:])[:, None].expand(-1, pixels.shape[1], -1)
    values = functional.pad(pixels.flatten(2), (0, 1)).gather(2, index)
    return values.unflatten(2, (patch * patch, -1)).flatten(1, 2)


def _pixel_index(positions: Tensor, patch: int, stride: int, height: int, width: int) -> Tensor:
    """Return the indices (B, patch x patch x N) of the patches' pixels in a flattened picture height x width.

    For a patch at `NO_POSITION`, every index is height x width, the index after the last pixel.
    """
    offsets = torch.arange(patch, device=positions.device)
    inside = (offsets[:, None] * width + offsets).flatten()
    corners = (positions[:, 0] * width + positions[:, 1]) * stride
    index = corners[:, None] + inside[:, None]
    return index.masked_fill_(positions[:, :1] == NO_POSITION, height * width).flatten(1)
