"""Sampling texts from a model of the next token: temperature, top-k, top-p."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unifier.heads.decoding import Decoder, Hypothesis, one_by_one
from unifier_tokenizers import InputError


def sample(
    decoder: Decoder,
    limits: Tensor,
    draws: Sequence[torch.Generator],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """One text for each of the limits (R,), the most tokens it may have.

    Each token takes one random number of that text's own generator, so a text does not depend on the rest of the batch.
    `temperature`, `top_k` and `top_p` are those of `probabilities`; scores are the model's, whatever they are.
    """
    if not 0 < temperature < math.inf:
        raise InputError(
            f"temperature={temperature}: a number above 0, not infinite, is expected; a beam of 1 takes the likeliest"
        )
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k={top_k}: at least 1 token must be left to draw from")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p={top_p}: a share of the probability is expected, above 0 and at most 1")

    def pick(logs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        kept, tokens = probabilities(logs, temperature, top_k, top_p)
        numbers = torch.stack([torch.rand((), generator=draws[row]) for row in rows.tolist()]).to(logs.device)
        reached = kept.cumsum(1)
        place = (reached < numbers[:, None] * reached[:, -1:]).sum(1, keepdim=True)
        chosen = tokens.gather(1, place)
        return logs.gather(1, chosen)[:, 0], chosen[:, 0]

    return one_by_one(decoder, limits, pick, length_penalty=length_penalty)


def probabilities(logs: Tensor, temperature: float, top_k: int | None, top_p: float) -> tuple[Tensor, Tensor]:
    """What is drawn from: log-probabilities (R, V) to probabilities (R, K), highest first, and their tokens (R, K).

    Logits are divided by the temperature. Of the `top_k` likeliest tokens (Fan et al. 2018, section 5.1; None: of all),
    those stay that begin below the first `top_p` of their probability (Holtzman et al. 2020, section 3.1), and always
    the likeliest; the others get 0.
    """
    ordered, tokens = logs.sort(dim=1, descending=True, stable=True)
    # Beyond these, float32 has no inverse, and what is impossible or likeliest would become no number.
    below = (ordered - ordered[:, :1]) / min(max(temperature, 1e-30), 1e30)
    likely = below[:, :top_k].softmax(1)
    before = likely.cumsum(1) - likely
    outside = before >= top_p
    outside[:, 0] = False
    return likely.masked_fill(outside, 0.0), tokens[:, :top_k]
