"""Many columns to one."""

from typing import Literal

from torch import Tensor

from unifier_tokenizers import Tokens

Pooling = Literal["mean", "first"]


def pool(tokens: Tokens, pooling: Pooling) -> Tensor:
    """Tokens (B, D, N) -> (B, D): the mean of the real columns, or the first one (a class token)."""
    if pooling == "first":
        return tokens.matrix[:, :, 0]
    real = tokens.mask[:, None].to(tokens.matrix.dtype)
    return (tokens.matrix * real).sum(2) / real.sum(2)
