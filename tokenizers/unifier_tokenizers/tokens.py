"""Units of one example and Tokens of a batch: the values that tokenizers, trunks and heads exchange.

Letters used in every docstring and comment:

- B: examples in a batch
- N: tokens of an example, the columns of its matrix
- D: width of a token, the rows of the matrix
- A: axes of a position; 1 for text and time, 2 for a grid
- P: numbers in a patch
- F: bands of a spectrogram
- V: entries of a vocabulary
- L: tokens of a target text
- C: classes
- H: attention heads
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NO_POSITION = -1
"""The coordinate of a token without a position: a class token, or padding."""

SUPPORTED_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128}
)
"""Types in which examples are stored and padded: NumPy has all of them, and torch can fill them."""


class Units(NamedTuple):
    """One encoded example, before the learned embedding."""

    values: Tensor
    """(..., N): ids (N,), patches (P, N) or frames (F, N)."""
    positions: Tensor
    """(A, N) int64: the position of each token in its own domain; `NO_POSITION` for a class token."""


class Tokens(NamedTuple):
    """A batch of tokens: token n of example b is `matrix[b, :, n]`."""

    matrix: Tensor
    """(B, D, N) float."""
    mask: Tensor
    """(B, N) bool: True on real tokens, False on padding."""
    positions: Tensor
    """(B, A, N) int64."""


def units_error(encoded: object) -> str:
    """Return the reason why the result of an `encode` is not valid Units, or "" if it is valid."""
    expected = "encode must give Units of two tensors without gradients"
    if not isinstance(encoded, Units):
        return f"{expected}, not a {type(encoded).__name__}"
    for name, part in encoded._asdict().items():
        if not isinstance(part, Tensor):
            return f"{expected}: its {name} are a {type(part).__name__}"
        if part.requires_grad:
            return f"{expected}: its {name} require them"
    values, positions = encoded
    shapes = f"encode gives values {tuple(values.shape)} and positions {tuple(positions.shape)}"
    if not (values.dim() >= 1 and positions.dim() == 2 and values.shape[-1] == positions.shape[-1]):
        return f"{shapes}: they must be (..., N) and (A, N) of one N"
    if not positions.numel():
        return f"{shapes}: N and A must be at least 1"
    if positions.dtype != torch.int64:
        return f"encode gives {positions.dtype} positions: coordinates are int64"
    if values.dtype not in SUPPORTED_DTYPES:
        return f"encode gives {values.dtype} values, which cannot be stored: give float32"
    if not values.device.type == positions.device.type == "cpu":
        return f"encode gives units on {values.device}: data workers have only the CPU"
    return ""


def pad_columns(examples: Sequence[Units]) -> tuple[Tensor, Tensor, Tensor]:
    """Stack examples into a batch, padded on the right to the longest example.

    Returns:
        values (B, ..., N) padded with 0, positions (B, A, N) padded with `NO_POSITION`, and mask (B, N).
    """
    width = max(units.values.shape[-1] for units in examples)
    first = examples[0]
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

    On an accelerator, reading would force a synchronization. The CPU passes on its knowledge of a batch through
    strides instead: a stride of 0 means that all entries along that axis are equal.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def is_batch_constant(x: Tensor) -> bool:
    """Return True if all examples of x (B, ...) are known to be equal."""
    return len(x) == 1 or x.stride(0) == 0 or (is_host_readable(x) and bool((x == x[:1]).all()))


def has_no_padding(mask: Tensor) -> bool:
    """Return True if a mask (B, N) is known to hold no padding."""
    constant = all(stride == 0 or side == 1 for stride, side in zip(mask.stride(), mask.shape, strict=True))
    # Every example has a real token, so a constant mask is True.
    return constant or (is_host_readable(mask) and bool(mask.all()))
