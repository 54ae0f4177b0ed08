"""A linear map is torch's, whichever way its products go."""

import pytest
import torch
from torch import Tensor, nn

from unifier.trunks import linear as module
from unifier.trunks.linear import Linear, linear

B, N = 3, 7


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers every time, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what goes our own way, which all does here that may: nothing, on a processor without bfloat16."""
    shapes: list[tuple[int, ...]] = []
    apply = module.OnePass.apply

    def recorded(x: Tensor, *parts: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return apply(x, *parts)

    monkeypatch.setattr(module.OnePass, "apply", recorded)
    monkeypatch.setattr(module, "LARGE", 1)
    return shapes


def near(found: Tensor | None, wanted: Tensor | None) -> bool:
    assert found is not None
    assert wanted is not None
    return bool((found.double() - wanted).norm() <= 1e-2 * wanted.norm())


@pytest.mark.parametrize(("dim", "out"), [(8, 24), (24, 8), (8, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_answer_and_gradients_are_near_a_float64_reference(
    dim: int, out: int, turned: bool, gone: list[tuple[int, ...]]
) -> None:
    map_ = nn.Linear(dim, out)
    x = torch.randn(B, dim, N).mT if turned else torch.randn(B, N, dim)
    x, errors = x.bfloat16().requires_grad_(), torch.randn(B, N, out).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = linear(x, map_.weight, map_.bias)
    found.backward(errors)
    assert gone == [(B, N, dim)] * module.adds_within()
    assert found.dtype == torch.bfloat16
    leaves = [part.detach().double().requires_grad_() for part in (x, map_.weight, map_.bias)]
    wanted = leaves[0] @ leaves[1].T + leaves[2]
    wanted.backward(errors.double())
    assert near(found, wanted)
    for part, leaf in zip((x, map_.weight, map_.bias), leaves, strict=True):
        assert part.grad is not None
        assert part.grad.dtype == part.dtype
        assert near(part.grad, leaf.grad)


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_what_is_frozen_has_no_gradient(frozen: str, gone: list[tuple[int, ...]]) -> None:
    parts = {"x": torch.randn(N, 8).bfloat16(), "weight": torch.randn(6, 8), "bias": torch.randn(6)}
    for name, part in parts.items():
        part.requires_grad_(name != frozen)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear(parts["x"], parts["weight"], parts["bias"])
    found.sum().backward()
    assert gone == [(N, 8)] * module.adds_within()
    assert [name for name, part in parts.items() if part.grad is None] == [frozen]


def test_small_answers_and_other_types_go_torchs_way(
    gone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    map_, x = Linear(8, 6), torch.randn(N, 8)
    assert torch.equal(map_(x), nn.functional.linear(x, map_.weight, map_.bias))
    assert not gone
    monkeypatch.setattr(module, "LARGE", 6 * N)
    with torch.autocast("cpu", torch.bfloat16):
        map_(x[1:].bfloat16())
        assert not gone
        map_(x.bfloat16())
    assert gone == [(N, 8)] * module.adds_within()
