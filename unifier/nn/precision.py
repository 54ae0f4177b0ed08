"""Number types: the compute dtype, LayerNorm in that dtype, and an in-place softmax with float32 inside."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

SHORT_ROW = {torch.bfloat16: 32}
"""On a CPU, the row length for each dtype below which elementary operations beat torch's softmax kernel.

Rows that short do not fill a vector register in torch's kernel. `python -m benchmarks.attention` measures the length
again. float32 has no entry, because torch's fused attention handles all of its rows.
"""


def to_compute_dtype(x: Tensor) -> Tensor:
    """Cast x to the dtype of matrix products: bfloat16 under autocast, else its own dtype.

    The cast happens once, at the first layer of a trunk, so that residual sums and norms read half the memory. The
    statistics of norms, softmax and the loss stay float32 inside, and so do the parameters.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def in_float32(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the layer's output in float32, because scores that rank examples would tie in bfloat16."""
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float())


def default_device() -> str:
    """Return the device type to compute on: "cuda", "mps" (Apple) or "cpu"."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def has_fast_bfloat16(device: str) -> bool:
    """Return True if bfloat16 products are fast on this device type.

    A CPU without bfloat16 instructions is many times slower in bfloat16 than in float32. "mps" is not measured and
    returns False.
    """
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def find_private_op(path: str, trial: Callable[[Any], Tensor], expected: Tensor) -> Any | None:
    """Return one of torch's private operators, or None if it is missing or no longer behaves as expected.

    Private operators may change in any version of torch. Call this at import, and fall back to public functions.

    Args:
        path: The operator below `torch.ops`, such as "aten._softmax_backward_data.out".
        trial: A small call of the operator.
        expected: The result of that call.
    """
    operator: Any = torch.ops
    try:
        for name in path.split("."):
            operator = getattr(operator, name)
        result = trial(operator)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return None
    return operator if torch.equal(result, expected) else None


@final
class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm without the float32 output of autocast on accelerators; its statistics stay float32.

    Autocast would cast before and after each norm and double the bytes between both casts: five times the traffic.
    Here the weight and the bias are rounded instead, like those of a linear layer.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (..., D); the shape and the dtype stay."""
        device = input.device.type
        if device == "cpu" or not torch.is_autocast_enabled(device):
            return super().forward(input)
        parameters = {name: parameter.to(input.dtype) for name, parameter in self.named_parameters()}
        with torch.autocast(device, enabled=False):
            return functional.layer_norm(input, self.normalized_shape, eps=self.eps, **parameters)


def softmax_(scores: Tensor, added: Tensor | None = None) -> Tensor:
    """Replace scores (..., M) by their softmax over the last axis, computed in float32.

    Args:
        scores: The scores, which are overwritten.
        added: A tensor that is added to the scores first, such as a mask of 0 and -inf; it broadcasts.
    """
    if _is_short_row(scores):
        return softmax_by_parts_(scores, added)
    return torch.softmax(scores if added is None else scores.add_(added), -1, out=scores)


def softmax_backward_(grad: Tensor, weights: Tensor) -> Tensor:
    """Replace the gradient of a softmax (..., M) by the gradient of its scores.

    Args:
        grad: The gradient of the softmax, which is overwritten.
        weights: The softmax.
    """
    if _softmax_backward_out is None or _is_short_row(weights):
        return softmax_backward_by_parts_(grad, weights)
    return _softmax_backward_out(grad, weights, -1, weights.dtype, grad_input=grad)


def softmax_by_parts_(scores: Tensor, added: Tensor | None = None) -> Tensor:
    """Do the same as `softmax_`, by elementary operations."""
    exponents = scores.float()
    if added is not None:
        exponents += added
    exponents.sub_(exponents.amax(-1, keepdim=True)).exp_()
    return scores.copy_(exponents.div_(exponents.sum(-1, keepdim=True)))


def softmax_backward_by_parts_(grad: Tensor, weights: Tensor) -> Tensor:
    """Do the same as `softmax_backward_`, by elementary operations."""
    exact = weights.float()
    products = grad * exact
    return grad.copy_(products.addcmul_(exact, products.sum(-1, keepdim=True), value=-1))


def _is_short_row(rows: Tensor) -> bool:
    # torch.compile writes its own kernels, so the length must not affect its graph.
    return not torch.compiler.is_compiling() and rows.shape[-1] < SHORT_ROW.get(rows.dtype, 0)


def _try_softmax_backward(operator: Any) -> Tensor:
    grad, weights = torch.tensor([[1.0, 3.0]], device="cpu"), torch.tensor([[0.5, 0.5]], device="cpu")
    return operator(grad, weights, -1, weights.dtype, grad_input=grad)


_softmax_backward_out = find_private_op(
    "aten._softmax_backward_data.out", _try_softmax_backward, torch.tensor([[-0.5, 0.5]], device="cpu")
)
