"""Positional encodings: vectors that are added to the tokens, and angles for rotary attention."""

import math
from functools import reduce
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from unifier_tokenizers.errors import InputError, check_choice
from unifier_tokenizers.tokens import is_batch_constant

PositionKind = Literal["none", "sinusoid", "learned", "concat"]
"""The kinds of positional encoding of a tokenizer."""

CONCAT_SHARE = 4
"""For "concat", one row of this many rows holds the position."""


def sinusoidal_encoding(positions: Tensor, dim: int) -> Tensor:
    """Encode positions (B, A, N) as sines and cosines (B, D, N).

    Each axis has D / (2 A) sines and D / (2 A) cosines. The wavelengths go from 2 pi to 20,000 pi (Vaswani et al. 2017,
    section 3.5, for one axis). The rows are divided between the axes as in Dosovitskiy et al. 2021, appendix D.4.
    """
    axes = positions.shape[1]
    if dim % (2 * axes):
        raise InputError(f"sinusoid positions with {axes} axes need a dim divisible by {2 * axes}, but dim is {dim}")
    pairs = dim // (2 * axes)
    frequencies = torch.exp(torch.arange(pairs, device=positions.device) * (-math.log(10000.0) / pairs))
    # In the order (B, N, A, pairs), each token is contiguous in memory, which makes the trunk faster.
    angles = positions.mT[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=3).flatten(2).mT


def rope_frequencies(positions: Tensor, depth: int) -> Tensor:
    """Convert positions (B, A, N) to the angles (B, N, depth / 2) of rotary attention.

    A head has `depth` features, which form depth / 2 pairs. Each angle rotates one pair of features, and successive
    pairs alternate between the axes (Su et al. 2021, section 3.2.2, for one axis).
    """
    axes, pairs = positions.shape[1], depth // 2
    if depth % 2 or pairs < axes:
        raise InputError(
            f"rotary positions with {axes} axes need an even head depth of at least {2 * axes}, not {depth}"
        )
    index = torch.arange(pairs, device=positions.device)
    frequencies = torch.exp(torch.div(index, axes, rounding_mode="floor") * (-math.log(10000.0) * axes / pairs))
    return positions[:, index % axes].transpose(1, 2) * frequencies


@final
class PositionalEncoding(nn.Module):
    """Layer that adds an encoding of the positions to the tokens.

    The encoding is 0, fixed sinusoids, or one learned vector for each coordinate of each axis. With "concat", sinusoids
    take the place of the last quarter of the rows, so the position and the content of a token have separate rows.
    """

    def __init__(self, kind: PositionKind, dim: int, lengths: tuple[int, ...]) -> None:
        """Create the encoding.

        Args:
            kind: "none", "sinusoid", "learned" or "concat".
            dim: D, the width of the tokens.
            lengths: The number of learned coordinates on each axis, for "learned" only.
        """
        super().__init__()
        self.kind = check_choice("positions", kind, get_args(PositionKind))
        self.dim = dim
        self.lengths = lengths
        sizes = lengths if kind == "learned" else ()
        self.tables = nn.ModuleList(nn.Embedding(length + 1, dim) for length in sizes)
        for parameter in self.tables.parameters():
            # A std of 0.5 gives values of about the same size as sinusoids. With a std of 0.02, small models learn
            # positions too slowly (ARCHITECTURE.md).
            nn.init.normal_(parameter, std=0.5)

    def check(self, positions: Tensor) -> None:
        """Raise InputError if positions (A, N) exceed the learned coordinates."""
        if self.kind != "learned":
            return
        for axis, (needed, length) in enumerate(zip((positions.amax(1) + 1).tolist(), self.lengths, strict=False)):
            if needed > length:
                raise InputError(
                    f"{needed} positions on axis {axis} are needed, but only {length} learned positions exist: "
                    f'give the tokenizer a larger length, or positions="sinusoid"'
                )

    def forward(self, columns: Tensor, positions: Tensor) -> Tensor:
        """Add the encoding of positions (B, A, N) to tokens (B, D, N). Positions (1, A, N) apply to all examples."""
        if self.kind == "none":
            return columns
        if is_batch_constant(positions):  # If all examples have equal positions, encode the positions only once.
            positions = positions[:1]
        if self.kind == "concat":
            return self._concat(columns, positions)
        if self.kind == "sinusoid":
            encoded = sinusoidal_encoding(positions, self.dim).mT
        else:
            encoded = reduce(torch.add, (table(positions[:, axis] + 1) for axis, table in enumerate(self.tables)))
        # The terms are transposed before the sum, because summing the gradient of the tables along a strided axis is
        # slow.
        return (columns.mT + encoded.to(columns.dtype)).mT

    def _concat(self, columns: Tensor, positions: Tensor) -> Tensor:
        """Replace the last quarter of the rows of tokens (B, D, N) by sinusoids of positions (B or 1, A, N)."""
        axes = positions.shape[1]
        if self.dim % (2 * CONCAT_SHARE * axes):
            raise InputError(
                f"positions=concat with {axes} axes needs a dim divisible by {2 * CONCAT_SHARE * axes}, "
                f"but dim is {self.dim}"
            )
        encoded = sinusoidal_encoding(positions, self.dim // CONCAT_SHARE).mT.to(columns.dtype)
        content = columns.mT[..., : self.dim - encoded.shape[2]]
        return torch.cat([content, encoded.expand(len(columns), -1, -1)], 2).mT
