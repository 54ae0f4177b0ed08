"""A linear map of every column, by the faster library and in the memory order that suits it."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from unifier.nn.precision import to_compute_dtype


@final
class Linear(nn.Linear):
    """torch's, by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> (..., L)."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's `linear`: x (..., D), weight (L, D) and bias (L,) -> (..., L).

    On a CPU in float32, torch leaves products to MKL. oneDNN takes half as long on an AMD with AVX-512, which MKL
    leaves unused there; with AVX2 alone whole steps take 1.03 to 1.09 times as long by oneDNN, and on an Intel with
    AVX-512 1.05 to 1.10 (two EPYCs and a Xeon, torch 2.11; `python -m benchmarks.products` measures it again). In
    bfloat16, torch writes the bias down for each column before it adds the product to it, and finds the weight's
    gradient as (L, columns) by (columns, D), which takes 1.2 times as long as its transpose where L is above D. So
    where it is the faster one, oneDNN has the large ones, adds the bias within the product, and finds the gradient the
    faster way round.
    """
    if _large(x, len(weight)):
        if torch.is_grad_enabled():
            answer: Tensor = OneDnnLinear.apply(x, weight, bias)  # pyright: ignore[reportAssignmentType]
            return answer
        return _by_onednn(x, weight, bias)
    return functional.linear(x, weight, bias)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left (R, K) @ right (K, M), by the same rule."""
    if left.dtype == torch.float32 and _large(left, right.shape[1]):  # in bfloat16 torch asks oneDNN by itself
        if not (right.is_contiguous() or right.T.is_contiguous()):
            right = right.contiguous()  # oneDNN's product of rows that lie apart is hundreds of times as slow
        return _by_onednn(left, right.T)
    return left @ right


def prepacked_linear(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """`linear` without a bias, for many x (R, D) and no gradients, by a weight (L, D) that stays as it is meanwhile.

    oneDNN puts a weight into an order of its own for each product; here it is put there once.
    """
    cast = to_compute_dtype(weight.detach())
    dtype = cast.dtype
    if cast.device.type != "cpu" or not has_onednn(dtype):
        return partial(linear, weight=weight)
    own = torch.ops.mkldnn._reorder_linear_weight(cast, MIN_ROWS)
    return lambda x: _by_onednn(x, own) if x.dtype == dtype else linear(x, weight)


MIN_ROWS = 64
"""For about so many columns is the order of a packed weight the best; it serves all."""


MIN_PRODUCT = {torch.bfloat16: 1 << 20, torch.float32: 1 << 21}
"""Below these, Python's part costs more: in bfloat16 numbers of the answer, which fill more than a core's own cache; in
float32 multiplications."""


def _large(x: Tensor, out: int) -> bool:
    """Whether a product of x (..., D) and (D, `out`) is oneDNN's."""
    # A compiler makes its own choice, and is to look no further.
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not has_onednn(x.dtype):
        return False
    numbers = x.numel() // x.shape[-1] * out
    if x.dtype == torch.bfloat16:
        return numbers >= MIN_PRODUCT[x.dtype]
    wanted = not torch.is_autocast_enabled("cpu") and bool(torch.backends.mkldnn.enabled)
    return wanted and mkl_skips_avx512() and numbers * x.shape[-1] >= MIN_PRODUCT[x.dtype]


@cache
def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN is here, and multiplies this type on this processor."""
    if dtype not in MIN_PRODUCT or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


@cache
def mkl_skips_avx512() -> bool:
    """Whether this processor has vectors of 512 bits that MKL does not use, as it does on Intel's own."""
    known = torch.cpu.get_capabilities()
    return known.get("avx512_f", False) and not known.get("cpu_name", "").startswith("Intel")


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@final
class OneDnnLinear(Function):
    """The large one, with its gradients written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight = weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides its names
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        columns, errors = x.flatten(0, -2), gradient.flatten(0, -2)
        to_x, to_weight, to_bias = ctx.needs_input_grad
        wide = len(weight) > weight.shape[1]
        return (
            matmul(errors, weight).view_as(x) if to_x else None,
            (matmul(columns.T, errors).T if wide else matmul(errors.T, columns)) if to_weight else None,
            errors.sum(0) if to_bias else None,
        )
