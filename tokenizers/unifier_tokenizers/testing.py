"""The contract of a tokenizer, executable: for ours, and for anybody's."""

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
"""Padding columns that are put after an example, to see that they change nothing."""


@final
class ContractError(Exception):
    """A tokenizer breaks its contract: one sentence says where, and what the contract asks."""


def check_tokenizer(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Check that a tokenizer keeps the contract on these raw examples, of which at least two must differ.

    Give examples of several lengths, two of them of one length: lengths show padding, and two of a length show that
    columns depend on more than how many there are. The tokenizer is left as it was. Raises ContractError at the first
    breach, the most basic ones first, and InputError where the examples cannot show anything.
    """
    if len({pickle.dumps(raw) for raw in raws}) < 2:
        raise InputError(f"{len(raws)} raw examples of which no two differ: a check needs at least two that do")
    with torch.random.fork_rng(devices=[]):
        try:
            subject = deepcopy(tokenizer).eval()
        except Exception as error:
            raise ContractError(_cannot("be copied", error, "data num_workers hold a copy of it")) from error
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
    """Units are values (..., N) and positions (A, N) int64 on the CPU, N >= 1, of one layout for all examples."""
    layouts: set[tuple[Any, ...]] = set()
    for i, raw in enumerate(raws):
        encoded = tokenizer.encode(raw)
        _require(not (wrong := units_error(encoded)), f"{wrong}, for example {i}")
        values, positions = encoded
        nowhere = positions == NO_POSITION
        _require(
            bool(((positions >= 0) | nowhere).all()) and torch.equal(nowhere.any(0), nowhere.all(0)),
            f"encode gives example {i} a column that stands nowhere on some axes only, or below 0: "
            f"coordinates count from 0, and {NO_POSITION} is for a column that has no place on any axis",
        )
        layouts.add((values.dtype, *values.shape[:-1], "A =", len(positions)))
    _require(
        len(layouts) == 1,
        f"encode gives units of several layouts, {layouts}: dtype, rows and axes must be the same for every example",
    )


def check_coordinates(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Every column that stands somewhere has finite coordinates: floats (A, N)."""
    for i, raw in enumerate(raws):
        units = tokenizer.encode(raw)
        try:
            places = tokenizer.position_values(units)
        except Exception as error:
            why = "attention's distances are measured with them"
            raise ContractError(_cannot(f"give the coordinates of example {i}", error, why)) from error
        _require(
            places.dim() == 2 and places.shape[0] > 0 and places.shape[1] == units.values.shape[-1],
            f"coordinates gives {tuple(places.shape)} for example {i}: it must be (A, N) with the example's own N",
        )
        _require(places.is_floating_point(), f"example {i} has {places.dtype} coordinates: they must be floats")
        _require(
            bool(places[:, units.positions[0] != NO_POSITION].isfinite().all()),
            f"example {i} has coordinates that are NaN or infinite: a column that stands somewhere has finite ones",
        )


@torch.no_grad()
def check_matrix(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """The matrix of an example is D x N, float and finite."""
    for i, raw in enumerate(raws):
        values = tokenizer.encode(raw).values
        try:
            matrix = tokenizer(raw)
        except Exception as error:
            why = f"its values are {values.dtype}"
            raise ContractError(_cannot(f"embed example {i}", error, why)) from error
        expected = tokenizer.dim, values.shape[-1]
        _require(
            matrix.shape == expected,
            f"the matrix of example {i} is {tuple(matrix.shape)}: it must be D x N, {expected}",
        )
        _require(matrix.is_floating_point(), f"the matrix of example {i} is {matrix.dtype}: it must be float")
        _require(bool(matrix.isfinite().all()), f"the matrix of example {i} holds NaN or infinity: it must be finite")


@torch.no_grad()
def check_determinism(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """The same example gives the same units and, in evaluation mode, the same columns, bit by bit."""
    for i, raw in enumerate(raws):
        units = tokenizer.encode(raw)
        _require(
            _same(units, tokenizer.encode(raw)),
            f"encode gives example {i} different units the second time: it must be deterministic",
        )
        _require(
            torch.equal(_embed(tokenizer, units), _embed(tokenizer, units)),
            f"embed gives example {i} different columns the second time: it must be deterministic in evaluation mode",
        )


@torch.no_grad()
def check_purity(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """`encode` gives the same units when every parameter and buffer holds something else."""
    poisoned = deepcopy(tokenizer)
    for tensor in [*poisoned.parameters(), *poisoned.buffers()]:
        tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor.copy_(tensor == 0)
    for i, raw in enumerate(raws):
        try:
            same = _same(tokenizer.encode(raw), poisoned.encode(raw))
        except Exception as error:
            why = "encode must read neither a parameter nor a buffer"
            raise ContractError(_cannot(f"encode example {i} once its weights are NaN", error, why)) from error
        _require(
            same, f"encode gives example {i} other units once the weights are NaN: it must read no parameter or buffer"
        )


@torch.no_grad()
def check_difference(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Not all examples have the same matrix."""
    first, *others = (tokenizer(raw) for raw in raws)
    _require(
        not all(torch.equal(first, other) for other in others),
        f"all {len(raws)} examples have the same matrix: a changed input must change the output",
    )


@torch.no_grad()
def check_padding(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """Columns after an example, at position `NOWHERE`, change none of its own, whether they hold 0 or another float."""
    for i, raw in enumerate(raws):
        units, matrix = tokenizer.encode(raw), tokenizer(raw)
        positions = torch.nn.functional.pad(units.positions, (0, PADDING), value=NO_POSITION)
        for held in (0.0, 0.5) if units.values.is_floating_point() else (0,):
            padded = Units(torch.nn.functional.pad(units.values, (0, PADDING), value=held), positions)
            try:
                columns = _embed(tokenizer, padded)
            except Exception as error:
                why = f"padding holds value 0 at position {NO_POSITION}"
                raise ContractError(_cannot(f"embed example {i} when padded", error, why)) from error
            _require_same_columns(
                f"padding that holds {held}",
                i,
                columns[:, : matrix.shape[1]],
                matrix,
                f"embed must not let real columns depend on columns at position {NO_POSITION}",
            )


@torch.no_grad()
def check_batch(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """A batch of all examples gives each the columns that it has alone."""
    values, positions, mask = pad_columns([tokenizer.encode(raw) for raw in raws])
    device = _device(tokenizer)
    columns = tokenizer.embed(values.to(device), positions.to(device))
    expected = (len(raws), tokenizer.dim, mask.shape[1])
    _require(
        columns.shape == expected,
        f"embed gives {tuple(columns.shape)} for a batch: it must be (B, D, N), {expected}",
    )
    for i, raw in enumerate(raws):
        own = columns[i, :, mask[i].to(device)]
        _require_same_columns("a batch", i, own, tokenizer(raw), "embed must treat each example apart")
    shared = positions[:1].to(device).expand(2, -1, -1)  # as pictures of one size come in training
    try:
        tokenizer.embed(values[[0, 0]].to(device), shared)
    except Exception as error:
        why = "they are one tensor, seen twice: embed must not write to them, and reshapes them by `reshape`"
        raise ContractError(_cannot("embed two examples that share their positions", error, why)) from error


@torch.enable_grad()
def check_gradients(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """All examples together move every parameter that requires a gradient."""
    moved = _perturbed(tokenizer)  # away from an initialization at 0, which may close a path that training opens
    moved.zero_grad()
    for raw in raws:
        matrix = moved(raw)
        # Uneven weights: a plain sum is constant over a column that is normalized, and has no gradient there.
        weights = torch.arange(matrix.numel(), device=matrix.device).cos().view_as(matrix)
        if matrix.requires_grad:
            (matrix * weights).sum().backward()
    for name, parameter in moved.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.count_nonzero())
        _require(
            reached or not parameter.requires_grad,
            f"no gradient reaches parameter {name!r}: it must change the columns, or not require gradients",
        )


@torch.no_grad()
def check_state(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """A tokenizer of other weights that loads this one's saved state gives the same columns."""
    loaded, file = _perturbed(tokenizer), BytesIO()
    try:
        torch.save(tokenizer.state_dict(), file)
        file.seek(0)
        loaded.load_state_dict(torch.load(file, weights_only=True))
    except Exception as error:
        raise ContractError(_cannot("save and load its state_dict", error, "a checkpoint is nothing else")) from error
    for i, raw in enumerate(raws):
        _require(
            torch.equal(loaded(raw), tokenizer(raw)),
            f"example {i} has other columns after saving and loading: state_dict must hold all that is learned",
        )


def check_pickle(tokenizer: Tokenizer, raws: Sequence[Any]) -> None:
    """A pickled tokenizer, as a data worker gets it, encodes as this one does."""
    try:
        pickled = pickle.loads(pickle.dumps(tokenizer))
    except Exception as error:
        raise ContractError(_cannot("be pickled", error, "data num_workers hold a copy of it")) from error
    for i, raw in enumerate(raws):
        _require(
            _same(tokenizer.encode(raw), pickled.encode(raw)),
            f"encode gives example {i} other units once pickled: a data worker must get all that encode reads",
        )


def check_key(tokenizer: Tokenizer) -> None:
    """What units are kept under is None, or something that JSON can hold."""
    try:
        json.dumps(tokenizer.encoding_key())
    except (TypeError, ValueError) as error:
        raise ContractError(
            _cannot("say its encoding_key in JSON", error, "what is kept of it lies under that")
        ) from error


def _require(kept: bool, sentence: str) -> None:
    if not kept:
        raise ContractError(sentence)


def _require_same_columns(cause: str, example: int, columns: Tensor, expected: Tensor, rule: str) -> None:
    """Columns (D, N) must be the expected ones (D, N), up to half of the digits that their dtype has."""
    difference = (columns - expected).abs().amax(0)
    n = int(difference.argmax())
    tolerance = torch.finfo(expected.dtype).eps ** 0.5 * expected.abs().max()
    _require(
        bool(difference[n] <= tolerance),
        f"{cause} changes column {n} of example {example} by {float(difference[n]):.2g}: {rule}",
    )


def _cannot(what: str, error: Exception, why: str) -> str:
    return f"the tokenizer cannot {what} ({type(error).__name__}: {one_line(error)}): {why}"


def _same(units: Units, others: Units) -> bool:
    return torch.equal(units.values, others.values) and torch.equal(units.positions, others.positions)


def _device(tokenizer: Tokenizer) -> torch.device | None:
    return next((parameter.device for parameter in tokenizer.parameters()), None)


def _embed(tokenizer: Tokenizer, units: Units) -> Tensor:
    """The columns (D, N) of one example's units."""
    device = _device(tokenizer)
    return tokenizer.embed(units.values[None].to(device), units.positions[None].to(device))[0]


@torch.no_grad()
def _perturbed(tokenizer: Tokenizer) -> Tokenizer:
    """A copy whose parameters have moved, each by noise of its own."""
    copy, generator = deepcopy(tokenizer), torch.Generator().manual_seed(0)
    for parameter in copy.parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * noise.to(parameter.device, parameter.dtype))
    return copy
