"""Patches back to the pictures they were cut from, and pictures to patches again."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers.tokens import NOWHERE


class Pictures(NamedTuple):
    """Pictures of a batch, each in the upper left corner of its canvas."""

    pixels: Tensor
    """(B, C, H, W)."""
    sizes: Tensor
    """(B, 2) int64: each picture's own height and width, in pixels."""


def to_pictures(values: Tensor, positions: Tensor, patch: int, stride: int) -> Pictures:
    """Patches (B, C x patch x patch, N) at positions (B, 2, N) put together, with 0 beyond a picture's own size.

    A picture is as large as its patches make it: the black that filled up the last ones has become part of it.
    """
    sizes = positions.amax(2) * stride + patch
    height, width = sizes.amax(0).tolist()
    pixels = values.unflatten(1, (-1, patch * patch)).flatten(2)
    index = _places(positions, patch, stride, height, width)[:, None].expand_as(pixels)
    canvas = pixels.new_zeros(*pixels.shape[:2], height * width + 1).scatter_(2, index, pixels)
    return Pictures(canvas[..., :-1].unflatten(2, (height, width)), sizes)


def to_patches(pixels: Tensor, positions: Tensor, patch: int, stride: int) -> Tensor:
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
    return places.masked_fill_(positions[:, :1] == NOWHERE, height * width).flatten(1)
