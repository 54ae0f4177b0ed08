"""The tokenizer for pictures, which turns each patch into one token."""

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
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
"""A picture H x W or H x W x C: uint8 from 0 to 255, or float from 0 to 1.

Transparent pixels become white. A PIL image is rotated as its EXIF orientation requires.
"""


def flatten_alpha(image: Image.Image, channels: int) -> Image.Image:
    """Convert a picture to gray (1 channel) or color (3 channels), with 8 bits per channel, on a white background."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


def to_array(image: RawImage, channels: int) -> NDArray[np.uint8]:
    """Convert a picture to a uint8 array (H, W, channels).

    Args:
        image: A PIL image, an array or a tensor.
        channels: 1 for gray, 3 for color.

    Raises:
        InputError: If the shape, the dtype or the range of values is wrong.
    """
    if isinstance(image, Image.Image):
        if image.mode.startswith(("I", "F")):  # PIL's conversion would clip every value above 255.
            raise InputError(
                f"a picture with 8 bits per channel is expected, not mode {image.mode}: scale the pixels to 0 to 255"
            )
        # Invalid EXIF data raise many types of exceptions. The pixels are valid nevertheless.
        with suppress(Exception):
            if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
                image = ImageOps.exif_transpose(image)
        image = np.asarray(flatten_alpha(image, channels))
    array = image.numpy(force=True) if isinstance(image, Tensor) else np.asarray(image)
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] != channels or 0 in array.shape:
        raise InputError(
            f"a picture of shape H x W x {channels} is expected, not {tuple(array.shape)}: convert the picture"
        )
    if np.issubdtype(array.dtype, np.floating):
        if not (array.min() >= 0 and array.max() <= 1):  # A comparison with NaN is False, so NaN is refused too.
            raise InputError(
                f"the float picture has values from {array.min():g} to {array.max():g}: "
                f"scale the values to the range 0 to 1, or give uint8"
            )
        array = (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise InputError(f"the picture has dtype {array.dtype}: give uint8 from 0 to 255, or float from 0 to 1")
    return np.require(array, np.uint8, ["C", "W"])  # torch accepts only writable arrays.


class PatchGrid(NamedTuple):
    """Grid of the patches of a picture, and its area in pixels."""

    rows: int
    columns: int
    left: float
    top: float
    right: float
    bottom: float


@final
class PatchTokenizer(Tokenizer):
    """Tokenizer that turns square patches of a picture into tokens.

    The values are uint8 (P, N) with P = C x patch x patch, at rows and columns (2, N). A batch may contain pictures of
    different sizes. If a patch extends beyond the picture, black pixels fill the rest of the patch.
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
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            patch: The side of a patch, in pixels.
            stride: The step from one patch to the next, in pixels; by default, the side of a patch. Patches overlap if
                the step is smaller than a patch.
            channels: 1 for gray, 3 for color.
            stem: The kind of convolutions that replace the linear layer, "strided" or "pooled". The stem has
                log2(patch) layers.
            class_token: Add a learned class token in front of the patches. The class token has no position.
            positions: The kind of positional encoding.
            length: The maximum number of patches along a side, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        self.patch, self.stride, self.channels = patch, stride or patch, channels
        if patch < 1:
            raise InputError(f"patch={patch}: at least 1 pixel is needed")
        if not 0 < self.stride <= patch:
            raise InputError(
                f"stride={stride} skips pixels of the picture: use a stride from 1 to {patch}, the side of a patch"
            )
        if stem and self.stride != patch:
            raise InputError(
                f"stride={stride} does not work with stem={stem}, because a stem overlaps the patches: leave out stride"
            )
        self.project = Stem(stem, channels, dim, patch) if stem else LinearProjection(channels * patch * patch, dim)
        self.class_token = nn.Parameter(torch.randn(dim) * 0.02) if class_token else None
        self.encoding = PositionalEncoding(positions, dim, (length, length))
        self.dropout = Dropout(dropout)
        self.register_buffer("mean", torch.full((channels,), 0.5))
        self.register_buffer("std", torch.full((channels,), 0.25))

    def fit(self, images: Iterable[RawImage]) -> Self:
        """Measure the mean and the standard deviation of each channel, and return self.

        Only one picture is in memory at a time.

        Raises:
            InputError: If no picture is given.
        """
        counts = np.zeros((self.channels, 256))  # Each row is the histogram of one channel.
        for image in images:
            planes = to_array(image, self.channels).reshape(-1, self.channels).T
            counts += [np.bincount(plane, minlength=256) for plane in planes]
        if not counts.any():
            raise InputError("no picture is given, so there is no mean: give at least one picture")
        weights, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
        mean = weights @ values
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy((weights * (values - mean[:, None]) ** 2).sum(1) ** 0.5).clamp(min=1e-3))
        return self

    def encode(self, raw: RawImage) -> Units:
        """Cut a picture into patches (P, N) at rows and columns (2, N)."""
        pixels = torch.from_numpy(to_array(raw, self.channels))
        patch, stride, channels = self.patch, self.stride, self.channels
        rows, columns = num_tiles(pixels.shape[0], patch, stride), num_tiles(pixels.shape[1], patch, stride)
        height, width = (rows - 1) * stride + patch, (columns - 1) * stride + patch
        if pixels.shape[:2] != (height, width):
            pixels = functional.pad(pixels, (0, 0, 0, width - pixels.shape[1], 0, height - pixels.shape[0]))
        # One view is several times faster than `unfold` along both sides.
        line = width * channels
        windows = pixels.as_strided(
            (channels, patch, patch, rows, columns), (1, line, channels, stride * line, stride * channels)
        )
        values = windows.reshape(-1, rows * columns)
        positions = _patch_positions(rows, columns).clone()
        if self.class_token is not None:
            values = functional.pad(values, (1, 0))
            positions = functional.pad(positions, (1, 0), value=NO_POSITION)
        self.encoding.check(positions)
        return Units(values.contiguous(), positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn patches (B, P, N) at positions (B, 2, N) into tokens (B, D, N)."""
        first_patch = 0 if self.class_token is None else 1
        pixels = values[:, :, first_patch:].unflatten(1, (self.channels, -1)).to(self.mean.dtype) / 255
        pixels = (pixels - self.mean[:, None, None]) / self.std[:, None, None]  # B, C, patch x patch, N
        columns = self.project(pixels.flatten(1, 2).mT, positions[:, :, first_patch:])
        if self.class_token is not None:  # Each token is contiguous in memory, so tokens are concatenated as rows.
            token = self.class_token.to(columns.dtype).expand(columns.shape[0], 1, -1)
            columns = torch.cat([token, columns.mT], dim=1).mT
        return self.dropout(self.encoding(columns, positions))

    def to_images(self, values: Tensor, positions: Tensor) -> ImageBatch:
        """Join patches (B, P, N) at positions (B, 2, N) into pictures."""
        return patches_to_images(values, positions, self.patch, self.stride)

    def to_patches(self, pixels: Tensor, positions: Tensor) -> Tensor:
        """Cut patches (B, P, N) at positions (B, 2, N) out of pictures (B, C, H, W)."""
        return images_to_patches(pixels, positions, self.patch, self.stride)

    def position_values(self, units: Units) -> Tensor:
        """Return the center of each patch (2, N), in pixels from the top and from the left."""
        return units.positions * self.stride + self.patch / 2

    def patch_grid(self, units: Units) -> PatchGrid:
        """Return the grid of the patches of a picture, whose patches are sorted by row."""
        rows, columns = (int(axis.max()) + 1 for axis in units.positions)
        # Each patch stands for the area around its center, because patches overlap if the stride is smaller.
        margin = (self.patch - self.stride) / 2
        return PatchGrid(rows, columns, margin, margin, margin + columns * self.stride, margin + rows * self.stride)


@lru_cache(maxsize=256)
def _patch_positions(rows: int, columns: int) -> Tensor:
    """Return the row and the column of each patch (2, N)."""
    return torch.from_numpy(np.indices((rows, columns), np.int64).reshape(2, -1))
