"""Each check refuses a tokenizer with its fault, and accepts correct tokenizers."""

import threading
from collections.abc import Callable
from typing import Any, final

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
    """Numbers as frames (2, N) at positions (1, N); each token sees its neighbors."""

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


def position_values(units: Units) -> Tensor:
    return units.positions.float()


def scale(tokenizer: Correct) -> Tensor:
    return tokenizer.get_buffer("scale")


Fault = tuple[Callable[..., Any], str]

ENCODE_FAULTS: dict[str, Fault] = {
    "unaligned": (lambda t, v, p: Units(v, p[:, 1:]), r"\(2, 3\) .*\(1, 2\).*example 0"),
    "empty": (lambda t, v, p: Units(v[:, :0], p[:, :0]), "N and A"),
    "int32 positions": (lambda t, v, p: Units(v, p.int()), "torch.int32 .*example 0"),
    "on a device": (lambda t, v, p: Units(v.to("meta"), p), "meta.*example 0"),
    "below no position": (lambda t, v, p: Units(v, p - 2), f"example 0 .*{NO_POSITION}"),
    "position on one axis": (lambda t, v, p: Units(v, torch.cat([p, p * 0 + NO_POSITION])), "some axes"),
    "rows by length": (lambda t, v, p: Units(v.repeat(v.shape[1], 1), p), "layouts"),
    "random units": (lambda t, v, p: Units(v + torch.randn(()), p), "encode .*example 0 .*deterministic"),
    "reads a buffer": (lambda t, v, p: Units(v * scale(t), p), "example 0 .*NaN.*buffer"),
    "counts by parameter": (lambda t, v, p: Units(v, p + int(t.shift)), "cannot encode example 0 .*NaN"),
    "wrong dtype": (lambda t, v, p: Units(v.double(), p), "cannot embed example 0 .*torch.float64"),
    "constant": (lambda t, v, p: Units(v[:, :3] * 0, p[:, :3]), "all 3 examples"),
}
"""Changes of the units (values, positions), and the message of the check that refuses them."""

COORDINATE_FAULTS: dict[str, Fault] = {
    "fewer coordinates": (lambda units: position_values(units)[:, 1:], r"position_values .*\(1, 2\) .*example 0"),
    "integer coordinates": (lambda units: units.positions, "torch.int64"),
    "infinite coordinates": (lambda units: position_values(units) / 0, "NaN or infinity for example 0"),
    "failing coordinates": (lambda units: position_values(units) * torch.ones(7), "position_values of example 0"),
}

EMBED_FAULTS: dict[str, Fault] = {
    "transposed": (lambda embed, v, p: embed(v, p).mT, r"example 0 .*\(3, 5\).*\(5, 3\)"),
    "integer matrix": (lambda embed, v, p: embed(v, p).long(), "torch.int64"),
    "infinite": (lambda embed, v, p: embed(v, p) / 0, "NaN or infinity"),
    "random": (lambda embed, v, p: nn.functional.dropout(embed(v, p)), "embed .*example 0 .*deterministic"),
    "subtracts mean": (lambda embed, v, p: embed(v - v.mean(-1, keepdim=True), p), "0.0 changes token . of example 0"),
    "trusts padding": (lambda embed, v, p: embed(smooth(v), p), "0.5 changes token 2 of example 0"),
    "scales by batch": (lambda embed, v, p: embed(v, p) * len(v), "a batch changes token . of example 0"),
    "only first": (lambda embed, v, p: embed(v, p)[:1], r"\(1, 5, 6\) .*\(3, 5, 6\)"),
    "writes to positions": (lambda embed, v, p: embed(v, p.clamp_(min=NO_POSITION)), "share their positions"),
    "times zero": (lambda embed, v, p: embed(v, p) + embed.__self__.added * 0, "'added'"),
    "fails on padding": (lambda embed, v, p: embed(v, p) + embed.__self__.added(p[:, 0]).mT, "IndexError"),
    "detached": (lambda embed, v, p: embed(v, p).detach(), "'shift'"),
}


ADDED_ATTRIBUTES: dict[str, Fault] = {
    "fails on padding": (lambda: nn.Embedding(10, D), r"cannot embed example 0 .*IndexError"),
    "times zero": (lambda: nn.Parameter(torch.ones(D, 1)), "'added'"),
    "unused": (lambda: nn.Linear(2, D), "'added.weight'"),
    "holds a function": (lambda: lambda x: x, "cannot be pickled"),
    "holds a lock": (threading.Lock, "cannot be copied"),
}
"""Factories of an attribute `added`, and the message of the check that refuses it."""


def smooth(values: Tensor) -> Tensor:
    """Average neighbors, which is correct only if padding is 0."""
    return nn.functional.avg_pool1d(values, 3, stride=1, padding=1)


@final
class Faulty(Correct):
    """`Correct` with one fault, found by its name so that the tokenizer can be pickled."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        if fault in ADDED_ATTRIBUTES:
            self.added = ADDED_ATTRIBUTES[fault][0]()

    def encode(self, raw: Any) -> Units:
        units = super().encode(raw)
        return ENCODE_FAULTS[self.fault][0](self, *units) if self.fault in ENCODE_FAULTS else units

    def position_values(self, units: Units) -> Tensor:
        change = COORDINATE_FAULTS.get(self.fault)
        return change[0](units) if change else super().position_values(units)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        change = EMBED_FAULTS.get(self.fault)
        return change[0](super().embed, values, positions) if change else super().embed(values, positions)


class ClosedGate(Correct):
    """A correct tokenizer: a branch that starts at 0 has no gradient yet."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))
        self.branch = nn.Linear(2, D)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return super().embed(values, positions) + self.gate * self.branch(values.mT).mT


class NoCoordinate(Correct):
    """A correct tokenizer: the coordinate of a token without a position is never read."""

    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values, positions - 1)

    def position_values(self, units: Units) -> Tensor:
        return super().position_values(units).masked_fill(units.positions == NO_POSITION, torch.nan)


class IgnoresState(Correct):
    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        pass


class UnreadableState(Correct):
    def get_extra_state(self) -> Any:
        return threading.Thread


class ForgetsOffset(Correct):
    def __init__(self) -> None:
        super().__init__()
        self.offset = 1.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "offset": 0.0}

    def encode(self, raw: Any) -> Units:
        values, positions = super().encode(raw)
        return Units(values + self.offset, positions)


class KeyHoldsTensor(Correct):
    def encoding_key(self) -> dict[str, Any]:
        return {"scale": self.scale}


FAULTY_CLASSES: dict[type[Correct], str] = {
    IgnoresState: "different tokens after .*loading",
    UnreadableState: "state_dict",
    ForgetsOffset: "example 0 after pickling",
    KeyHoldsTensor: r"encoding_key .*TypeError",
}
FAULTS = {
    name: message
    for faults in (ENCODE_FAULTS, COORDINATE_FAULTS, EMBED_FAULTS, ADDED_ATTRIBUTES)
    for name, (_, message) in faults.items()
}


@pytest.mark.parametrize("fault", [*FAULTS, *FAULTY_CLASSES], ids=lambda fault: getattr(fault, "__name__", fault))
def test_check_refuses_fault(fault: str | type[Correct]) -> None:
    tokenizer, message = (Faulty(fault), FAULTS[fault]) if isinstance(fault, str) else (fault(), FAULTY_CLASSES[fault])
    with pytest.raises(ContractError, match=message) as error:
        check_tokenizer(tokenizer, RAWS)
    assert "\n" not in str(error.value)


def test_check_leaves_tokenizer_unchanged() -> None:
    tokenizer = Correct()
    tokenizer(RAWS[0]).sum().backward()
    gradients = [parameter.grad.clone() for parameter in tokenizer.parameters() if parameter.grad is not None]
    state = {name: tensor.clone() for name, tensor in tokenizer.state_dict().items()}
    random_state = torch.get_rng_state()
    check_tokenizer(tokenizer, RAWS)
    assert tokenizer.training
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in tokenizer.state_dict().items())
    for parameter, gradient in zip(tokenizer.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_check_accepts_correct_tokenizers() -> None:
    check_tokenizer(Correct().requires_grad_(False), RAWS)
    check_tokenizer(ClosedGate(), RAWS)
    check_tokenizer(NoCoordinate(), RAWS)
    torch.no_grad()(check_tokenizer)(Correct(), RAWS)


def test_check_restores_random_state_after_breach() -> None:
    tokenizer, random_state = Faulty("random units"), torch.get_rng_state()
    with pytest.raises(ContractError):
        check_tokenizer(tokenizer, RAWS)
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize("raws", [[], RAWS[:1], [RAWS[0], RAWS[0]]])
def test_check_equal_examples_refused(raws: list[Any]) -> None:
    with pytest.raises(InputError, match=f"{len(raws)} raw examples"):
        check_tokenizer(Correct(), raws)
