"""A linear map equals torch's, whichever library computes it."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from unifier.nn import linear as module
from unifier.nn.linear import Linear, has_onednn, linear, matmul, mkl_skips_avx512, prepacked_linear
from unifier.training.cost import without_fused_rnn

Shapes = list[tuple[int, ...]]

B, N = 3, 7
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def amd_with_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefer oneDNN in float32, as on an AMD CPU with AVX-512."""
    monkeypatch.setattr(module, "mkl_skips_avx512", lambda: True)


@pytest.fixture
def onednn_shapes(monkeypatch: pytest.MonkeyPatch) -> Shapes:
    """Return the shapes that go to oneDNN, which gets products of any size."""
    shapes: Shapes = []
    original = module._onednn_linear  # pyright: ignore[reportPrivateUsage]

    def recorded(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        assert weight.is_contiguous() or weight.T.is_contiguous(), "oneDNN is slow if the rows are not adjacent"
        shapes.append(tuple(x.shape))
        return original(x, weight, bias)

    monkeypatch.setattr(module, "_onednn_linear", recorded)
    monkeypatch.setattr(module, "MIN_PRODUCT", dict.fromkeys(DTYPES, 1))
    return shapes


def autocast(dtype: torch.dtype) -> torch.autocast | nullcontext[None]:
    return torch.autocast("cpu", dtype) if dtype == torch.bfloat16 else nullcontext()


def is_near(result: Tensor | None, exact: Tensor | None, dtype: torch.dtype) -> bool:
    assert result is not None
    assert exact is not None
    return bool((result.double() - exact).norm() <= (1e-2 if dtype == torch.bfloat16 else 1e-6) * exact.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "out"), [(8, 24), (24, 8), (8, 8)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_and_gradients_near_float64(
    dim: int, out: int, transposed: bool, bias: bool, dtype: torch.dtype, onednn_shapes: Shapes
) -> None:
    layer = nn.Linear(dim, out, bias=bias)
    x = torch.randn(B, dim, N).mT if transposed else torch.randn(B, N, dim)
    x, grad = x.to(dtype).requires_grad_(), torch.randn(B, N, out).to(dtype)
    with autocast(dtype):
        y = linear(x, layer.weight, layer.bias)
        assert onednn_shapes == [(B, N, dim)] * has_onednn(dtype)
        with torch.no_grad():
            assert torch.equal(linear(x, layer.weight, layer.bias), y)
    y.backward(grad)
    assert y.dtype == dtype
    parts = [x, *layer.parameters()]
    leaves = [part.detach().double().requires_grad_() for part in parts]
    exact = nn.functional.linear(*leaves)
    exact.backward(grad.double())
    assert is_near(y, exact, dtype)
    for part, leaf in zip(parts, leaves, strict=True):
        assert part.grad is not None
        assert part.grad.dtype == part.dtype
        assert is_near(part.grad, leaf.grad, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_linear_frozen_part_has_no_gradient(frozen: str, dtype: torch.dtype, onednn_shapes: Shapes) -> None:
    parts = {"x": torch.randn(N, 8).to(dtype), "weight": torch.randn(6, 8), "bias": torch.randn(6)}
    for name, part in parts.items():
        part.requires_grad_(name != frozen)
    with autocast(dtype):
        y = linear(parts["x"], parts["weight"], parts["bias"])
    assert onednn_shapes == [(N, 8)] * has_onednn(dtype)
    y.sum().backward()
    assert [name for name, part in parts.items() if part.grad is None] == [frozen]


@pytest.mark.parametrize("transposed", [False, True])
def test_matmul_near_float64(transposed: bool, onednn_shapes: Shapes) -> None:
    left, right = (torch.randn(8, N).T, torch.randn(5, 8).T) if transposed else (torch.randn(N, 8), torch.randn(8, 5))
    assert is_near(matmul(left, right), left.double() @ right.double(), torch.float32)
    assert onednn_shapes == [(N, 8)] * has_onednn(torch.float32)
    assert torch.equal(matmul(left.bfloat16(), right.bfloat16()), left.bfloat16() @ right.bfloat16())
    assert len(onednn_shapes) == has_onednn(torch.float32), "in bfloat16, torch calls oneDNN itself"


@pytest.mark.usefixtures("onednn_shapes")
def test_onednn_weights_have_adjacent_rows() -> None:
    """Pass a sliced input and an expanded gradient; the fixture refuses weights without adjacent rows."""
    for layer in [Linear(8, out) for out in (6, 8, 24)]:
        layer(torch.randn(B, N, 8)[:, :1]).square().sum().backward()
        layer(torch.randn(B, N, 8)).sum().backward()


@pytest.mark.parametrize(
    ("capabilities", "skips"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"avx512_f": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_f": True}, False),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({}, False),
    ],
)
def test_mkl_skips_avx512_except_on_intel(
    capabilities: dict[str, object], skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert mkl_skips_avx512.__wrapped__() == skips


def test_small_products_go_to_torch(onednn_shapes: Shapes, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Linear(8, 6), torch.randn(N, 8)
    exact = nn.functional.linear(x.double(), layer.weight.double())
    assert torch.equal(linear(x.double(), layer.weight.double()), exact)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16, "torch casts float32 inputs"
    with without_fused_rnn():  # Operations are counted with oneDNN turned off.
        layer(x)
    with monkeypatch.context() as patch:
        patch.setattr(module, "mkl_skips_avx512", lambda: False)
        layer(x)
    assert not onednn_shapes
    monkeypatch.setattr(module, "MIN_PRODUCT", {torch.float32: 6 * N * 8, torch.bfloat16: 6 * N})
    for dtype in DTYPES:
        with autocast(dtype):
            layer(x[1:].to(dtype))
            assert not onednn_shapes
            layer(x.to(dtype))
            assert onednn_shapes == [(N, 8)] * has_onednn(dtype)
        onednn_shapes.clear()
    # The compiler sees torch's linear map.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert not onednn_shapes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "out"), [(8, 24), (7, 5), (16, 1000)])
def test_prepacked_linear_serves_any_rows(dim: int, out: int, dtype: torch.dtype) -> None:
    weight = torch.randn(out, dim, requires_grad=True)
    with autocast(dtype), torch.no_grad():
        project = prepacked_linear(weight)
        for rows in (1, 3, 64, 100):
            x = torch.randn(rows, dim).to(dtype)
            exact = x.double() @ weight.double().T
            assert is_near(project(x), exact, dtype)
            assert project(x).dtype == dtype
            assert is_near(project(x.float()), exact, dtype), "the other dtype must work too"
        before = project(x)
        weight.zero_()
        assert torch.equal(project(x), before) == has_onednn(dtype), "a later change must not be read"
