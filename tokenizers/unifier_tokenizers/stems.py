"""Layers that map patches to tokens: a linear layer for each patch, or convolutions over the whole input."""

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
"""The kind of layer that halves the height and the width of its input.

"strided" is a convolution of stride 2 (Xiao et al. 2021, section 4). "pooled" is a convolution of stride 1, followed by
max pooling (compact transformers, Hassani et al. 2021, section 3.3).
"""


@final
class LinearProjection(nn.Module):
    """Linear layer that maps all numbers of a patch to a token (Dosovitskiy et al. 2021, section 3.1)."""

    def __init__(self, size: int, dim: int) -> None:
        """Create a linear layer for patches of `size` numbers."""
        super().__init__()
        self.out = nn.Linear(size, dim)

    def forward(self, patches: Tensor, positions: Tensor) -> Tensor:
        """Map patches (B, N, ...) to tokens (B, D, N). This layer does not use `positions`."""
        return self.out(patches.flatten(2)).mT


@final
class Stem(nn.Module):
    """Stack of 3 x 3 convolutions that halve a picture until one pixel per patch remains.

    The token of a patch also depends on the neighboring patches. With "strided", a token depends on the patches above
    and to the left. With "pooled", a token depends on the neighboring patches on all sides. Pixels outside a picture
    are set to 0 before every layer, so the tokens of a picture do not depend on padding.
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
        features = functional.pad(grid.flatten(2), (0, 1))  # Patches without a position get zeros.
        features = features.gather(2, index[:, None].expand(-1, features.shape[1], -1))
        return self.out(features.mT).mT


@final
class FrameStem(nn.Module):
    """Stack of 3 x 3 convolutions that halve a spectrogram until one frame per stack remains.

    A linear layer then maps the bands of this frame to a token (Dong et al. 2018, section 3.3). The token of a stack
    also depends on the neighboring stacks, but not on padding.
    """

    def __init__(self, kind: StemKind, dim: int, stack: int, bands: int) -> None:
        super().__init__()
        self.downsample = ConvDownsampler(kind, 1, dim // 2, stack)
        self.out = nn.Linear(self.downsample.out_channels * math.ceil(bands / stack), dim)

    def forward(self, power: Tensor, positions: Tensor) -> Tensor:
        """Map log power (B, N, stack, bands) at positions (B, 1, N) to tokens (B, D, N)."""
        real = positions[:, 0] != NO_POSITION
        stack, bands = power.shape[2:]
        sizes = torch.stack([real.sum(1) * stack, real.new_full((real.shape[0],), bands, dtype=torch.int64)], dim=1)
        grid = self.downsample((power * real[:, :, None, None]).flatten(1, 2)[:, None], sizes)
        # The grid has its channels last in memory. Reordering the weight is cheaper than reordering the grid.
        weight = self.out.weight.unflatten(1, (self.downsample.out_channels, -1)).mT.flatten(1)
        return functional.linear(grid.permute(0, 2, 3, 1).flatten(2), weight, self.out.bias).mT


@final
class ConvDownsampler(nn.Module):
    """Stack of 3 x 3 convolutions. Each layer halves the height and the width, and doubles the number of channels."""

    def __init__(self, kind: StemKind, channels: int, out_channels: int, side: int) -> None:
        """Create log2(side) layers.

        Args:
            kind: The kind of the layers.
            channels: The number of channels of the input.
            out_channels: The number of channels of the last layer.
            side: The factor by which the height and the width are divided, a power of 2.

        Raises:
            InputError: If `side` is not a power of 2 above 1.
        """
        super().__init__()
        count = side.bit_length() - 1
        if side != 2**count or side == 1:
            raise InputError(
                f"a convolutional stem needs a patch or stack that is a power of 2 above 1: {side} is not supported"
            )
        widths = [channels, *(max(out_channels >> (count - 1 - i), 8) for i in range(count))]
        layer = strided_layer if check_choice("stem", kind, get_args(StemKind)) == "strided" else pooled_layer
        layers = nn.ModuleList(layer(before, after) for before, after in pairwise(widths))
        # On a CPU, norms and max pooling are fast in channels-last order. torch's type stubs lack `memory_format`.
        self.layers = layers.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.out_channels = widths[-1]

    def forward(self, grid: Tensor, sizes: Tensor) -> Tensor:
        """Divide the height and the width of a grid (B, C, H, W) by `side`.

        Args:
            grid: The examples, each in the upper left corner of its grid.
            sizes: The height and width of each example (B, 2).
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
    """LayerNorm over the channels of each pixel, followed by GELU.

    The grid is in channels-last order, because GELU is faster in this order.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Apply the norm and GELU to a grid (B, C, H, W)."""
        return functional.gelu(super().forward(input.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def _inside_mask(grid: Tensor, sizes: Tensor) -> Tensor:
    """Return a mask (B, 1, H, W) in the grid's dtype: 1 inside each picture, 0 outside.

    `sizes` (B, 2) contains the height and width of each picture.
    """
    rows, columns = (
        torch.arange(side, device=grid.device) < sizes[:, axis, None] for axis, side in enumerate(grid.shape[2:])
    )
    return (rows[:, :, None] & columns[:, None])[:, None].to(grid.dtype)
