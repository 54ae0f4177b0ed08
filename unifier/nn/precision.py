"""The compute dtype, LayerNorm in the compute dtype, and an in-place softmax that is computed in float32."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

SHORT_ROW = {torch.bfloat16: 32}
"""The smallest row length for which a CPU uses torch's softmax kernel, keyed by dtype.

For shorter rows, elementary operations are faster, because a short row does not fill a vector register in torch's
kernel. `python -m benchmarks.attention` compares the softmax kernel with elementary operations. float32 has no entry,
because float32 attention always uses torch's fused kernel.
"""


def to_compute_dtype(x: Tensor) -> Tensor:
    """Cast x to the dtype of autocast, such as bfloat16. Without autocast, return x unchanged.

    A trunk casts its input once, so residual sums and norms read half as many bytes. The parameters stay in float32.
    The statistics of norms, the softmax and the loss are computed in float32.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def in_float32(layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer in float32. In bfloat16, the scores of different examples would often be equal."""
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float())


def default_device() -> str:
    """Return the device type to compute on: "cuda", "mps" (Apple) or "cpu"."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def has_fast_bfloat16(device: str) -> bool:
    """Return True if bfloat16 products are fast on this device type.

    A CPU without bfloat16 instructions is many times slower in bfloat16 than in float32. The result for "mps" is False,
    because the speed of bfloat16 on "mps" was not measured.
    """
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def find_private_op(path: str, trial: Callable[[Any], Tensor], expected: Tensor) -> Any | None:
    """Return a private operator of torch, or None if the operator is missing or gives an unexpected result.

    Private operators may change in any version of torch. If the operator is missing, use torch's public functions.

    Args:
        path: The path of the operator below `torch.ops`, such as "aten._softmax_backward_data.out".
        trial: A function that calls the operator on small tensors.
        expected: The expected result of `trial`.
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
    """LayerNorm whose output has the dtype of the input, even under autocast on accelerators.

    Autocast would cast the input of torch's LayerNorm to float32 and the output back, which causes five times the
    memory traffic. This class needs no casts of tokens, because the weight and the bias are rounded to the dtype of the
    input. The statistics are computed in float32.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize tokens (..., D). The shape and the dtype do not change."""
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
        added: A tensor that is added to the scores before the softmax, such as a mask of 0 and -inf. The shape of
            `added` must broadcast to the shape of the scores.
    """
    if _is_short_row(scores):
        return softmax_by_parts_(scores, added)
    return torch.softmax(scores if added is None else scores.add_(added), -1, out=scores)


def softmax_backward_(grad: Tensor, weights: Tensor) -> Tensor:
    """Replace the gradient of a softmax (..., M) by the gradient of its scores.

    Args:
        grad: The gradient of the softmax, which is overwritten.
        weights: The output of the softmax.
    """
    if _softmax_backward_out is None or _is_short_row(weights):
        return softmax_backward_by_parts_(grad, weights)
    return _softmax_backward_out(grad, weights, -1, weights.dtype, grad_input=grad)


def softmax_by_parts_(scores: Tensor, added: Tensor | None = None) -> Tensor:
    """Compute the same result as `softmax_`, with elementary operations."""
    exponents = scores.float()
    if added is not None:
        exponents += added
    exponents.sub_(exponents.amax(-1, keepdim=True)).exp_()
    return scores.copy_(exponents.div_(exponents.sum(-1, keepdim=True)))


def softmax_backward_by_parts_(grad: Tensor, weights: Tensor) -> Tensor:
    """Compute the same result as `softmax_backward_`, with elementary operations."""
    exact = weights.float()
    products = grad * exact
    return grad.copy_(products.addcmul_(exact, products.sum(-1, keepdim=True), value=-1))


def _is_short_row(rows: Tensor) -> bool:
    # torch.compile generates its own kernels, so the compiled graph must not depend on the row length.
    return not torch.compiler.is_compiling() and rows.shape[-1] < SHORT_ROW.get(rows.dtype, 0)


def _try_softmax_backward(operator: Any) -> Tensor:
    grad, weights = torch.tensor([[1.0, 3.0]], device="cpu"), torch.tensor([[0.5, 0.5]], device="cpu")
    return operator(grad, weights, -1, weights.dtype, grad_input=grad)


_softmax_backward_out = find_private_op(
    "aten._softmax_backward_data.out", _try_softmax_backward, torch.tensor([[-0.5, 0.5]], device="cpu")
)
