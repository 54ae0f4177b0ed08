"""Pooling: many columns to one."""

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from unifier_tokenizers import Tokens
from unifier_tokenizers.errors import choose

Pooling = Literal["mean", "first", "attention"]


@final
class Pool(nn.Module):
    """The mean of the real columns, or the first one (a class token), or a mean that weighs them by what they hold.

    The weights of the last are the softmax of a linear map (sequence pooling, Hassani et al. 2021, section 3.2).
    """

    def __init__(self, pooling: Pooling, dim: int) -> None:
        super().__init__()
        self.pooling: Pooling = choose("pooling", pooling, get_args(Pooling))
        self.weigh = nn.Linear(dim, 1, bias=False) if pooling == "attention" else None

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens (B, D, N) -> (B, D)."""
        if self.pooling == "first":
            return tokens.matrix[:, :, 0]
        if self.weigh is None:
            return mean(tokens)
        scores = self.weigh(tokens.matrix.mT)[..., 0].float()
        return _total(tokens, scores.masked_fill(~tokens.mask, -torch.inf).softmax(1))


def mean(tokens: Tokens) -> Tensor:
    """The mean of the real columns: Tokens (B, D, N) -> (B, D)."""
    return _total(tokens, tokens.mask) / tokens.mask.sum(1, keepdim=True)


def _total(tokens: Tokens, weights: Tensor) -> Tensor:
    """The sum of the columns, each times its weight (B, N) -> (B, D)."""
    # In the order in which a trunk's columns lie in memory: then so do their gradients.
    return (tokens.matrix.mT * weights[..., None].to(tokens.matrix.dtype)).sum(1)
