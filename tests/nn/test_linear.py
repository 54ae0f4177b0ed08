"""A linear map is torch's, whichever way its products go."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from unifier.nn import linear as module
from unifier.nn.linear import Linear, has_onednn, linear, matmul, prepacked_linear
from unifier.training.cost import without_fused_rnn

B, N = 3, 7
BOTH = [torch.float32, torch.bfloat16]


mkl_leaves_avx512 = module.mkl_skips_avx512.__wrapped__
"""As it is without the stand-in of these tests, and asked anew each time."""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an AMD with AVX-512, where oneDNN's float32 is wanted."""
    monkeypatch.setattr(module, "mkl_leaves_avx512", lambda: True)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what goes to oneDNN, as all does here that may: nothing, on a processor without it."""
    shapes: list[tuple[int, ...]] = []
    go = module._by_onednn  # pyright: ignore[reportPrivateUsage]

    def recorded(x: Tensor, *parts: Tensor | None) -> Tensor:
        shapes.append(tuple(x.shape))
        return go(x, *parts)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(module, "_by_onednn", recorded)
    monkeypatch.setattr(module, "LARGE", dict.fromkeys(BOTH, 1))
    return shapes


def precision(dtype: torch.dtype) -> torch.autocast | nullcontext[None]:
    return torch.autocast("cpu", dtype) if dtype == torch.bfloat16 else nullcontext()


def near(found: Tensor | None, wanted: Tensor | None, dtype: torch.dtype) -> bool:
    assert found is not None
    assert wanted is not None
    return bool((found.double() - wanted).norm() <= (1e-2 if dtype == torch.bfloat16 else 1e-6) * wanted.norm())


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(("dim", "out"), [(8, 24), (24, 8), (8, 8)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_answer_and_gradients_are_near_a_float64_reference(
    dim: int, out: int, turned: bool, bias: bool, dtype: torch.dtype, gone: list[tuple[int, ...]]
) -> None:
    map_ = nn.Linear(dim, out, bias=bias)
    x = torch.randn(B, dim, N).mT if turned else torch.randn(B, N, dim)
    x, errors = x.to(dtype).requires_grad_(), torch.randn(B, N, out).to(dtype)
    with precision(dtype):
        found = linear(x, map_.weight, map_.bias)
        assert gone == [(B, N, dim)] * has_onednn(dtype)
        with torch.no_grad():
            assert torch.equal(linear(x, map_.weight, map_.bias), found)
    found.backward(errors)
    assert found.dtype == dtype
    parts = [x, *map_.parameters()]
    leaves = [part.detach().double().requires_grad_() for part in parts]
    wanted = nn.functional.linear(*leaves)
    wanted.backward(errors.double())
    assert near(found, wanted, dtype)
    for part, leaf in zip(parts, leaves, strict=True):
        assert part.grad is not None
        assert part.grad.dtype == part.dtype
        assert near(part.grad, leaf.grad, dtype)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_what_is_frozen_has_no_gradient(frozen: str, dtype: torch.dtype, gone: list[tuple[int, ...]]) -> None:
    parts = {"x": torch.randn(N, 8).to(dtype), "weight": torch.randn(6, 8), "bias": torch.randn(6)}
    for name, part in parts.items():
        part.requires_grad_(name != frozen)
    with precision(dtype):
        found = linear(parts["x"], parts["weight"], parts["bias"])
    assert gone == [(N, 8)] * has_onednn(dtype)
    found.sum().backward()
    assert [name for name, part in parts.items() if part.grad is None] == [frozen]


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_is_near_a_float64_reference(turned: bool, gone: list[tuple[int, ...]]) -> None:
    left, right = (torch.randn(8, N).T, torch.randn(5, 8).T) if turned else (torch.randn(N, 8), torch.randn(8, 5))
    assert near(matmul(left, right), left.double() @ right.double(), torch.float32)
    assert gone == [(N, 8)] * has_onednn(torch.float32)
    assert torch.equal(matmul(left.bfloat16(), right.bfloat16()), left.bfloat16() @ right.bfloat16())
    assert len(gone) == has_onednn(torch.float32), "torch itself asks oneDNN for these"


def test_no_product_is_of_rows_that_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the columns do that are the first of each example: for such, oneDNN has its slow reference alone."""
    apart: list[tuple[int, ...]] = []
    go = module._by_onednn  # pyright: ignore[reportPrivateUsage]

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not (weight.is_contiguous() or weight.T.is_contiguous()):
            apart.append(weight.stride())
        return go(x, weight, bias)

    monkeypatch.setattr(module, "_by_onednn", watched)
    monkeypatch.setattr(module, "LARGE", dict.fromkeys(BOTH, 1))
    maps = [Linear(8, out) for out in (6, 8, 24)]
    for map_ in maps:
        map_(torch.randn(B, N, 8)[:, :1]).square().sum().backward()
        map_(torch.randn(B, N, 8)).sum().backward()  # whose gradient is one number, seen as many
    assert not apart


@pytest.mark.parametrize(
    ("known", "left"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"avx512_f": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_f": True}, False),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({}, False),
    ],
)
def test_mkl_uses_avx512_on_intels_own_processors_alone(
    known: dict[str, object], left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: known)
    assert mkl_leaves_avx512() == left


def test_small_products_and_other_types_go_torchs_way(
    gone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    map_, x = Linear(8, 6), torch.randn(N, 8)
    assert torch.equal(linear(x.double(), map_.weight.double()), nn.functional.linear(x.double(), map_.weight.double()))
    with torch.autocast("cpu", torch.bfloat16):
        assert map_(x).dtype == torch.bfloat16, "torch casts what comes in float32"
    with without_fused_rnn():  # as operations are counted
        map_(x)
    with monkeypatch.context() as narrow:
        narrow.setattr(module, "mkl_leaves_avx512", lambda: False)
        map_(x)
    assert not gone
    monkeypatch.setattr(module, "LARGE", {torch.float32: 6 * N * 8, torch.bfloat16: 6 * N})
    for dtype in BOTH:
        with precision(dtype):
            map_(x[1:].to(dtype))
            assert not gone
            map_(x.to(dtype))
            assert gone == [(N, 8)] * has_onednn(dtype)
        gone.clear()


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(("dim", "out"), [(8, 24), (7, 5), (16, 1000)])
def test_a_packed_weight_serves_every_number_of_columns(dim: int, out: int, dtype: torch.dtype) -> None:
    weight = torch.randn(out, dim, requires_grad=True)
    with precision(dtype), torch.no_grad():
        through = prepacked_linear(weight)
        for columns in (1, 3, 64, 100):
            x = torch.randn(columns, dim).to(dtype)
            assert near(through(x), x.double() @ weight.double().T, dtype)
            assert through(x).dtype == dtype
            assert near(through(x.float()), x.double() @ weight.double().T, dtype), "the other type is none of its own"


def test_a_compiler_makes_its_own_choice(gone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    map_, x = Linear(8, 6), torch.randn(N, 8)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(map_(x), nn.functional.linear(x, map_.weight, map_.bias))
    assert not gone


def test_a_packed_weight_is_put_in_order_once() -> None:
    weight, x = torch.randn(6, 8), torch.randn(N, 8)
    through = prepacked_linear(weight)
    before = through(x)
    weight.zero_()
    assert torch.equal(through(x), before) == has_onednn(torch.float32), "else each product would turn it anew"
