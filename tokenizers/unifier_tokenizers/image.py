"""Pictures to columns, one patch a column."""

from collections.abc import Iterable
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.patches import ImageBatch, images_to_patches, num_tiles, patches_to_images
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.stems import LinearProjection, Stem, StemKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units

RawImage = Image.Image | NDArray[np.uint8] | NDArray[np.floating] | Tensor
"""H x W or H x W x C: uint8 in 0 to 255, or float in 0 to 1. What is transparent in an Image is laid on white."""


def flatten_alpha(picture: Image.Image, channels: int) -> Image.Image:
    """A picture of 8 bits a channel in gray (1) or color (3), what is transparent in it laid on white."""
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("L" if channels == 1 else "RGB")


def to_array(picture: RawImage, channels: int) -> NDArray[np.uint8]:
    """Any picture as a uint8 array (H, W, channels); raises InputError where it cannot be read as one."""
    if isinstance(picture, Image.Image):
        if picture.mode.startswith(("I", "F")):  # conversion would cut every value above 255
            raise InputError(f"a picture of 8 bits a channel is expected, not of mode {picture.mode}: scale it first")
        picture = np.asarray(flatten_alpha(picture, channels))
    array = picture.numpy(force=True) if isinstance(picture, Tensor) else np.asarray(picture)
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] != channels or 0 in array.shape:
        raise InputError(f"a picture of H x W x {channels} is expected, not one of shape {tuple(array.shape)}")
    if np.issubdtype(array.dtype, np.floating):
        if not (array.min() >= 0 and array.max() <= 1):  # NaN compares as neither
            raise InputError(
                f"a float picture holds 0 to 1, not {array.min():g} to {array.max():g}: scale it, or give uint8"
            )
        array = (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise InputError(f"a picture holds uint8 in 0 to 255 or float in 0 to 1, not {array.dtype}")
    return np.require(array, np.uint8, ["C", "W"])  # torch takes no array that it could not write to


@final
class PatchTokenizer(Tokenizer):
    """Square patches of a picture as columns: uint8 (P, N) with P = C x patch x patch, at rows and columns (2, N).

    Pictures of different sizes may share a batch. A picture whose sides the patches do not fill is padded with black.
    """

    unit = "pixels"
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        dim: int,
        *,
        patch: int = 4,
        stride: int | None = None,
        channels: int = 3,
        stem: StemKind | None = None,
        class_token: bool = False,
        positions: PositionKind = "learned",
        length: int = 64,
        dropout: float = 0.0,
    ) -> None:
        """`patch` and `stride` are in pixels; a stride below the patch makes patches overlap.

        `stem` replaces the linear projection by log2(patch) convolutions over the picture, each of which halves it by
        its stride or by pooling. `length` is the most patches along a side for positions="learned".
        """
        super().__init__(dim)
        self.patch, self.stride, self.channels = patch, stride or patch, channels
        if patch < 1:
            raise InputError(f"patch={patch}: at least 1 pixel is needed")
        if not 0 < self.stride <= patch:
            raise InputError(f"a stride of {stride} skips pixels of the picture: take 1 to {patch}, the patch")
        if stem and self.stride != patch:
            raise InputError("a convolutional stem overlaps by itself: leave stride at the patch")
        self.project = Stem(stem, channels, dim, patch) if stem else LinearProjection(channels * patch * patch, dim)
        self.class_token = nn.Parameter(torch.randn(dim) * 0.02) if class_token else None
        self.encoding = PositionalEncoding(positions, dim, (length, length))
        self.dropout = Dropout(dropout)
        self.register_buffer("mean", torch.full((channels,), 0.5))
        self.register_buffer("std", torch.full((channels,), 0.25))

    def fit(self, pictures: Iterable[RawImage]) -> "PatchTokenizer":
        """Take each channel's mean and standard deviation from pictures, held one at a time; returns itself.

        Raises InputError where there is none.
        """
        counts = np.zeros((self.channels, 256))  # how many pixels of each channel have each value
        for picture in pictures:
            planes = to_array(picture, self.channels).reshape(-1, self.channels).T
            counts += [np.bincount(plane, minlength=256) for plane in planes]
        if not counts.any():
            raise InputError("a mean cannot be taken from no picture: give it at least one")
        shares, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
        mean = shares @ values
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy((shares * (values - mean[:, None]) ** 2).sum(1) ** 0.5).clamp(min=1e-3))
        return self

    def encode(self, raw: RawImage) -> Units:
        pixels = torch.from_numpy(to_array(raw, self.channels)).permute(2, 0, 1)
        patch, stride = self.patch, self.stride
        rows, columns = (num_tiles(side, patch, stride) for side in pixels.shape[1:])
        height, width = (rows - 1) * stride + patch, (columns - 1) * stride + patch
        pixels = functional.pad(pixels, (0, width - pixels.shape[2], 0, height - pixels.shape[1]))
        windows = pixels.unfold(1, patch, stride).unfold(2, patch, stride)  # C, rows, columns, patch, patch
        values = windows.permute(0, 3, 4, 1, 2).reshape(-1, rows * columns)
        positions = torch.from_numpy(np.indices((rows, columns), np.int64).reshape(2, -1))
        if self.class_token is not None:
            values = functional.pad(values, (1, 0))
            positions = functional.pad(positions, (1, 0), value=NO_POSITION)
        self.encoding.check(positions)
        return Units(values.contiguous(), positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        first = 0 if self.class_token is None else 1  # the first of the patches
        pixels = values[:, :, first:].unflatten(1, (self.channels, -1)).to(self.mean.dtype) / 255
        pixels = (pixels - self.mean[:, None, None]) / self.std[:, None, None]  # B, C, patch x patch, N
        columns = self.project(pixels.flatten(1, 2).mT, positions[:, :, first:])
        if self.class_token is not None:  # put together as rows, as which columns lie in memory
            token = self.class_token.to(columns.dtype).expand(len(columns), 1, -1)
            columns = torch.cat([token, columns.mT], dim=1).mT
        return self.dropout(self.encoding(columns, positions))

    def to_images(self, values: Tensor, positions: Tensor) -> ImageBatch:
        """A batch's pictures put together again from values (B, P, N) at positions (B, 2, N)."""
        return patches_to_images(values, positions, self.patch, self.stride)

    def to_patches(self, pixels: Tensor, positions: Tensor) -> Tensor:
        """Pictures (B, C, H, W) cut at positions (B, 2, N) as `encode` cuts them: values (B, P, N)."""
        return images_to_patches(pixels, positions, self.patch, self.stride)

    def position_values(self, units: Units) -> Tensor:
        """The middle of each patch (2, N), in pixels down and to the right."""
        return units.positions * self.stride + self.patch / 2
