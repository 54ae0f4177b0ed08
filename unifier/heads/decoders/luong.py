"""A recurrent decoder with Luong's attention, global or local."""

from typing import Literal, Unpack, final, get_args

import torch
from torch import Tensor, nn

from unifier.heads.decoders.reader import Reader
from unifier.heads.decoders.score import AttentionScore, Kind
from unifier.heads.decoders.walk import LookingHead, State
from unifier.heads.pooling import mean
from unifier.heads.writing import WritingOptions
from unifier.trunks.recurrent import Cell
from unifier_tokenizers import Dropout, InputError, Tokens, Vocabulary
from unifier_tokenizers.errors import choose

Reach = Literal["global", "local"]


@final
class LuongHead(LookingHead):
    """The decoder of Luong et al. 2015, section 3: the recurrent layers read the text alone, and each state attends.

    It attends to all columns, or to those around a place that it predicts ("local-p"). What it attended to is not fed
    to the next state (their "input feeding"), so all tokens of a training batch are computed at once.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        cell: Cell = "lstm",
        score: Kind = "general",
        reach: Reach = "global",
        window: float = 10.0,
        dropout: float = 0.0,
        **options: Unpack[WritingOptions],
    ) -> None:
        """Local attention reaches `window` columns to each side, and falls off with half of that (D and sigma there).

        Raises InputError for a window of less than a column, which may hold none.
        """
        super().__init__(vocabulary, dim, **options)
        if window < 1:
            raise InputError(f"window={window}: at least 1 column to each side must be seen")
        self.window = window
        self.score = AttentionScore(score, dim)
        local = choose("reach", reach, get_args(Reach)) == "local"
        self.place = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.Tanh(), nn.Linear(dim, 1)) if local else None
        self.reader = Reader(dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(2 * dim, dim)
        self.dropout = Dropout(dropout)

    def start(self, tokens: Tokens) -> State:
        return self.reader.start(mean(tokens)), *self.score.remember(tokens)

    def look(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        past, columns, keys, mask = state
        states, past = self.reader(self.dropout(self.embed(ids)), past)
        weights = self._weights(states, keys, mask)
        seen = weights.to(columns.dtype) @ columns
        return self.dropout(self.out(torch.cat([seen, states], 2)).tanh()), [weights], (past, columns, keys, mask)

    def _weights(self, states: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        if self.place is None:
            return self.score(states, keys, mask)
        middle = mask.sum(-1, keepdim=True) * self.place(states).float().sigmoid()  # section 3.2, eq. 9
        away = torch.arange(keys.shape[1], device=keys.device) - middle
        weights = self.score(states, keys, mask & (away.abs() <= self.window))
        return weights * (-2 * (away / self.window).square()).exp()  # eq. 10
