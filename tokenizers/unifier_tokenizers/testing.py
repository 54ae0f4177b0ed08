"""Checks of the tokenizer contract, for tokenizers of this package and of other packages."""

import json
import pickle
from collections.abc import Sequence
from copy import deepcopy
from io import BytesIO
from typing import Any, final

import torch
from torch import Tensor

from unifier_tokenizers.errors import InputError, one_line
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units, pad_columns, units_error

PADDING = 4
"""The number of padding tokens that `check_padding` appends."""


@final
class ContractError(Exception):
    """Error for a tokenizer that breaks the contract.

    The message contains the example, the fault and the rule.
    """


def check_tokenizer(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check on raw examples that a tokenizer fulfills the contract. The tokenizer is not modified.

    Args:
        tokenizer: The tokenizer.
        raws: Raw examples of several lengths. At least two examples should have equal lengths. Different lengths test
            padding. Equal lengths test that tokens depend on more than the length.

    Raises:
        ContractError: If a check fails.
        InputError: If all examples are equal, because equal examples cannot show a fault.
    """
    if len({pickle.dumps(raw) for raw in raws}) < 2:
        raise InputError(
            f"{len(raws)} raw examples are given, but no two are different: give at least two different examples"
        )
    with torch.random.fork_rng(devices=[]):
        try:
            subject = deepcopy(tokenizer).eval()
        except Exception as error:
            raise _failure("be copied", error, "every data worker needs a copy") from error
        check_units(subject, raws)
        check_coordinates(subject, raws)
        check_matrix(subject, raws)
        check_determinism(subject, raws)
        check_purity(subject, raws)
        check_difference(subject, raws)
        check_padding(subject, raws)
        check_batch(subject, raws)
        check_gradients(subject, raws)
        check_state(subject, raws)
        check_pickle(tokenizer, raws)
        check_key(tokenizer)


def check_units(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that `encode` returns valid units with equal layouts for all examples.

    Valid units contain values (..., N) and int64 positions (A, N) on the CPU, with N >= 1.
    """
    layouts: set[tuple[Any, ...]] = set()
    for i, raw in enumerate(raws):
        encoded = tokenizer.encode(raw)
        _require(not (error := units_error(encoded)), f"{error} (example {i})")
        values, positions = encoded
        absent = positions == NO_POSITION
        _require(
            bool(((positions >= 0) | absent).all()) and torch.equal(absent.any(0), absent.all(0)),
            f"a token of example {i} has a coordinate below {NO_POSITION}, or {NO_POSITION} on some axes only: "
            f"coordinates begin at 0, and a token without a position has {NO_POSITION} on all axes",
        )
        layouts.add((values.dtype, *values.shape[:-1], "A =", len(positions)))
    _require(
        len(layouts) == 1,
        f"encode gives units with different layouts, {layouts}: all examples must have the same dtype, rows and axes",
    )


def check_coordinates(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that `position_values` returns floats (A, N). Tokens with a position must have finite values."""
    for i, raw in enumerate(raws):
        units = tokenizer.encode(raw)
        try:
            coordinates = tokenizer.position_values(units)
        except Exception as error:
            rule = "the distances of attention are computed from position_values"
            raise _failure(f"compute the position_values of example {i}", error, rule) from error
        _require(
            coordinates.dim() == 2 and len(coordinates) > 0 and coordinates.shape[1] == units.values.shape[-1],
            f"position_values has shape {tuple(coordinates.shape)} for example {i}: give (A, N) with the example's N",
        )
        _require(
            coordinates.is_floating_point(),
            f"position_values has dtype {coordinates.dtype} for example {i}: give a float dtype",
        )
        _require(
            bool(coordinates[:, units.positions[0] != NO_POSITION].isfinite().all()),
            f"position_values gives NaN or infinity for example {i}: give finite values for tokens with a position",
        )


@torch.no_grad()
def check_matrix(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that the matrix of each example is D x N, float and finite."""
    for i, raw in enumerate(raws):
        values = tokenizer.encode(raw).values
        try:
            matrix = tokenizer(raw)
        except Exception as error:
            raise _failure(f"embed example {i}", error, f"its values are {values.dtype}") from error
        expected = tokenizer.dim, values.shape[-1]
        _require(
            matrix.shape == expected,
            f"the matrix of example {i} has shape {tuple(matrix.shape)}: the shape must be D x N, here {expected}",
        )
        _require(matrix.is_floating_point(), f"the matrix of example {i} has dtype {matrix.dtype}: give a float dtype")
        _require(
            bool(matrix.isfinite().all()), f"the matrix of example {i} contains NaN or infinity: give finite numbers"
        )


@torch.no_grad()
def check_determinism(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that `encode` is deterministic, and that `embed` is deterministic in evaluation mode, bit for bit."""
    for i, raw in enumerate(raws):
        units = tokenizer.encode(raw)
        _require(
            _equal(units, tokenizer.encode(raw)),
            f"the second encode of example {i} gives different units: encode must be deterministic",
        )
        _require(
            torch.equal(_embed(tokenizer, units), _embed(tokenizer, units)),
            f"the second embed of example {i} gives different tokens: embed must be deterministic in evaluation mode",
        )


@torch.no_grad()
def check_purity(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that changing all parameters and buffers does not change the units of `encode`."""
    poisoned = deepcopy(tokenizer)
    for tensor in [*poisoned.parameters(), *poisoned.buffers()]:
        tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor.copy_(tensor == 0)
    rule = "encode must not read a parameter or a buffer"
    for i, raw in enumerate(raws):
        try:
            equal = _equal(tokenizer.encode(raw), poisoned.encode(raw))
        except Exception as error:
            raise _failure(f"encode example {i} after its weights are set to NaN", error, rule) from error
        _require(equal, f"encode gives different units for example {i} after the weights are set to NaN: {rule}")


@torch.no_grad()
def check_difference(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that at least two examples have different matrices."""
    first, *others = (tokenizer(raw) for raw in raws)
    _require(
        not all(torch.equal(first, other) for other in others),
        f"all {len(raws)} examples have the same matrix: different examples must have different matrices",
    )


@torch.no_grad()
def check_padding(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that padding with 0, or with 0.5 in float values, does not change the tokens of an example."""
    for i, raw in enumerate(raws):
        units, matrix = tokenizer.encode(raw), tokenizer(raw)
        positions = torch.nn.functional.pad(units.positions, (0, PADDING), value=NO_POSITION)
        for fill in (0.0, 0.5) if units.values.is_floating_point() else (0,):
            padded = Units(torch.nn.functional.pad(units.values, (0, PADDING), value=fill), positions)
            try:
                columns = _embed(tokenizer, padded)
            except Exception as error:
                rule = f"padding has value 0 at position {NO_POSITION}"
                raise _failure(f"embed example {i} with padding", error, rule) from error
            _require_equal_tokens(
                f"padding of value {fill}",
                i,
                columns[:, : matrix.shape[1]],
                matrix,
                f"real tokens must not depend on padding at position {NO_POSITION}",
            )


@torch.no_grad()
def check_batch(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that the tokens of an example do not depend on the other examples of a batch."""
    values, positions, mask = pad_columns([tokenizer.encode(raw) for raw in raws])
    device = _device(tokenizer)
    columns = tokenizer.embed(values.to(device), positions.to(device))
    expected = (len(raws), tokenizer.dim, mask.shape[1])
    _require(
        columns.shape == expected,
        f"embed gives shape {tuple(columns.shape)} for a batch: the shape must be (B, D, N), here {expected}",
    )
    for i, raw in enumerate(raws):
        real = columns[i, :, mask[i].to(device)]
        _require_equal_tokens("a batch", i, real, tokenizer(raw), "embed must treat each example independently")
    shared = positions[:1].to(device).expand(2, -1, -1)  # In training, equal positions are expanded.
    try:
        tokenizer.embed(values[[0, 0]].to(device), shared)
    except Exception as error:
        rule = "positions may be an expanded tensor, so do not write to them, and use `reshape` in place of `view`"
        raise _failure("embed two examples that share their positions", error, rule) from error


@torch.enable_grad()
def check_gradients(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that every parameter that requires a gradient gets a nonzero gradient from the examples."""
    # A parameter that starts at 0 can block other gradients, so noise is added to all parameters.
    perturbed = _perturbed(tokenizer)
    perturbed.zero_grad()
    for raw in raws:
        matrix = perturbed(raw)
        # The sum is weighted, because the plain sum of a normalized token is constant and has no gradient.
        weights = torch.arange(matrix.numel(), device=matrix.device).cos().view_as(matrix)
        if matrix.requires_grad:
            (matrix * weights).sum().backward()
    for name, parameter in perturbed.named_parameters():
        has_gradient = parameter.grad is not None and bool(parameter.grad.count_nonzero())
        _require(
            has_gradient or not parameter.requires_grad,
            f"parameter {name!r} gets no gradient: use the parameter in embed, or set its requires_grad to False",
        )


@torch.no_grad()
def check_state(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that loading a saved state into a tokenizer with other weights restores the tokens."""
    loaded, file = _perturbed(tokenizer), BytesIO()
    try:
        torch.save(tokenizer.state_dict(), file)
        file.seek(0)
        loaded.load_state_dict(torch.load(file, weights_only=True))
    except Exception as error:
        raise _failure("save and load its state_dict", error, "a checkpoint contains only the state_dict") from error
    for i, raw in enumerate(raws):
        _require(
            torch.equal(loaded(raw), tokenizer(raw)),
            f"example {i} has different tokens after saving and loading: state_dict must contain all learned values",
        )


def check_pickle(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that pickling does not change the units of `encode`, because data workers receive a pickled tokenizer."""
    try:
        pickled = pickle.loads(pickle.dumps(tokenizer))
    except Exception as error:
        raise _failure("be pickled", error, "every data worker needs a copy") from error
    for i, raw in enumerate(raws):
        _require(
            _equal(tokenizer.encode(raw), pickled.encode(raw)),
            f"encode gives different units for example {i} after pickling: pickle all attributes that encode reads",
        )


def check_key(tokenizer: Tokenizer) -> None:
    """Check that the encoding key is JSON-serializable or None."""
    try:
        json.dumps(tokenizer.encoding_key())
    except (TypeError, ValueError) as error:
        raise _failure(
            "serialize its encoding_key as JSON", error, "the cache uses this key to find encoded examples"
        ) from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ContractError(message)


def _require_equal_tokens(cause: str, example: int, columns: Tensor, expected: Tensor, rule: str) -> None:
    """Raise ContractError if tokens (D, N) differ from the expected tokens by more than rounding errors."""
    difference = (columns - expected).abs().amax(0)
    n = int(difference.argmax())
    tolerance = torch.finfo(expected.dtype).eps ** 0.5 * expected.abs().max()
    _require(
        bool(difference[n] <= tolerance),
        f"{cause} changes token {n} of example {example} by {float(difference[n]):.2g}: {rule}",
    )


def _failure(action: str, error: Exception, rule: str) -> ContractError:
    return ContractError(f"the tokenizer cannot {action} ({type(error).__name__}: {one_line(error)}): {rule}")


def _equal(left: Units, right: Units) -> bool:
    return torch.equal(left.values, right.values) and torch.equal(left.positions, right.positions)


def _device(tokenizer: Tokenizer) -> torch.device | None:
    return next((parameter.device for parameter in tokenizer.parameters()), None)


def _embed(tokenizer: Tokenizer, units: Units) -> Tensor:
    """Return the tokens (D, N) of one example."""
    device = _device(tokenizer)
    return tokenizer.embed(units.values[None].to(device), units.positions[None].to(device))[0]


@torch.no_grad()
def _perturbed(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of the tokenizer with noise added to every float parameter."""
    copy, generator = deepcopy(tokenizer), torch.Generator().manual_seed(0)
    for parameter in copy.parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * noise.to(parameter.device, parameter.dtype))
    return copy
