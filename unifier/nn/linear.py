"""Linear layers and matrix products that use the faster of two CPU libraries, oneDNN and MKL."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from unifier.nn.precision import find_private_op, has_fast_bfloat16, to_compute_dtype

MIN_ROWS = 64
"""The number of input rows for which a prepacked weight is optimized. All numbers of rows are accepted."""

MIN_PRODUCT = {torch.bfloat16: 1 << 20, torch.float32: 1 << 21}
"""The size of the smallest matrix product for which oneDNN is used, keyed by dtype.

For smaller products, the overhead in Python costs more time than oneDNN saves. In bfloat16, the size is the number of
entries of the product, because the product must exceed a core's private cache. In float32, the size is the number of
multiplications.
"""


@final
class Linear(nn.Linear):
    """Linear layer of torch, computed by the function `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Map tokens (..., D) to (..., L)."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute the same function as torch's `linear`, with oneDNN if oneDNN is faster.

    In float32 on a CPU, torch uses MKL. On AMD CPUs, MKL does not use AVX-512, so oneDNN takes half as long as MKL. On
    a CPU with AVX2 only, whole training steps take 1.03 to 1.09 times as long with oneDNN as with MKL. On an Intel CPU
    with AVX-512, whole training steps take 1.05 to 1.10 times as long with oneDNN as with MKL. `python -m
    benchmarks.products` measured these times on two EPYCs and a Xeon, with torch 2.11.

    In bfloat16, torch first copies the bias to each output row, and then adds the product. oneDNN adds the bias during
    the product. The gradient of the weight is the product of (L, tokens) and (tokens, D). If L is larger than D, the
    product of (L, tokens) and (tokens, D) takes 1.2 times as long as the transposed product. `OneDnnLinear` computes
    the faster of the two products.

    Args:
        x: The tokens (..., D).
        weight: The weight (L, D).
        bias: The bias (L,), or None.

    Returns:
        The output (..., L).
    """
    if _prefers_onednn(x, len(weight)):
        if torch.is_grad_enabled():
            y: Tensor = OneDnnLinear.apply(x, weight, bias)  # pyright: ignore[reportAssignmentType]
            return y
        return _onednn_linear(x, weight, bias)
    return functional.linear(x, weight, bias)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Compute left (R, K) @ right (K, M) with the faster library, as in `linear`."""
    # In bfloat16, torch's matrix product already uses oneDNN.
    if left.dtype == torch.float32 and _prefers_onednn(left, right.shape[1]):
        if not (right.is_contiguous() or right.T.is_contiguous()):
            right = right.contiguous()  # With other strides, oneDNN is hundreds of times slower.
        return _onednn_linear(left, right.T)
    return left @ right


def prepacked_linear(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that maps x (R, D) to `linear(x, weight)` without gradients, for a fixed weight (L, D).

    oneDNN reorders the weight in memory for each product. The returned function reuses one reordered copy of the
    weight.
    """
    cast = to_compute_dtype(weight.detach())
    dtype = cast.dtype
    if cast.device.type != "cpu" or _reorder_weight is None or not has_onednn(dtype):
        return partial(linear, weight=weight)
    reordered = _reorder_weight(cast, MIN_ROWS)
    return lambda x: _onednn_linear(x, reordered) if x.dtype == dtype else linear(x, weight)


@cache
def has_onednn(dtype: torch.dtype) -> bool:
    """Return True if oneDNN can multiply matrices of this dtype on this CPU."""
    if dtype not in MIN_PRODUCT or _linear_pointwise is None or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float32:
        return True
    return has_fast_bfloat16("cpu") if _is_bf16_supported is None else bool(_is_bf16_supported())


@cache
def mkl_skips_avx512() -> bool:
    """Return True if this CPU has AVX-512 but MKL does not use AVX-512. MKL uses AVX-512 only on Intel CPUs."""
    capabilities = torch.cpu.get_capabilities()
    return capabilities.get("avx512_f", False) and not capabilities.get("cpu_name", "").startswith("Intel")


@final
class OneDnnLinear(Function):
    """Autograd function that computes a large linear layer and its gradients with oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weight.T + bias."""
        weight = weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  The decorator hides the parameter's name.
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients of x, weight and bias. Return None for a gradient that is not needed."""
        x, weight = ctx.saved_tensors
        inputs, grad = x.flatten(0, -2), grad.flatten(0, -2)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        wide = len(weight) > weight.shape[1]
        return (
            matmul(grad, weight).view_as(x) if needs_x else None,
            (matmul(inputs.T, grad).T if wide else matmul(grad.T, inputs)) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


def _prefers_onednn(x: Tensor, out_features: int) -> bool:
    """Return True if oneDNN is faster for a product of x (..., D) and (D, out_features)."""
    # torch.compile chooses its own kernels, and cannot trace the checks below.
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not has_onednn(x.dtype):
        return False
    size = x.numel() // x.shape[-1] * out_features
    if x.dtype == torch.bfloat16:
        return size >= MIN_PRODUCT[x.dtype]
    allowed = not torch.is_autocast_enabled("cpu") and bool(torch.backends.mkldnn.enabled)
    return allowed and mkl_skips_avx512() and size * x.shape[-1] >= MIN_PRODUCT[x.dtype]


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    assert _linear_pointwise is not None
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    return _linear_pointwise(x, weight, bias, "none", [], "")


def _try_linear(operator: Any) -> Tensor:
    return operator(torch.ones(1, 2, device="cpu"), torch.ones(1, 2, device="cpu"), None, "none", [], "")


_two = torch.full((1, 1), 2.0, device="cpu")
_linear_pointwise = find_private_op("mkldnn._linear_pointwise", _try_linear, _two)
_reorder_weight = find_private_op(
    "mkldnn._reorder_linear_weight",
    lambda operator: _onednn_linear(torch.ones(1, 2, device="cpu"), operator(torch.ones(1, 2, device="cpu"), MIN_ROWS)),
    _two,
)
_is_bf16_supported = find_private_op(
    "mkldnn._is_mkldnn_bf16_supported", lambda operator: torch.tensor(isinstance(operator(), bool)), torch.tensor(True)
)
