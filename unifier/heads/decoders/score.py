"""Attention scores between decoder states and columns: dot, general, concat."""

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from unifier_tokenizers import Tokens
from unifier_tokenizers.errors import choose

Kind = Literal["dot", "general", "concat"]


@final
class AttentionScore(nn.Module):
    """Attention by one of three scores (Luong et al. 2015, section 3.1): h·m, h·Wm, and v·tanh(W[h; m]).

    The last one is Bahdanau et al. 2015, appendix A.1.2: W falls into a part for states and one for columns.
    """

    def __init__(self, kind: Kind, dim: int) -> None:
        super().__init__()
        self.added = choose("score", kind, get_args(Kind)) == "concat"
        self.key = nn.Identity() if kind == "dot" else nn.Linear(dim, dim, bias=self.added)
        self.query = nn.Linear(dim, dim, bias=False) if self.added else nn.Identity()
        self.vector = nn.Linear(dim, 1, bias=False) if self.added else nn.Identity()

    def remember(self, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Of Tokens (B, D, N) the columns (B, N, D), their part of the score (B, N, D), and their mask (B, 1, N)."""
        columns = tokens.matrix.transpose(1, 2)
        return columns, self.key(columns), tokens.mask[:, None]

    def forward(self, states: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """states (B, L, D), keys (B, N, D), mask (B, 1 or L, N) -> weights (B, L, N), float32; each row sums to 1."""
        queries = self.query(states)
        if self.added:
            scores = self.vector(torch.tanh(queries[:, :, None] + keys[:, None]))[..., 0]
        else:
            scores = queries @ keys.mT
        return scores.float().masked_fill(~mask, -torch.inf).softmax(-1)
