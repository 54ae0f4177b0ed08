"""The tokenizer for video clips, which turns blocks of time, height and width into tokens."""

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.image import to_array
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

RawClip = NDArray[np.uint8] | NDArray[np.floating] | Tensor
"""A clip T x H x W or T x H x W x C: uint8 from 0 to 255, or float from 0 to 1."""


def clip_to_array(raw: Any, channels: int) -> NDArray[np.uint8]:
    """Convert a clip to a uint8 array (T, H, W, channels).

    Raises:
        InputError: If the shape, the dtype or the range of values is wrong.
    """
    clip = raw.numpy(force=True) if isinstance(raw, Tensor) else np.asarray(raw)
    clip = clip[..., None] if clip.ndim == 3 else clip
    if clip.ndim != 4 or clip.shape[3] != channels or 0 in clip.shape:
        raise InputError(
            f"a clip of shape T x H x W x {channels} is expected, not {clip.shape}: convert the clip to an array with "
            f"{channels} channel{'s' * (channels > 1)}"
        )
    return to_array(clip.reshape(-1, *clip.shape[2:]), channels).reshape(clip.shape)


@final
class VideoTokenizer(Tokenizer):
    """Tokenizer that turns blocks of a clip into tokens (tubelets, as in ViViT, Arnab et al. 2021).

    The values are uint8 (P, N) with P = C x frames x patch x patch, at time steps, rows and columns (3, N). A batch may
    contain clips of different sizes. If a block extends beyond the clip, black pixels fill the rest of the block.
    """

    unit = "pixels"

    def __init__(
        self,
        dim: int,
        *,
        patch: int = 7,
        frames: int = 2,
        channels: int = 3,
        positions: PositionKind = "learned",
        length: int = 64,
        dropout: float = 0.0,
    ) -> None:
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            patch: The height and the width of a block, in pixels.
            frames: The length of a block, in frames.
            channels: 1 for gray, 3 for color.
            positions: The kind of positional encoding.
            length: The maximum number of blocks along an axis, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        for setting, value in (("patch", patch), ("frames", frames)):
            if value < 1:
                raise InputError(f"{setting}={value}: at least 1 is needed")
        self.patch, self.frames, self.channels = patch, frames, channels
        self.project = nn.Linear(channels * frames * patch**2, dim)
        self.encoding = PositionalEncoding(positions, dim, (length, length, length))
        self.dropout = Dropout(dropout)

    def encode(self, raw: RawClip) -> Units:
        """Cut a clip into blocks (P, N) at time steps, rows and columns (3, N)."""
        pixels = clip_to_array(raw, self.channels)
        sides = self.frames, self.patch, self.patch
        pixels = np.pad(pixels, [(0, -size % side) for size, side in zip(pixels.shape, (*sides, 1), strict=True)])
        grid = tuple(size // side for size, side in zip(pixels.shape, sides, strict=False))
        blocks = pixels.reshape(grid[0], sides[0], grid[1], sides[1], grid[2], sides[2], self.channels)
        values = blocks.transpose(6, 1, 3, 5, 0, 2, 4).reshape(self.project.in_features, -1)
        positions = torch.from_numpy(np.indices(grid, np.int64).reshape(3, -1))
        self.encoding.check(positions)
        return Units(torch.from_numpy(np.ascontiguousarray(values)), positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn blocks (B, P, N) at positions (B, 3, N) into tokens (B, D, N)."""
        pixels = values.to(self.project.weight.dtype) / 127.5 - 1
        return self.dropout(self.encoding(self.project(pixels.mT).mT, positions))

    def position_values(self, units: Units) -> Tensor:
        """Return the center of each block (2, N), in pixels from the top and from the left.

        The time is left out, because it is not measured in pixels.
        """
        return (units.positions[1:] + 0.5) * self.patch
