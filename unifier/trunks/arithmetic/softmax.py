"""Softmax along the last axis and its gradient, both in place, by the faster of torch's kernel and its parts."""

import torch
from torch import Tensor

PARTS_BELOW = {torch.bfloat16: 32}
"""On a CPU, for each type, the length of rows below which the parts beat torch's kernel, which there fills no vector.

`python -m benchmarks.attention` measures it again: see its page. In float32 the fused kernel of attention has all rows.
"""


def softmax_(scores: Tensor, added: Tensor | None = None) -> Tensor:
    """scores (..., M), which become the softmax, found in float32, of their sum with what is added, broadcast to it."""
    if _short(scores):
        return softmax_by_parts_(scores, added)
    return torch.softmax(scores if added is None else scores.add_(added), -1, out=scores)


def softmax_backward_(errors: Tensor, weights: Tensor) -> Tensor:
    """errors (..., M), the gradient on a softmax `weights` (..., M), which become that on its scores."""
    if _short(weights):
        return softmax_backward_by_parts_(errors, weights)
    return torch.ops.aten._softmax_backward_data.out(errors, weights, -1, weights.dtype, grad_input=errors)


def softmax_by_parts_(scores: Tensor, added: Tensor | None = None) -> Tensor:
    """As `softmax_`."""
    powers = scores.float()
    if added is not None:
        powers += added
    powers.sub_(powers.amax(-1, keepdim=True)).exp_()
    return scores.copy_(powers.div_(powers.sum(-1, keepdim=True)))


def softmax_backward_by_parts_(errors: Tensor, weights: Tensor) -> Tensor:
    """As `softmax_backward_`."""
    exact = weights.float()
    parts = errors * exact
    return errors.copy_(parts.addcmul_(exact, parts.sum(-1, keepdim=True), value=-1))


def _short(rows: Tensor) -> bool:
    # A compiler writes kernels of its own, and is to know of no such length.
    return not torch.compiler.is_compiling() and rows.shape[-1] < PARTS_BELOW.get(rows.dtype, 0)
