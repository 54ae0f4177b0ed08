"""A linear map of every column, its products in the order that a processor likes best."""

from functools import cache
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional


@final
class Linear(nn.Linear):
    """torch's, by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> (..., L)."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """torch's `linear`: x (..., D), weight (L, D) and bias (L,) -> (..., L).

    In bfloat16 on a CPU, torch writes the bias down for each column before it adds the product to it, and finds the
    weight's gradient as (L, columns) by (columns, D), which takes 1.2 times as long as its transpose where L is above
    D. Where the answer is `LARGE`, the bias is added within the product here, and the gradient found the faster way
    round.
    """
    large = x.numel() // x.shape[-1] * len(weight) >= LARGE
    if large and x.dtype == torch.bfloat16 and x.device.type == "cpu" and adds_within():
        answer: Tensor = OnePass.apply(x, weight, bias)  # pyright: ignore[reportAssignmentType]
        return answer
    return functional.linear(x, weight, bias)


LARGE = 1 << 20
"""Numbers of an answer: 2 MiB of bfloat16, more than a core's own cache holds; below it, Python's part costs more."""


@cache
def adds_within() -> bool:
    """Whether this processor has bfloat16 products that end in a sum."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@final
class OnePass(Function):
    """The large one, with its gradients written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

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
            (errors @ weight).view_as(x) if to_x else None,
            ((columns.T @ errors).T if wide else errors.T @ columns) if to_weight else None,
            errors.sum(0) if to_bias else None,
        )
