"""The loss over a vocabulary, without the matrix of all tokens by all words."""

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from unifier.nn.linear import matmul

CHUNK_TOKENS = {"cpu": 1 << 21, "cuda": 1 << 27}
"""How many logits exist at a time: on a processor 8 MiB of float32, which its cache holds."""


CHUNKS_PER_PRODUCT = 2
"""Of so many such chunks at a time are the gradients found, by one product each, and added to those before."""


def projected_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float = 0.0, r_drop: float = 0.0
) -> Tensor:
    """torch's `cross_entropy(hidden @ weight.T, target)`: hidden (R, D), weight (V, D), target (R,) ids -> scalar.

    With `r_drop` (alpha of Liang et al. 2021, eq. 4) the second half of the rows is the first half read again, and half
    of alpha times the mean of both Kullback-Leibler divergences is added.

    The gradients are found chunk by chunk with the loss, so that R x V numbers never exist at once; the products are
    computed in the type of `hidden`, all else in float32.
    """
    if not torch.is_grad_enabled():
        weight = weight.detach()  # or its gradient would be found nonetheless
    loss: Tensor = _ProjectedCrossEntropy.apply(hidden, weight, target, label_smoothing, r_drop)  # pyright: ignore[reportAssignmentType]
    return loss


@final
class _ProjectedCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, r_drop: float) -> Tensor:
        readings = 2 if r_drop else 1
        with torch.autocast(hidden.device.type, enabled=False):
            words, learning = weight.to(hidden.dtype), any(ctx.needs_input_grad)
            mean_word = weight.float().mean(0)
            loss = torch.zeros((), device=hidden.device)
            to_words = weight.new_zeros(weight.T.shape, dtype=torch.float32)  # (D, V): the faster product
            to_hidden: list[Tensor] = []
            chunk = max(CHUNK_TOKENS.get(hidden.device.type, 1 << 24) // len(weight) // readings, 1)
            both = hidden.unflatten(0, (readings, -1)), target.unflatten(0, (readings, -1))
            for rows, ids in zip(*(part.split(CHUNKS_PER_PRODUCT * chunk, 1) for part in both), strict=True):
                errors = rows.new_empty(*ids.shape, len(words))
                for some, their_ids, their_errors in zip(
                    *(part.split(chunk, 1) for part in (rows, ids, errors)), strict=True
                ):
                    lost, found = _loss(some, their_ids, words, mean_word, smoothing, r_drop)
                    loss += lost
                    if learning:
                        their_errors.copy_(found.view_as(their_errors))
                if learning:
                    flat, errors = rows.flatten(0, 1), errors.flatten(0, 1)
                    to_hidden.append(
                        (matmul(errors, words).float() - smoothing * mean_word).unflatten(0, (readings, -1))
                    )
                    to_words += matmul(flat.T, errors)
            if learning:
                to_words -= smoothing / len(weight) * hidden.sum(0, dtype=torch.float32)[:, None]
                whole = torch.cat(to_hidden, 1).flatten(0, 1)
                to_weight = torch.div(to_words.T, len(target), out=torch.empty_like(weight, dtype=torch.float32))
                ctx.save_for_backward((whole / len(target)).to(hidden.dtype), to_weight)
            return loss / len(target)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides its names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        to_hidden, to_weight = ctx.saved_tensors
        return to_hidden * gradients[0], to_weight * gradients[0], None, None, None


def _loss(
    rows: Tensor, ids: Tensor, words: Tensor, mean_word: Tensor, smoothing: float, r_drop: float
) -> tuple[Tensor, Tensor]:
    """The summed loss of rows (readings, r, D) of ids (readings, r), and its gradient on their logits
    (readings * r, V), but for what smoothing wants of all words alike."""
    flat, places = rows.flatten(0, 1), ids.flatten()[:, None]
    logits = matmul(flat, words.T)
    above_mean = logits.gather(1, places)[:, 0].float() - flat.float() @ mean_word
    logs = logits.float()
    torch.log_softmax(logs, -1, out=logs)
    loss = (smoothing * above_mean - logs.gather(1, places)[:, 0]).sum()
    if r_drop:
        apart, probabilities = _apart(logs, logs.exp(), r_drop / 2)
        loss += apart
    else:
        probabilities = logs.exp_()
    return loss, probabilities.scatter_add_(1, places, probabilities.new_full(places.shape, smoothing - 1))


def _apart(logs: Tensor, probabilities: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """How far two readings' probabilities p and q are apart, `weight` times KL(p, q) + KL(q, p), summed over rows.

    Both are (2 r, V), the logarithms and what they are of, p's rows first. With it come the probabilities plus its
    gradient on the logits, which is p (log p - log q - KL(p, q)) + p - q for p, and for q with the two changed over.
    """
    p, q = probabilities.chunk(2)
    ahead = torch.sub(*logs.chunk(2))
    p_ahead, q_ahead = p * ahead, q * ahead
    p_from_q, q_from_p = p_ahead.sum(-1, keepdim=True), -q_ahead.sum(-1, keepdim=True)
    to_p = p_ahead.addcmul_(p, 1 / weight + 1 - p_from_q).sub_(q)
    to_q = q_ahead.neg_().addcmul_(q, 1 / weight + 1 - q_from_p).sub_(p)
    return weight * (p_from_q + q_from_p).sum(), torch.cat([to_p, to_q]).mul_(weight)
