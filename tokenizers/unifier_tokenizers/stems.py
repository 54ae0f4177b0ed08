"""Stems: the maps from patches to tokens, linear per patch or convolutional over the whole input."""

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
"""The layer that halves its input.

"strided" is a convolution of stride 2 (Xiao et al. 2021, section 4). "pooled" is a convolution of stride 1 and a max
pooling (compact transformers, Hassani et al. 2021, section 3.3).
"""


@final
class LinearProjection(nn.Module):
    """One linear map of all numbers of a patch (the patch embedding of Dosovitskiy et al. 2021, section 3.1)."""

    def __init__(self, size: int, dim: int) -> None:
        """Create the map from `size` numbers per patch to D."""
        super().__init__()
        self.out = nn.Linear(size, dim)

    def forward(self, patches: Tensor, positions: Tensor) -> Tensor:
        """Map patches (B, N, ...) to tokens (B, D, N); their positions are not used."""
        return self.out(patches.flatten(2)).mT


@final
class Stem(nn.Module):
    """3 x 3 convolutions that halve a picture until one pixel remains per patch.

    A token also sees neighbor patches: above and to the left, and with pooling on every side. Pixels outside the
    picture are 0 before every layer, and halving an even side reads no pixel beyond it. So a picture has equal tokens
    alone and beside a larger picture.
    """

    def __init__(self, kind: StemKind, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.downsample = ConvDownsampler(kind, channels, dim, patch)
        self.out = nn.Linear(self.downsample.out_channels, dim)

    def forward(self, pixels: Tensor, positions: Tensor) -> Tensor:
        """Map patches (B, N, C x patch x patch) at positions (B, 2, N) to tokens (B, D, N)."""
        grid = self.downsample(*patches_to_images(pixels.mT, positions, self.patch, self.patch))
        columns = grid.shape[3]
        outside = grid.shape[2] * columns
        index = (positions[:, 0] * columns + positions[:, 1]).masked_fill(positions[:, 0] == NO_POSITION, outside)
        features = functional.pad(grid.flatten(2), (0, 1))  # Patches without a position read zeros.
        features = features.gather(2, index[:, None].expand(-1, features.shape[1], -1))
        return self.out(features.mT).mT


@final
class FrameStem(nn.Module):
    """3 x 3 convolutions that halve a spectrogram until one frame remains per stack, then a linear map of its bands.

    Speech transformers read sound in this way (Dong et al. 2018, section 3.3). As in `Stem`, a token sees its
    neighbors, and a sound has equal tokens alone and beside a longer sound.
    """

    def __init__(self, kind: StemKind, dim: int, stack: int, bands: int) -> None:
        super().__init__()
        self.downsample = ConvDownsampler(kind, 1, dim // 2, stack)
        self.out = nn.Linear(self.downsample.out_channels * math.ceil(bands / stack), dim)

    def forward(self, power: Tensor, positions: Tensor) -> Tensor:
        """Map log power (B, N, stack, bands) at positions (B, 1, N) to tokens (B, D, N)."""
        real = positions[:, 0] != NO_POSITION
        stack, bands = power.shape[2:]
        sizes = torch.stack([real.sum(1) * stack, real.new_full((len(real),), bands, dtype=torch.int64)], dim=1)
        grid = self.downsample((power * real[:, :, None, None]).flatten(1, 2)[:, None], sizes)
        # Channels are last in memory. Reordering the weight to match costs less than reordering all tokens.
        weight = self.out.weight.unflatten(1, (self.downsample.out_channels, -1)).mT.flatten(1)
        return functional.linear(grid.permute(0, 2, 3, 1).flatten(2), weight, self.out.bias).mT


@final
class ConvDownsampler(nn.Module):
    """3 x 3 convolutions; each layer halves the grid and doubles the channels."""

    def __init__(self, kind: StemKind, channels: int, out_channels: int, side: int) -> None:
        """Create log2(side) layers.

        Args:
            kind: The layer that halves its input.
            channels: The channels of the input.
            out_channels: The channels of the last layer.
            side: The factor by which the grid shrinks, a power of 2.

        Raises:
            InputError: If `side` is not a power of 2 above 1.
        """
        super().__init__()
        count = side.bit_length() - 1
        if side != 2**count or side == 1:
            raise InputError(f"a convolutional stem halves what it reads down to one column: {side} is no power of 2")
        widths = [channels, *(max(out_channels >> (count - 1 - i), 8) for i in range(count))]
        layer = strided_layer if check_choice("stem", kind, get_args(StemKind)) == "strided" else pooled_layer
        layers = nn.ModuleList(layer(before, after) for before, after in pairwise(widths))
        # Norms and max pooling are fast on a CPU in channels-last order. torch's stubs lack this argument for modules.
        self.layers = layers.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.out_channels = widths[-1]

    def forward(self, grid: Tensor, sizes: Tensor) -> Tensor:
        """Shrink a grid (B, C, H, W) to 1 / side of its height and width.

        Args:
            grid: Examples, each in the upper left corner.
            sizes: (B, 2) the height and width of each example.
        """
        # If every example fills the grid, no pixel needs to be masked.
        full = is_host_readable(sizes) and bool((sizes == torch.tensor(grid.shape[2:])).all())
        for layer in self.layers:
            grid = layer(grid)
            sizes = (sizes + 1) // 2
            if not full:
                grid = grid * _inside_mask(grid, sizes)
        return grid


def strided_layer(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return a convolution of stride 2, a norm and GELU: (B, in, H, W) -> (B, out, H / 2, W / 2)."""
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1), NormGELU(out_channels))


def pooled_layer(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return a convolution, an overlapping max pooling and ReLU: (B, in, H, W) -> (B, out, H / 2, W / 2)."""
    convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.MaxPool2d(3, 2, padding=1), nn.ReLU())


@final
class NormGELU(nn.LayerNorm):
    """A norm over the channels of each pixel, then GELU, both in channels-last order, in which GELU is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """Return a grid (B, C, H, W) of the same shape."""
        return functional.gelu(super().forward(input.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def _inside_mask(grid: Tensor, sizes: Tensor) -> Tensor:
    """Return 1 within each picture of height and width `sizes` (B, 2), else 0: (B, 1, H, W) in the grid's dtype."""
    rows, columns = (
        torch.arange(side, device=grid.device) < sizes[:, axis, None] for axis, side in enumerate(grid.shape[2:])
    )
    return (rows[:, :, None] & columns[:, None])[:, None].to(grid.dtype)
