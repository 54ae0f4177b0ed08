"""The classes `Units` (one example) and `Tokens` (a batch).

Tokenizers produce units and tokens. Trunks and heads receive tokens.

Letters used in every docstring and comment:

- B: number of examples in a batch
- N: number of tokens of an example, which is the number of columns of the matrix
- D: width of a token, which is the number of rows of the matrix
- A: number of axes of a position; 1 for text and time, 2 for a grid
- P: number of values in a patch
- F: number of bands of a spectrogram
- V: number of entries of a vocabulary
- L: number of tokens of a target text
- C: number of classes, or of channels of a picture
- H: number of attention heads
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NO_POSITION = -1
"""The coordinate of a token that has no position, such as a class token or padding."""

SUPPORTED_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128}
)
"""The dtypes in which examples can be stored and padded. Both NumPy and torch support every dtype in this set."""


class Units(NamedTuple):
    """Output of `encode` for one example."""

    values: Tensor
    """The values (..., N), such as ids (N,), patches (P, N) or frames (F, N)."""
    positions: Tensor
    """The position of each token in the raw data (A, N) int64, or `NO_POSITION` for a class token."""


class Tokens(NamedTuple):
    """Batch of tokens. Token n of example b is `matrix[b, :, n]`."""

    matrix: Tensor
    """The tokens (B, D, N), in a float dtype."""
    mask: Tensor
    """(B, N) bool, True for real tokens and False for padding."""
    positions: Tensor
    """The positions of the tokens (B, A, N), in int64."""


def units_error(encoded: object) -> str:
    """Return the reason why `encoded` is not valid Units, or "" if `encoded` is valid."""
    expected = "encode must give Units of two tensors without gradients"
    if not isinstance(encoded, Units):
        return f"{expected}, not a {type(encoded).__name__}"
    for name, part in encoded._asdict().items():
        if not isinstance(part, Tensor):
            return f"{expected}, but the {name} are a {type(part).__name__}"
        if part.requires_grad:
            return f"{expected}, but the {name} require gradients"
    values, positions = encoded
    shapes = f"encode gives values {tuple(values.shape)} and positions {tuple(positions.shape)}"
    if not (values.dim() >= 1 and positions.dim() == 2 and values.shape[-1] == positions.shape[-1]):
        return f"{shapes}: give (..., N) and (A, N) with the same N"
    if not positions.numel():
        return f"{shapes}: N and A must be at least 1"
    if positions.dtype != torch.int64:
        return f"encode gives positions of dtype {positions.dtype} instead of torch.int64"
    if values.dtype not in SUPPORTED_DTYPES:
        return f"encode gives values of dtype {values.dtype}, which cannot be stored: give float32"
    if not values.device.type == positions.device.type == "cpu":
        return f"encode gives units on {values.device}: give units on the CPU, because data workers use no other device"
    return ""


def pad_columns(examples: Sequence[Units]) -> tuple[Tensor, Tensor, Tensor]:
    """Stack examples into a batch, padded on the right to the longest example.

    Returns:
        The values (B, ..., N) padded with 0, the positions (B, A, N) padded with `NO_POSITION`, and the mask (B, N).
    """
    lengths = {units.values.shape[-1] for units in examples}
    width, first = max(lengths), examples[0]
    if len(lengths) == 1:  # Stacking is several times faster than copying the examples one by one.
        mask = torch.ones(len(examples), width, dtype=torch.bool)
        return (
            torch.stack([units.values for units in examples]),
            torch.stack([units.positions for units in examples]),
            mask,
        )
    values = first.values.new_zeros(len(examples), *first.values.shape[:-1], width)
    positions = first.positions.new_full((len(examples), first.positions.shape[0], width), NO_POSITION)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    for b, units in enumerate(examples):
        n = units.values.shape[-1]
        values[b, ..., :n] = units.values
        positions[b, :, :n] = units.positions
        mask[b, :n] = True
    return values, positions, mask


def is_host_readable(x: Tensor) -> bool:
    """Return True if reading the tensor's values is free: on the CPU and outside torch.compile.

    On an accelerator, reading would force a synchronization. Without a synchronization, a stride of 0 shows that all
    entries along an axis are equal.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def is_batch_constant(x: Tensor) -> bool:
    """Return True if all examples of x (B, ...) are known to be equal."""
    # `len` would fix the number of examples in an exported graph.
    return x.shape[0] == 1 or x.stride(0) == 0 or (is_host_readable(x) and bool((x == x[:1]).all()))


def has_no_padding(mask: Tensor) -> bool:
    """Return True if a mask (B, N) is known to contain no padding."""
    constant = all(stride == 0 or side == 1 for stride, side in zip(mask.stride(), mask.shape, strict=True))
    # Every example has a real token, so a constant mask contains only True.
    return constant or (is_host_readable(mask) and bool(mask.all()))
