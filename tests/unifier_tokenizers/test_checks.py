"""Every check catches a tokenizer that is broken in its way, says so, and lets a correct one pass."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.testing import ContractError, check_tokenizer
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units

D = 5
RAWS = [[0.5, -1.0, 2.0], [1.0, 0.0, 3.0, -2.0, 0.5, 1.5], [0.25, 4.0, -0.5]]


class Correct(Tokenizer):
    """Numbers as columns, each of which sees its neighbors; frames (2, N) at positions (1, N)."""

    def __init__(self) -> None:
        super().__init__(D)
        torch.manual_seed(0)
        self.project = nn.Linear(2, D)
        self.neighbors = nn.Conv1d(D, D, 3, padding=1)
        self.dropout = nn.Dropout(0.5)
        self.shift = nn.Parameter(torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def encode(self, raw: Any) -> Units:
        values = torch.tensor(raw)
        return Units(torch.stack([values, values**2]), torch.arange(len(raw))[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        columns = self.project(values.mT).mT.masked_fill(positions[:, :1] == NO_POSITION, 0)
        return self.dropout(columns + self.neighbors(columns) + self.shift)


class ClosedGate(Correct):
    """Correct as well: a branch that starts at 0 has no gradient yet, and will have one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))
        self.branch = nn.Linear(2, D)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions) + self.gate * self.branch(values.mT).mT


class Unaligned(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values, positions[:, 1:])


class Empty(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values[:, :0], positions[:, :0])


class Int32Positions(Correct):
    def encode(self, raw: Any) -> Units:
        units = super().encode(raw)
        return units._replace(positions=units.positions.int())


class OnDevice(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values.to("meta"), positions)


class BelowNowhere(Correct):
    def encode(self, raw: Any) -> Units:
        units = super().encode(raw)
        return units._replace(positions=units.positions - 2)


class HalfNowhere(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values, torch.cat([positions, positions * 0 + NO_POSITION]))


class RowsByLength(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values.repeat(len(raw), 1), positions)


class CoordinatesOfAnother(Correct):
    def position_values(self, units: Units) -> Tensor:
        return super().position_values(units)[:, 1:]


class WholeCoordinates(Correct):
    def position_values(self, units: Units) -> Tensor:
        return units.positions


class NoCoordinates(Correct):
    def position_values(self, units: Units) -> Tensor:
        return super().position_values(units) / 0


class FailsToCount(Correct):
    def position_values(self, units: Units) -> Tensor:
        return super().position_values(units) * torch.ones(7)


class NowhereHasNone(Correct):
    """Correct as well: what a column at `NOWHERE` has is read by nobody."""

    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values, positions - 1)

    def position_values(self, units: Units) -> Tensor:
        return super().position_values(units).masked_fill(units.positions == NO_POSITION, torch.nan)


class Transposed(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions).mT


class IntegerMatrix(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions).long()


class Infinite(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions) / 0


class RandomEncode(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values + torch.randn(()), positions)


class RandomEmbed(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return nn.functional.dropout(super().embed(values, positions), training=True)


class ReadsBuffer(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values * self.get_buffer("scale"), positions)


class CountsByParameter(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values, positions + int(self.shift))


class WrongType(Correct):
    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values.double(), positions)


class Constant(Correct):
    def encode(self, raw: Any) -> Units:
        return super().encode([0.0 for _ in raw[:3]])


class SubtractsMean(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values - values.mean(-1, keepdim=True), positions)


class TrustsPadding(Correct):
    """Right only as long as padding holds 0."""

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        smooth = nn.functional.avg_pool1d(values, 3, stride=1, padding=1)
        return super().embed(smooth, positions)


class FailsOnPadding(Correct):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, D)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions) + self.table(positions[:, 0]).mT


class ScalesByBatch(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions) * len(values)


class OnlyFirst(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions)[:1]


class WritesToPositions(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions.clamp_(min=NO_POSITION))


class Unused(Correct):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, D)


class TimesZero(Correct):
    def __init__(self) -> None:
        super().__init__()
        self.ignored = nn.Parameter(torch.ones(D, 1))

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions) + self.ignored * 0


class Detached(Correct):
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions).detach()


class IgnoresState(Correct):
    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        pass


class UnreadableState(Correct):
    def get_extra_state(self) -> Any:
        return threading.Thread


class HoldsFunction(Correct):
    def __init__(self) -> None:
        super().__init__()
        self.function: Callable[[float], float] = lambda x: x


class HoldsLock(Correct):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class ForgetsOffset(Correct):
    def __init__(self) -> None:
        super().__init__()
        self.offset = 1.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "offset": 0.0}

    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values + self.offset, positions)


class KeepsUnderTensor(Correct):
    def encoding_key(self) -> dict[str, Any]:
        return {"scale": self.scale}


BROKEN: list[tuple[type[Correct], str]] = [
    (Unaligned, r"values \(2, 3\) and positions \(1, 2\): they must be .* of one N, for example 0"),
    (Empty, "N and A must be at least 1"),
    (Int32Positions, "torch.int32 positions: coordinates are int64, for example 0"),
    (OnDevice, "units on meta: .*, for example 0"),
    (BelowNowhere, "coordinates count from 0"),
    (HalfNowhere, "a column that stands nowhere on some axes only"),
    (RowsByLength, "units of several layouts"),
    (CoordinatesOfAnother, r"coordinates gives \(1, 2\) for example 0: it must be \(A, N\)"),
    (WholeCoordinates, "torch.int64 coordinates"),
    (NoCoordinates, "coordinates that are NaN or infinite"),
    (FailsToCount, "cannot give the coordinates of example 0"),
    (WrongType, "cannot embed example 0 .*its values are torch.float64"),
    (Transposed, r"the matrix of example 0 is \(3, 5\): it must be D x N, \(5, 3\)"),
    (IntegerMatrix, "torch.int64: it must be float"),
    (Infinite, "it must be finite"),
    (RandomEncode, "encode gives example 0 different units the second time"),
    (RandomEmbed, "embed gives example 0 different columns the second time"),
    (ReadsBuffer, "other units once the weights are NaN"),
    (CountsByParameter, "cannot encode example 0 once its weights are NaN .*neither a parameter nor a buffer"),
    (Constant, "all 3 examples have the same matrix"),
    (SubtractsMean, "padding that holds 0.0 changes column . of example 0 by"),
    (TrustsPadding, "padding that holds 0.5 changes column 2 of example 0 by"),
    (FailsOnPadding, r"cannot embed example 0 when padded \(IndexError"),
    (ScalesByBatch, "a batch changes column . of example 0 by .*each example apart"),
    (OnlyFirst, r"\(1, 5, 6\) for a batch: it must be \(B, D, N\), \(3, 5, 6\)"),
    (WritesToPositions, "cannot embed two examples that share their positions .*must not write to them"),
    (Unused, "no gradient reaches parameter 'unused.weight'"),
    (TimesZero, "no gradient reaches parameter 'ignored'"),
    (Detached, "no gradient reaches parameter 'shift'"),
    (IgnoresState, "other columns after saving and loading"),
    (UnreadableState, "cannot save and load its state_dict"),
    (HoldsFunction, "cannot be pickled"),
    (HoldsLock, "cannot be copied"),
    (ForgetsOffset, "other units once pickled"),
    (KeepsUnderTensor, r"cannot say its encoding_key in JSON \(TypeError"),
]


@pytest.mark.parametrize(("tokenizer", "sentence"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_each_check_catches_a_tokenizer_that_is_broken_in_its_way(tokenizer: type[Correct], sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence) as caught:
        check_tokenizer(tokenizer(), RAWS)
    assert "\n" not in str(caught.value)


def test_a_correct_tokenizer_passes_and_is_left_as_it_was() -> None:
    tokenizer = Correct()
    tokenizer(RAWS[0]).sum().backward()
    gradients = [parameter.grad.clone() for parameter in tokenizer.parameters() if parameter.grad is not None]
    state = {name: tensor.clone() for name, tensor in tokenizer.state_dict().items()}
    random = torch.get_rng_state()
    check_tokenizer(tokenizer, RAWS)
    assert tokenizer.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, state[name]) for name, tensor in tokenizer.state_dict().items())
    for parameter, gradient in zip(tokenizer.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_a_correct_tokenizer_passes_frozen_and_gated_and_where_gradients_are_off() -> None:
    check_tokenizer(Correct().requires_grad_(False), RAWS)
    check_tokenizer(ClosedGate(), RAWS)
    check_tokenizer(NowhereHasNone(), RAWS)
    torch.no_grad()(check_tokenizer)(Correct(), RAWS)


def test_random_state_is_restored_after_a_breach() -> None:
    tokenizer, random = RandomEncode(), torch.get_rng_state()
    with pytest.raises(ContractError):
        check_tokenizer(tokenizer, RAWS)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("raws", [[], RAWS[:1], [RAWS[0], RAWS[0]]])
def test_examples_that_show_nothing_are_refused(raws: list[Any]) -> None:
    with pytest.raises(InputError, match=f"{len(raws)} raw examples of which no two differ"):
        check_tokenizer(Correct(), raws)
