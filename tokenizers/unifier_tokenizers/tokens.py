"""Units of one example and Tokens of a batch: what tokenizers, trunks and heads exchange.

Letters used in every docstring and comment:

    B  examples in a batch          N  columns: tokens of an example
    D  rows: the width of a token   A  axes of a coordinate: 1 for text and time, 2 for a grid
    P  numbers in a patch           F  bands of a spectrogram
    V  entries of a vocabulary      L  tokens of a target text
    C  classes                      H  attention heads

What can be known of a batch without waiting for an accelerator."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NO_POSITION = -1
"""The coordinate of a column that stands at no place: a class token, or padding."""


class Units(NamedTuple):
    """One example as its tokenizer's `encode` leaves it: what the columns are, not yet what they mean."""

    values: Tensor
    """(..., N): ids (N,), patches (P, N), frames (F, N)."""
    positions: Tensor
    """(A, N) int64: where each column stands in its own domain; `NOWHERE` for a class token."""


SUPPORTED_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128}
)
"""Types in which examples are kept and padded: NumPy has them all, and torch can fill them."""


def units_error(encoded: object) -> str:
    """Why something that an `encode` gave cannot be taken for the units of an example; empty where it can."""
    expected = "encode must give Units of two tensors without gradients"
    if not isinstance(encoded, Units):
        return f"{expected}, not a {type(encoded).__name__}"
    for name, part in encoded._asdict().items():
        if not isinstance(part, Tensor):
            return f"{expected}: its {name} are a {type(part).__name__}"
        if part.requires_grad:
            return f"{expected}: its {name} carry one"
    values, positions = encoded
    shapes = f"encode gives values {tuple(values.shape)} and positions {tuple(positions.shape)}"
    if not (values.dim() >= 1 and positions.dim() == 2 and values.shape[-1] == positions.shape[-1]):
        return f"{shapes}: they must be (..., N) and (A, N) of one N"
    if not positions.numel():
        return f"{shapes}: N and A must be at least 1"
    if positions.dtype != torch.int64:
        return f"encode gives {positions.dtype} positions: coordinates are int64"
    if values.dtype not in SUPPORTED_DTYPES:
        return f"encode gives {values.dtype} values, which no data set is kept in: give float32"
    if not values.device.type == positions.device.type == "cpu":
        return f"encode gives units on {values.device}: data num_workers have nothing but the CPU"
    return ""


class Tokens(NamedTuple):
    """A batch of columns: column n of example b is `matrix[b, :, n]`."""

    matrix: Tensor
    """(B, D, N) float."""
    mask: Tensor
    """(B, N) bool: True on real tokens, False on padding."""
    positions: Tensor
    """(B, A, N) int64."""


def pad_columns(examples: Sequence[Units]) -> tuple[Tensor, Tensor, Tensor]:
    """Lay examples side by side, padded on the right to the longest of them.

    Returns values (B, ..., N) padded with 0, positions (B, A, N) padded with `NOWHERE`, and mask (B, N).
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
    """Whether a tensor's numbers can be asked for at no cost.

    On a CPU alone: an accelerator would have to finish all that it was told before, and a compiler has no answer yet.
    What a CPU knew of a batch is told to them by its strides: one of 0 says that it is the same all along that axis.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def is_batch_constant(x: Tensor) -> bool:
    """Whether it is known that x (B, ...) holds the same for every example."""
    return len(x) == 1 or x.stride(0) == 0 or (is_host_readable(x) and bool((x == x[:1]).all()))


def has_no_padding(mask: Tensor) -> bool:
    """Whether it is known that no column of a mask (B, N) is padding."""
    same = all(stride == 0 or side == 1 for stride, side in zip(mask.stride(), mask.shape, strict=True))
    return same or (is_host_readable(mask) and bool(mask.all()))  # each example has a real column: the same is True
