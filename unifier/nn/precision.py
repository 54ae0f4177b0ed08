"""The number type of columns, and which types are fast on which device.

A norm of every column that leaves it in the type it came in.

Softmax along the last axis and its gradient, both in place, by the faster of torch's kernel and its parts."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional


def to_compute_dtype(x: Tensor) -> Tensor:
    """x in the type that products are computed in: bfloat16 under autocast, else its own.

    Cast once where columns enter a stack, residual sums and norms read half the memory; the norms' statistics, softmax
    and loss stay float32 inside, and so do the parameters.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def in_float32(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer makes of x in float32: scores by which examples are ranked tie in bfloat16."""
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float())


def default_device() -> str:
    """What this machine computes on: "cuda", "mps" (Apple's), or "cpu"."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def has_fast_bfloat16(device: str) -> bool:
    """Whether products of bfloat16 are fast on "cuda" or on this processor; without instructions of their own they take
    many times as long as those of float32. On "mps" nobody has measured them: there they are not."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device != "cpu":
        return False
    known = torch.cpu.get_capabilities()
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


@final
class LayerNorm(nn.LayerNorm):
    """torch's, whose statistics are float32 inside.

    On an accelerator autocast would have float32 outside too: a cast before each norm, one after it, and between them
    twice the bytes, in all five times as many. There the weight and the bias are rounded as those of a linear map are.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> the same shape and type."""
        device = input.device.type
        if device == "cpu" or not torch.is_autocast_enabled(device):
            return super().forward(input)
        own = {name: part.to(input.dtype) for name, part in self.named_parameters()}
        with torch.autocast(device, enabled=False):
            return functional.layer_norm(input, self.normalized_shape, eps=self.eps, **own)


SHORT_ROW = {torch.bfloat16: 32}
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
    return not torch.compiler.is_compiling() and rows.shape[-1] < SHORT_ROW.get(rows.dtype, 0)
