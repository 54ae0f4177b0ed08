"""A recurrent decoder without attention: one last state holds the whole input."""

from typing import Unpack, final

import torch
from torch import Tensor

from unifier.heads.decoders.reader import Reader
from unifier.heads.decoders.walk import State, WalkingHead
from unifier.heads.writing import WritingOptions
from unifier.trunks.recurrent import Cell
from unifier_tokenizers import Dropout, Tokens, Vocabulary


@final
class RecurrentHead(WalkingHead):
    """Layers of LSTM (Sutskever et al. 2014) or GRU whose first state is a learned map of the trunk's last real column.

    They read that column again beside each token (Cho et al. 2014, section 2.2), and no other column. Since the trunk
    sees the past, the last column has seen the whole input.
    """

    visible = "past"

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
        self.reader = Reader(2 * dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.dropout = Dropout(dropout)

    def start(self, tokens: Tokens) -> State:
        rows = torch.arange(len(tokens.mask), device=tokens.mask.device)
        last = tokens.matrix[rows, :, tokens.mask.sum(1) - 1]
        return self.reader.start(last), last

    def advance(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        past, last = state
        words = self.dropout(self.embed(ids))
        states, after = self.reader(torch.cat([words, last[:, None].expand_as(words)], 2), past)
        return self.dropout(states), (after, last)
