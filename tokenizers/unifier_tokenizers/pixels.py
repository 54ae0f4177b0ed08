"""The tokenizer for single pixels, which turns each pixel of a small gray picture into one token."""

from functools import lru_cache
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.image import RawImage, to_array
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units

MAX_GRAYS = 256


@final
class PixelTokenizer(Tokenizer):
    """Tokenizer that turns a begin token and each pixel of a gray picture into tokens, row by row.

    The picture is first reduced to `side` x `side` pixels, which are the means of equal areas. The values are ids
    (N,), N = side^2 + 1: the gray of each pixel, 0 for black to `grays` - 1 for white, and `grays` for the begin token.
    The positions (2, N) are rows and columns. A token is the embedding of its id plus the encoding of its position.
    """

    unit = "pixels"

    def __init__(
        self, dim: int, *, side: int = 14, grays: int = 16, positions: PositionKind = "learned", dropout: float = 0.0
    ) -> None:
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            side: The height and the width of the reduced picture, in pixels.
            grays: The number of equally spaced grays, 2 to 256.
            positions: The kind of positional encoding.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        if side < 2:
            raise InputError(f"side={side}: at least 2 pixels are needed")
        if not 2 <= grays <= MAX_GRAYS:
            raise InputError(f"grays={grays}: from 2 to {MAX_GRAYS} grays are possible")
        self.side, self.grays = side, grays
        self.embedding = nn.Embedding(grays + 1, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.encoding = PositionalEncoding(positions, dim, (side, side))
        self.dropout = Dropout(dropout)

    def encode(self, raw: RawImage) -> Units:
        """Encode a square picture as ids (N,) at rows and columns (2, N). The begin token has no position."""
        pixels = to_array(raw, 1)[:, :, 0]
        height, width = pixels.shape
        if height != width or height < self.side:
            raise InputError(
                f"the picture has {height} x {width} pixels: a square picture with at least {self.side} x {self.side} "
                "pixels is needed"
            )
        reduced = np.asarray(Image.fromarray(pixels).resize((self.side, self.side), Image.Resampling.BOX))
        values = np.full(self.side**2 + 1, self.grays, np.int16)
        values[1:] = np.rint(reduced.reshape(-1) * ((self.grays - 1) / 255))
        return Units(torch.from_numpy(values), pixel_positions(self.side).clone())

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn ids (B, N) at positions (B, 2, N) into tokens (B, D, N)."""
        columns = self.embedding(values.int()) * self.dim**0.5
        return self.dropout(self.encoding(columns.mT, positions))

    def to_pixels(self, ids: Tensor | NDArray[np.integer]) -> NDArray[np.uint8]:
        """Return the pictures (..., side, side) of ids (..., side^2), which have no begin token."""
        grays = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids) * (255 / (self.grays - 1))
        return np.rint(grays).astype(np.uint8).reshape(*ids.shape[:-1], self.side, self.side)


@lru_cache(maxsize=16)
def pixel_positions(side: int) -> Tensor:
    """Return the row and the column of the begin token and of each pixel (2, side^2 + 1)."""
    places = torch.from_numpy(np.indices((side, side), np.int64).reshape(2, -1))
    return functional.pad(places, (1, 0), value=NO_POSITION)
