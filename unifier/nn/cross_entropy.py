"""Cross-entropy after a projection to a vocabulary, computed without storing all logits."""

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from unifier.nn.linear import matmul

CHUNK_TOKENS = {"cpu": 1 << 21, "cuda": 1 << 27}
"""The number of logits in memory at the same time, keyed by device type. 8 MiB fit into the cache of a CPU."""

CHUNKS_PER_PRODUCT = 2
"""The number of chunks whose gradients are computed with one matrix product."""


def projected_cross_entropy(
    hidden_states: Tensor, weight: Tensor, target: Tensor, label_smoothing: float = 0.0, r_drop: float = 0.0
) -> Tensor:
    """Return torch's `cross_entropy(hidden_states @ weight.T, target)`, averaged over rows.

    The loss and its gradients are computed together in chunks of rows, without an R x V matrix of logits. Matrix
    products use the dtype of the hidden states. All other operations use float32.

    Args:
        hidden_states: The hidden states (R, D).
        weight: The weight (V, D) of the projection.
        target: The target ids (R,).
        label_smoothing: The share of the target probability that is spread evenly over the vocabulary.
        r_drop: The factor alpha of R-Drop (Liang et al. 2021, eq. 4). The value 0 disables R-Drop. With R-Drop, the
            second half of the rows must come from a second forward pass over the examples of the first half. R-Drop
            adds alpha / 2 times the mean of two Kullback-Leibler divergences to the loss.

    Returns:
        The scalar loss in float32.
    """
    if not torch.is_grad_enabled():
        weight = weight.detach()  # Without `detach`, the weight would get a gradient.
    loss: Tensor = _ProjectedCrossEntropy.apply(hidden_states, weight, target, label_smoothing, r_drop)  # pyright: ignore[reportAssignmentType]
    return loss


@final
class _ProjectedCrossEntropy(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_states: Tensor, weight: Tensor, target: Tensor, smoothing: float, r_drop: float
    ) -> Tensor:
        passes = 2 if r_drop else 1
        with torch.autocast(hidden_states.device.type, enabled=False):
            cast_weight, needs_grad = weight.to(hidden_states.dtype), any(ctx.needs_input_grad)
            mean_weight = weight.float().mean(0)
            loss = torch.zeros((), device=hidden_states.device)
            # A product with a result (D, V) is faster than a product with a result (V, D).
            grad_weight = weight.new_zeros(weight.T.shape, dtype=torch.float32)
            grad_hidden: list[Tensor] = []
            chunk = max(CHUNK_TOKENS.get(hidden_states.device.type, 1 << 24) // len(weight) // passes, 1)
            by_pass = hidden_states.unflatten(0, (passes, -1)), target.unflatten(0, (passes, -1))
            for rows, ids in zip(*(part.split(CHUNKS_PER_PRODUCT * chunk, 1) for part in by_pass), strict=True):
                grad_logits = rows.new_empty(*ids.shape, len(cast_weight))
                for chunk_rows, chunk_ids, chunk_grad in zip(
                    *(part.split(chunk, 1) for part in (rows, ids, grad_logits)), strict=True
                ):
                    chunk_loss, grad = _chunk_loss(chunk_rows, chunk_ids, cast_weight, mean_weight, smoothing, r_drop)
                    loss += chunk_loss
                    if needs_grad:
                        chunk_grad.copy_(grad.view_as(chunk_grad))
                if needs_grad:
                    flat, grad_logits = rows.flatten(0, 1), grad_logits.flatten(0, 1)
                    grad_rows = matmul(grad_logits, cast_weight).float() - smoothing * mean_weight
                    grad_hidden.append(grad_rows.unflatten(0, (passes, -1)))
                    grad_weight += matmul(flat.T, grad_logits)
            if needs_grad:
                grad_weight -= smoothing / len(weight) * hidden_states.sum(0, dtype=torch.float32)[:, None]
                grad_hidden_states = torch.cat(grad_hidden, 1).flatten(0, 1) / len(target)
                mean_grad = torch.empty_like(weight, dtype=torch.float32)
                torch.div(grad_weight.T, len(target), out=mean_grad)
                ctx.save_for_backward(grad_hidden_states.to(hidden_states.dtype), mean_grad)
            return loss / len(target)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  The decorator hides the parameter's name.
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden_states, grad_weight = ctx.saved_tensors
        return grad_hidden_states * grads[0], grad_weight * grads[0], None, None, None


def _chunk_loss(
    rows: Tensor, ids: Tensor, weight: Tensor, mean_weight: Tensor, smoothing: float, r_drop: float
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of a chunk, and the gradient with respect to the logits.

    The returned gradient lacks the term -smoothing / V of every logit, which the caller adds.

    Args:
        rows: The hidden states (passes, r, D).
        ids: The target ids (passes, r).
        weight: The weight (V, D), in the dtype of the rows.
        mean_weight: The mean (D,) of the weight over the vocabulary, in float32.
        smoothing: The label smoothing.
        r_drop: The factor alpha of R-Drop.

    Returns:
        The scalar loss, and the gradient (passes * r, V).
    """
    flat, index = rows.flatten(0, 1), ids.flatten()[:, None]
    logits = matmul(flat, weight.T)
    above_mean = logits.gather(1, index)[:, 0].float() - flat.float() @ mean_weight
    log_probs = logits.float()
    torch.log_softmax(log_probs, -1, out=log_probs)
    loss = (smoothing * above_mean - log_probs.gather(1, index)[:, 0]).sum()
    if r_drop:
        divergence, probs = _symmetric_divergence(log_probs, log_probs.exp(), r_drop / 2)
        loss += divergence
    else:
        probs = log_probs.exp_()
    return loss, probs.scatter_add_(1, index, probs.new_full(index.shape, smoothing - 1))


def _symmetric_divergence(log_probs: Tensor, probs: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Return factor * (KL(p, q) + KL(q, p)), summed over rows, and `probs` plus the gradient of the result.

    With factor 1, the gradient with respect to the logits of p is p (log p - log q - KL(p, q)) + p - q. The gradient
    with respect to the logits of q has the same form, with p and q exchanged.

    Args:
        log_probs: The log-probabilities (2 r, V), first the rows of p and then the rows of q.
        probs: The exponential (2 r, V) of `log_probs`.
        factor: The weight of the divergence.
    """
    p, q = probs.chunk(2)
    log_ratio = torch.sub(*log_probs.chunk(2))
    p_log_ratio, q_log_ratio = p * log_ratio, q * log_ratio
    p_from_q, q_from_p = p_log_ratio.sum(-1, keepdim=True), -q_log_ratio.sum(-1, keepdim=True)
    grad_p = p_log_ratio.addcmul_(p, 1 / factor + 1 - p_from_q).sub_(q)
    grad_q = q_log_ratio.neg_().addcmul_(q, 1 / factor + 1 - q_from_p).sub_(p)
    return factor * (p_from_q + q_from_p).sum(), torch.cat([grad_p, grad_q]).mul_(factor)
