"""A recurrent decoder with Bahdanau's additive attention."""

from typing import Unpack, final

import torch
from torch import Tensor, nn

from unifier.heads.decoders.reader import Reader
from unifier.heads.decoders.score import AttentionScore
from unifier.heads.decoders.walk import LookingHead, State
from unifier.heads.pooling import mean
from unifier.heads.writing import WritingOptions
from unifier.trunks.recurrent import Cell
from unifier_tokenizers import Dropout, Tokens, Vocabulary


@final
class AdditiveHead(LookingHead):
    """The decoder of Bahdanau et al. 2015: the last state attends to the columns before each token is read.

    The recurrent layers read the token beside the weighted mean of the columns; their first state is a learned map of
    the plain mean. The next token is predicted from the new state, the token before and the weighted mean (appendix
    A.2.2, with tanh in place of maxout).
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
        self.score = AttentionScore("concat", dim)
        self.reader = Reader(2 * dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(3 * dim, dim)
        self.dropout = Dropout(dropout)

    def start(self, tokens: Tokens) -> State:
        return self.reader.start(mean(tokens)), *self.score.remember(tokens)

    def look(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        past, columns, keys, mask = state
        heard, looks = list[Tensor](), list[Tensor]()
        for word in self.dropout(self.embed(ids)).split(1, dim=1):
            weights = self.score(self.reader.top(past)[:, None], keys, mask)
            seen = weights.to(columns.dtype) @ columns
            said, past = self.reader(torch.cat([word, seen], 2), past)
            heard.append(torch.cat([said, word, seen], 2))
            looks.append(weights)
        hidden = self.dropout(self.out(torch.cat(heard, 1)).tanh())
        return hidden, [torch.cat(looks, 1)], (past, columns, keys, mask)
