"""Stems: from pieces to columns, by one linear map or by convolutions over the whole."""

import math
from itertools import pairwise
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import InputError, check_choice
from unifier_tokenizers.patches import patches_to_images
from unifier_tokenizers.tokens import NO_POSITION, is_host_readable

StemKind = Literal["strided", "pooled"]
"""How a layer halves what it reads: by a convolution of stride 2 (Xiao et al. 2021, section 4), or by one of stride 1
and the maxima of what it finds (compact transformers, Hassani et al. 2021, section 3.3)."""


@final
class LinearProjection(nn.Module):
    """All that a piece holds, mapped at once (the patch embedding of Dosovitskiy et al. 2021, section 3.1)."""

    def __init__(self, size: int, dim: int) -> None:
        """Of pieces of `size` numbers."""
        super().__init__()
        self.out = nn.Linear(size, dim)

    def forward(self, pieces: Tensor, positions: Tensor) -> Tensor:
        """pieces (B, N, ...) -> columns (B, D, N), wherever they are."""
        return self.out(pieces.flatten(2)).mT


@final
class Stem(nn.Module):
    """3 x 3 convolutions that halve the picture until a pixel is left of each patch.

    A patch's column sees its neighbors: those above and to the left, and if pooled those on every side. What lies
    outside of a picture is 0 before every layer, and a halving of an even side reads no further: the same picture gives
    the same columns alone and beside a larger one.
    """

    def __init__(self, kind: StemKind, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.halve = ConvDownsampler(kind, channels, dim, patch)
        self.out = nn.Linear(self.halve.width, dim)

    def forward(self, pixels: Tensor, positions: Tensor) -> Tensor:
        """pixels (B, N, C x patch x patch) at positions (B, 2, N) -> columns (B, D, N)."""
        grid = self.halve(*patches_to_images(pixels.mT, positions, self.patch, self.patch))
        columns = grid.shape[3]
        nowhere = grid.shape[2] * columns
        place = (positions[:, 0] * columns + positions[:, 1]).masked_fill(positions[:, 0] == NO_POSITION, nowhere)
        found = functional.pad(grid.flatten(2), (0, 1))  # nowhere reads zeros
        found = found.gather(2, place[:, None].expand(-1, found.shape[1], -1))
        return self.out(found.mT).mT


@final
class FrameStem(nn.Module):
    """3 x 3 convolutions that halve a spectrogram until a frame is left of each stack, then one map of its bands.

    So speech transformers read sound (Dong et al. 2018, section 3.3). As in a picture, a column sees its neighbors,
    and a sound has the same columns alone and beside a longer one.
    """

    def __init__(self, kind: StemKind, dim: int, stack: int, bands: int) -> None:
        super().__init__()
        self.halve = ConvDownsampler(kind, 1, dim // 2, stack)
        self.out = nn.Linear(self.halve.width * math.ceil(bands / stack), dim)

    def forward(self, power: Tensor, positions: Tensor) -> Tensor:
        """power (B, N, stack, bands) at positions (B, 1, N) -> columns (B, D, N)."""
        there = positions[:, 0] != NO_POSITION
        stack, bands = power.shape[2:]
        sizes = torch.stack([there.sum(1) * stack, there.new_full((len(there),), bands, dtype=torch.int64)], dim=1)
        grid = self.halve((power * there[:, :, None, None]).flatten(1, 2)[:, None], sizes)
        # Channels lie last in memory: to turn the map's weight that way round costs less than to turn all columns.
        weight = self.out.weight.unflatten(1, (self.halve.width, -1)).mT.flatten(1)
        return functional.linear(grid.permute(0, 2, 3, 1).flatten(2), weight, self.out.bias).mT


@final
class ConvDownsampler(nn.Module):
    """3 x 3 convolutions, each of which halves what it reads and finds twice as much in it."""

    def __init__(self, kind: StemKind, channels: int, width: int, side: int) -> None:
        """From `channels` to `width` of them, until 1 is left of every `side`."""
        super().__init__()
        count = side.bit_length() - 1
        if side != 2**count or side == 1:
            raise InputError(f"a convolutional stem halves what it reads down to one column: {side} is no power of 2")
        widths = [channels, *(max(width >> (count - 1 - i), 8) for i in range(count))]
        halving = strided_layers if check_choice("stem", kind, get_args(StemKind)) == "strided" else pooled_layers
        layers = nn.ModuleList(halving(before, after) for before, after in pairwise(widths))
        # Channels last, in which norms and maxima are fast on a CPU; torch's types do not know that a module takes it.
        self.layers = layers.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.width = widths[-1]

    def forward(self, grid: Tensor, sizes: Tensor) -> Tensor:
        """(B, C, H, W), of which each example fills its height and width `sizes` (B, 2) -> the same at 1 / `side`."""
        full = is_host_readable(sizes) and bool(
            (sizes == torch.tensor(grid.shape[2:])).all()
        )  # then nothing lies outside
        for layer in self.layers:
            grid = layer(grid)
            sizes = (sizes + 1) // 2
            if not full:
                grid = grid * _inside(grid, sizes)
        return grid


def strided_layers(before: int, after: int) -> nn.Sequential:
    """A convolution of stride 2, norm and GELU: (B, before, H, W) -> (B, after, H / 2, W / 2)."""
    return nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1), NormGELU(after))


def pooled_layers(before: int, after: int) -> nn.Sequential:
    """A convolution, the maxima of overlapping squares, ReLU: (B, before, H, W) -> (B, after, H / 2, W / 2)."""
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.MaxPool2d(3, 2, padding=1), nn.ReLU())


@final
class NormGELU(nn.LayerNorm):
    """A norm of the channels of each pixel, and GELU, at which torch is slower where channels do not lie last."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        return functional.gelu(super().forward(input.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def _inside(grid: Tensor, sizes: Tensor) -> Tensor:
    """1 within each picture of height and width `sizes` (B, 2), else 0: (B, 1, H, W) of the grid's type."""
    rows, columns = (
        torch.arange(side, device=grid.device) < sizes[:, axis, None] for axis, side in enumerate(grid.shape[2:])
    )
    return (rows[:, :, None] & columns[:, None])[:, None].to(grid.dtype)
