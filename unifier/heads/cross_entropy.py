"""The loss over a vocabulary, without the matrix of all tokens by all words."""

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 27}
"""How many logits exist at a time: on a processor 8 MiB of float32, which its cache holds."""


def projected_cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """torch's `cross_entropy(hidden @ weight.T, target)`: hidden (R, D), weight (V, D), target (R,) ids -> scalar.

    The gradients are found chunk by chunk with the loss, so that R x V numbers never exist at once; the products are
    computed in the type of `hidden`, all else in float32.
    """
    loss: Tensor = _ProjectedCrossEntropy.apply(hidden, weight, target, label_smoothing)  # pyright: ignore[reportAssignmentType]
    return loss


@final
class _ProjectedCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            words, learning = weight.to(hidden.dtype), any(ctx.needs_input_grad)
            mean_word = weight.float().mean(0)
            loss = torch.zeros((), device=hidden.device)
            to_weight = torch.zeros_like(weight, dtype=torch.float32)
            to_hidden: list[Tensor] = []
            chunk = max(AT_ONCE.get(hidden.device.type, 1 << 24) // len(weight), 1)
            for rows, ids in zip(hidden.split(chunk), target.split(chunk), strict=True):
                logits, ids = (rows @ words.T).float(), ids[:, None]
                shares = logits.softmax(-1)
                # The largest share is no rounding error away from 0, so its logarithm is exact.
                normaliser = logits.amax(-1) - shares.amax(-1).log()
                wanted = (1 - smoothing) * logits.gather(1, ids)[:, 0] + smoothing * (rows.float() @ mean_word)
                loss += (normaliser - wanted).sum()
                if learning:
                    shares.scatter_add_(1, ids, shares.new_full(ids.shape, smoothing - 1))
                    errors = shares.to(rows.dtype)
                    to_hidden.append((errors @ words).float() - smoothing * mean_word)
                    to_weight += errors.T @ rows
            if learning:
                to_weight -= smoothing / len(weight) * hidden.sum(0, dtype=torch.float32)
                ctx.save_for_backward((torch.cat(to_hidden) / len(target)).to(hidden.dtype), to_weight / len(target))
            return loss / len(target)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides its names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        to_hidden, to_weight = ctx.saved_tensors
        return to_hidden * gradients[0], to_weight * gradients[0], None, None
