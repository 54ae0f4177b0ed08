"""A recurrent decoder with Bahdanau's additive attention."""

from typing import Unpack, final

import torch
from torch import Tensor, nn

from unifier.heads.decoders.reader import Reader
from unifier.heads.decoders.score import Score
from unifier.heads.decoders.walk import State, WalkingHead
from unifier.heads.pooling import mean
from unifier.heads.writing import AttentiveHead, WritingOptions
from unifier.trunks.recurrent import Cell
from unifier_tokenizers import Dropout, Tokens, Vocabulary


@final
class AdditiveHead(WalkingHead, AttentiveHead):
    """The decoder of Bahdanau et al. 2015: its memory reads each token beside the columns that its last state fits.

    It begins from the mean of the columns. What is said next hangs on the state, the token before and the columns
    (appendix A.2.2, with tanh in maxout's place).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        cell: Cell = "gru",
        dropout: float = 0.0,
        **options: Unpack[WritingOptions],
    ) -> None:
        super().__init__(vocabulary, dim, **options)
        self.score = Score("concat", dim)
        self.reader = Reader(2 * dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(3 * dim, dim)
        self.dropout = Dropout(dropout)

    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        weights: list[Tensor] = []
        self.advance(ids, self.start(tokens), weights)
        return torch.cat(weights, 1)

    def start(self, tokens: Tokens) -> State:
        return self.reader.start(mean(tokens)), *self.score.remember(tokens)

    def advance(self, ids: Tensor, state: State, weights: list[Tensor] | None = None) -> tuple[Tensor, State]:
        past, columns, keys, mask = state
        heard: list[Tensor] = []
        for word in self.dropout(self.embed(ids)).split(1, dim=1):
            shares = self.score(self.reader.top(past)[:, None], keys, mask)
            seen = shares.to(columns.dtype) @ columns
            said, past = self.reader(torch.cat([word, seen], 2), past)
            heard.append(torch.cat([said, word, seen], 2))
            if weights is not None:
                weights.append(shares)
        return self.dropout(self.out(torch.cat(heard, 1)).tanh()), (past, columns, keys, mask)
