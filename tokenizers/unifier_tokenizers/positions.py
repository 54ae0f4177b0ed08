"""Positions of columns as numbers a model can use: added to the columns, or as rotary angles."""

import math
from functools import reduce
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from unifier_tokenizers.errors import InputError, check_choice
from unifier_tokenizers.tokens import is_batch_constant

PositionKind = Literal["none", "sinusoid", "learned"]


def sinusoidal_encoding(positions: Tensor, dim: int) -> Tensor:
    """Sines and cosines of each coordinate: positions (B, A, N) -> (B, D, N).

    Each axis has D / A rows, half of them sines and half cosines, with wavelengths from 2 pi to 20,000 pi
    (Vaswani et al. 2017, section 3.5, one axis; the split by axis is that of Dosovitskiy et al. 2021, appendix D.4).
    """
    axes = positions.shape[1]
    if dim % (2 * axes):
        raise InputError(f"sinusoid positions on {axes} axes need D divisible by {2 * axes}, and D is {dim}")
    pairs = dim // (2 * axes)
    wave = torch.exp(torch.arange(pairs, device=positions.device) * (-math.log(10000.0) / pairs))
    angle = positions.mT[..., None] * wave  # B, N, A, pairs: rows lie in memory as the trunk reads them
    return torch.cat([angle.sin(), angle.cos()], dim=3).flatten(2).mT


def rope_frequencies(positions: Tensor, depth: int) -> Tensor:
    """Angles by which rotary attention turns its queries and keys: positions (B, A, N) -> (B, N, depth / 2).

    The axes share the pairs of a head's depth in turn (Su et al. 2021, section 3.2.2, one axis).
    """
    axes, pairs = positions.shape[1], depth // 2
    if depth % 2 or pairs < axes:
        raise InputError(f"rotary positions on {axes} axes need an even head depth of at least {2 * axes}, not {depth}")
    rank = torch.arange(pairs, device=positions.device)
    wave = torch.exp(torch.div(rank, axes, rounding_mode="floor") * (-math.log(10000.0) * axes / pairs))
    return positions[:, rank % axes].transpose(1, 2) * wave


@final
class PositionalEncoding(nn.Module):
    """Adds to each column what tells its place: nothing, fixed sinusoids, or one learned vector a place and axis."""

    def __init__(self, kind: PositionKind, dim: int, lengths: tuple[int, ...]) -> None:
        """`lengths` holds, for each axis, how many places "learned" has a vector for."""
        super().__init__()
        self.kind = check_choice("positions", kind, get_args(PositionKind))
        self.dim = dim
        self.lengths = lengths
        sizes = lengths if kind == "learned" else ()
        self.tables = nn.ModuleList(nn.Embedding(length + 1, dim) for length in sizes)
        for parameter in self.tables.parameters():
            nn.init.normal_(parameter, std=0.5)  # as loud as the sinusoids: a whisper is learned late by a small model

    def check(self, positions: Tensor) -> None:
        """Raise InputError where positions (A, N) reach past what was learned; `encode` calls it, on the CPU."""
        if self.kind != "learned":
            return
        for axis, (reached, length) in enumerate(zip((positions.amax(1) + 1).tolist(), self.lengths, strict=False)):
            if reached > length:
                raise InputError(
                    f"{reached} places on axis {axis} and only {length} learned positions: "
                    f'give the tokenizer a larger length, or positions="sinusoid"'
                )

    def forward(self, columns: Tensor, positions: Tensor) -> Tensor:
        """columns (B, D, N) at positions (B, A, N), or (1, A, N) the same for all -> (B, D, N)."""
        if self.kind == "none":
            return columns
        if is_batch_constant(positions):  # as of pictures of one size: looked up once
            positions = positions[:1]
        if self.kind == "sinusoid":
            places = sinusoidal_encoding(positions, self.dim).mT
        else:
            places = reduce(torch.add, (table(positions[:, axis] + 1) for axis, table in enumerate(self.tables)))
        # In the order they lie in, or what places learn would be summed across it.
        return (columns.mT + places.to(columns.dtype)).mT
