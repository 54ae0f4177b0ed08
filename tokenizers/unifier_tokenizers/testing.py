"""The executable contract of a tokenizer, for the tokenizers of this package and of anyone else."""

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
    """A breach of the contract; the message names the example, the fault and the rule."""


def check_tokenizer(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that a tokenizer keeps the contract on raw examples; the tokenizer is not modified.

    Args:
        tokenizer: The tokenizer.
        raws: Raw examples of several lengths, two of them of equal length. Different lengths test padding. Equal
            lengths test that tokens depend on more than the length.

    Raises:
        ContractError: At the first breach, from the most basic check to the most specific.
        InputError: If no two examples differ, so that the checks could prove nothing.
    """
    if len({pickle.dumps(raw) for raw in raws}) < 2:
        raise InputError(f"{len(raws)} raw examples of which no two differ: a check needs at least two that do")
    with torch.random.fork_rng(devices=[]):
        try:
            subject = deepcopy(tokenizer).eval()
        except Exception as error:
            raise _failure("be copied", error, "every data worker holds a copy") from error
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
    """Check that units are values (..., N) and positions (A, N) int64 on the CPU, N >= 1, all of one layout."""
    layouts: set[tuple[Any, ...]] = set()
    for i, raw in enumerate(raws):
        encoded = tokenizer.encode(raw)
        _require(not (error := units_error(encoded)), f"{error}, for example {i}")
        values, positions = encoded
        absent = positions == NO_POSITION
        _require(
            bool(((positions >= 0) | absent).all()) and torch.equal(absent.any(0), absent.all(0)),
            f"encode gives example {i} a token with {NO_POSITION} on some axes only, or below {NO_POSITION}: "
            f"coordinates count from 0, and {NO_POSITION} is for a token without a position on any axis",
        )
        layouts.add((values.dtype, *values.shape[:-1], "A =", len(positions)))
    _require(
        len(layouts) == 1,
        f"encode gives units of several layouts, {layouts}: dtype, rows and axes must be the same for every example",
    )


def check_coordinates(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that `position_values` gives floats (A, N), finite for every token with a position."""
    for i, raw in enumerate(raws):
        units = tokenizer.encode(raw)
        try:
            coordinates = tokenizer.position_values(units)
        except Exception as error:
            rule = "attention distances are measured in them"
            raise _failure(f"give the position_values of example {i}", error, rule) from error
        _require(
            coordinates.dim() == 2 and len(coordinates) > 0 and coordinates.shape[1] == units.values.shape[-1],
            f"position_values gives {tuple(coordinates.shape)} for example {i}: it must be (A, N) with the example's N",
        )
        _require(
            coordinates.is_floating_point(),
            f"position_values gives {coordinates.dtype} for example {i}: it must be float",
        )
        _require(
            bool(coordinates[:, units.positions[0] != NO_POSITION].isfinite().all()),
            f"position_values gives NaN or infinity for example {i}: tokens with a position have finite values",
        )


@torch.no_grad()
def check_matrix(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that the matrix of an example is D x N, float and finite."""
    for i, raw in enumerate(raws):
        values = tokenizer.encode(raw).values
        try:
            matrix = tokenizer(raw)
        except Exception as error:
            raise _failure(f"embed example {i}", error, f"its values are {values.dtype}") from error
        expected = tokenizer.dim, values.shape[-1]
        _require(
            matrix.shape == expected,
            f"the matrix of example {i} is {tuple(matrix.shape)}: it must be D x N, {expected}",
        )
        _require(matrix.is_floating_point(), f"the matrix of example {i} is {matrix.dtype}: it must be float")
        _require(bool(matrix.isfinite().all()), f"the matrix of example {i} holds NaN or infinity: it must be finite")


@torch.no_grad()
def check_determinism(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that an example gives the same units and, in evaluation mode, the same tokens, bit for bit."""
    for i, raw in enumerate(raws):
        units = tokenizer.encode(raw)
        _require(
            _equal(units, tokenizer.encode(raw)),
            f"encode gives example {i} different units the second time: it must be deterministic",
        )
        _require(
            torch.equal(_embed(tokenizer, units), _embed(tokenizer, units)),
            f"embed gives example {i} different tokens the second time: it must be deterministic in evaluation mode",
        )


@torch.no_grad()
def check_purity(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that `encode` gives the same units after every parameter and buffer has changed."""
    poisoned = deepcopy(tokenizer)
    for tensor in [*poisoned.parameters(), *poisoned.buffers()]:
        tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor.copy_(tensor == 0)
    rule = "encode must read neither a parameter nor a buffer"
    for i, raw in enumerate(raws):
        try:
            equal = _equal(tokenizer.encode(raw), poisoned.encode(raw))
        except Exception as error:
            raise _failure(f"encode example {i} once its weights are NaN", error, rule) from error
        _require(equal, f"encode gives example {i} other units once the weights are NaN: {rule}")


@torch.no_grad()
def check_difference(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that at least two examples have different matrices."""
    first, *others = (tokenizer(raw) for raw in raws)
    _require(
        not all(torch.equal(first, other) for other in others),
        f"all {len(raws)} examples have the same matrix: a changed input must change the output",
    )


@torch.no_grad()
def check_padding(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that padding, of value 0 or another float, changes no token of the example."""
    for i, raw in enumerate(raws):
        units, matrix = tokenizer.encode(raw), tokenizer(raw)
        positions = torch.nn.functional.pad(units.positions, (0, PADDING), value=NO_POSITION)
        for fill in (0.0, 0.5) if units.values.is_floating_point() else (0,):
            padded = Units(torch.nn.functional.pad(units.values, (0, PADDING), value=fill), positions)
            try:
                columns = _embed(tokenizer, padded)
            except Exception as error:
                rule = f"padding has value 0 at position {NO_POSITION}"
                raise _failure(f"embed example {i} when padded", error, rule) from error
            _require_equal_tokens(
                f"padding of value {fill}",
                i,
                columns[:, : matrix.shape[1]],
                matrix,
                f"embed must not let real tokens depend on tokens at position {NO_POSITION}",
            )


@torch.no_grad()
def check_batch(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that every example has the same tokens alone and in a batch."""
    values, positions, mask = pad_columns([tokenizer.encode(raw) for raw in raws])
    device = _device(tokenizer)
    columns = tokenizer.embed(values.to(device), positions.to(device))
    expected = (len(raws), tokenizer.dim, mask.shape[1])
    _require(
        columns.shape == expected,
        f"embed gives {tuple(columns.shape)} for a batch: it must be (B, D, N), {expected}",
    )
    for i, raw in enumerate(raws):
        real = columns[i, :, mask[i].to(device)]
        _require_equal_tokens("a batch", i, real, tokenizer(raw), "embed must treat each example independently")
    shared = positions[:1].to(device).expand(2, -1, -1)  # In training, pictures of one size share their positions.
    try:
        tokenizer.embed(values[[0, 0]].to(device), shared)
    except Exception as error:
        rule = "the positions are one expanded tensor: embed must not write to them, and must use `reshape`, not `view`"
        raise _failure("embed two examples that share their positions", error, rule) from error


@torch.enable_grad()
def check_gradients(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that the examples together give every parameter that requires a gradient a nonzero one."""
    # Zero initialization can block a gradient that training would open, so the parameters are perturbed first.
    perturbed = _perturbed(tokenizer)
    perturbed.zero_grad()
    for raw in raws:
        matrix = perturbed(raw)
        # The weights are uneven because the plain sum of a normalized token is constant and has no gradient.
        weights = torch.arange(matrix.numel(), device=matrix.device).cos().view_as(matrix)
        if matrix.requires_grad:
            (matrix * weights).sum().backward()
    for name, parameter in perturbed.named_parameters():
        has_gradient = parameter.grad is not None and bool(parameter.grad.count_nonzero())
        _require(
            has_gradient or not parameter.requires_grad,
            f"no gradient reaches parameter {name!r}: it must change the tokens, or not require gradients",
        )


@torch.no_grad()
def check_state(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that a tokenizer of other weights gives the same tokens after loading the saved state."""
    loaded, file = _perturbed(tokenizer), BytesIO()
    try:
        torch.save(tokenizer.state_dict(), file)
        file.seek(0)
        loaded.load_state_dict(torch.load(file, weights_only=True))
    except Exception as error:
        raise _failure("save and load its state_dict", error, "a checkpoint holds nothing else") from error
    for i, raw in enumerate(raws):
        _require(
            torch.equal(loaded(raw), tokenizer(raw)),
            f"example {i} has other tokens after saving and loading: state_dict must hold all learned values",
        )


def check_pickle(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that a pickled tokenizer, which a data worker receives, encodes equally."""
    try:
        pickled = pickle.loads(pickle.dumps(tokenizer))
    except Exception as error:
        raise _failure("be pickled", error, "every data worker holds a copy") from error
    for i, raw in enumerate(raws):
        _require(
            _equal(tokenizer.encode(raw), pickled.encode(raw)),
            f"encode gives example {i} other units once pickled: pickling must keep all that encode reads",
        )


def check_key(tokenizer: Tokenizer) -> None:
    """Check that the encoding key is JSON-serializable or None."""
    try:
        json.dumps(tokenizer.encoding_key())
    except (TypeError, ValueError) as error:
        raise _failure("serialize its encoding_key as JSON", error, "the key names the cached units") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ContractError(message)


def _require_equal_tokens(cause: str, example: int, columns: Tensor, expected: Tensor, rule: str) -> None:
    """Raise ContractError unless tokens (D, N) equal the expected tokens to half of their dtype's digits."""
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
    """Return a copy with noise added to every parameter."""
    copy, generator = deepcopy(tokenizer), torch.Generator().manual_seed(0)
    for parameter in copy.parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * noise.to(parameter.device, parameter.dtype))
    return copy
