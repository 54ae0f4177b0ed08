"""Positions of tokens as numbers for a model: vectors added to the tokens, or rotary angles."""

import math
from functools import reduce
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from unifier_tokenizers.errors import InputError, check_choice
from unifier_tokenizers.tokens import is_batch_constant

PositionKind = Literal["none", "sinusoid", "learned"]


def sinusoidal_encoding(positions: Tensor, dim: int) -> Tensor:
    """Return the sines and cosines of each coordinate: positions (B, A, N) -> (B, D, N).

    Each axis has D / A rows: half sines, half cosines, with wavelengths from 2 pi to 20,000 pi (Vaswani et al. 2017,
    section 3.5, for one axis). Dosovitskiy et al. 2021, appendix D.4, split the rows by axis in this way.
    """
    axes = positions.shape[1]
    if dim % (2 * axes):
        raise InputError(f"sinusoid positions on {axes} axes need D divisible by {2 * axes}, and D is {dim}")
    pairs = dim // (2 * axes)
    frequencies = torch.exp(torch.arange(pairs, device=positions.device) * (-math.log(10000.0) / pairs))
    angles = positions.mT[..., None] * frequencies  # B, N, A, pairs: each token is contiguous, as the trunk reads it.
    return torch.cat([angles.sin(), angles.cos()], dim=3).flatten(2).mT


def rope_frequencies(positions: Tensor, depth: int) -> Tensor:
    """Return the angles by which rotary attention rotates queries and keys: positions (B, A, N) -> (B, N, depth / 2).

    The pairs of a head's `depth` rows alternate between the axes (Su et al. 2021, section 3.2.2, for one axis).
    """
    axes, pairs = positions.shape[1], depth // 2
    if depth % 2 or pairs < axes:
        raise InputError(f"rotary positions on {axes} axes need an even head depth of at least {2 * axes}, not {depth}")
    index = torch.arange(pairs, device=positions.device)
    frequencies = torch.exp(torch.div(index, axes, rounding_mode="floor") * (-math.log(10000.0) * axes / pairs))
    return positions[:, index % axes].transpose(1, 2) * frequencies


@final
class PositionalEncoding(nn.Module):
    """Addition of positions to tokens: nothing, fixed sinusoids, or one learned vector per coordinate and axis."""

    def __init__(self, kind: PositionKind, dim: int, lengths: tuple[int, ...]) -> None:
        """Create the encoding.

        Args:
            kind: "none", "sinusoid" or "learned".
            dim: D, the width of the tokens.
            lengths: The number of learned coordinates on each axis, used by "learned" only.
        """
        super().__init__()
        self.kind = check_choice("positions", kind, get_args(PositionKind))
        self.dim = dim
        self.lengths = lengths
        sizes = lengths if kind == "learned" else ()
        self.tables = nn.ModuleList(nn.Embedding(length + 1, dim) for length in sizes)
        for parameter in self.tables.parameters():
            # A std of 0.5 matches the sinusoids. With 0.02, small models learn positions too slowly (ARCHITECTURE.md).
            nn.init.normal_(parameter, std=0.5)

    def check(self, positions: Tensor) -> None:
        """Raise InputError if positions (A, N) exceed the learned ones. `encode` calls this on the CPU."""
        if self.kind != "learned":
            return
        for axis, (needed, length) in enumerate(zip((positions.amax(1) + 1).tolist(), self.lengths, strict=False)):
            if needed > length:
                raise InputError(
                    f"{needed} positions on axis {axis}, but only {length} learned: "
                    f'give the tokenizer a larger length, or positions="sinusoid"'
                )

    def forward(self, columns: Tensor, positions: Tensor) -> Tensor:
        """Add positions (B, A, N) to tokens (B, D, N). Positions (1, A, N) are shared by all examples."""
        if self.kind == "none":
            return columns
        if is_batch_constant(positions):  # Pictures of one size share their positions, which are encoded once.
            positions = positions[:1]
        if self.kind == "sinusoid":
            encoded = sinusoidal_encoding(positions, self.dim).mT
        else:
            encoded = reduce(torch.add, (table(positions[:, axis] + 1) for axis, table in enumerate(self.tables)))
        # The sum runs in memory order. Otherwise the gradient of the tables would be summed across that order.
        return (columns.mT + encoded.to(columns.dtype)).mT
