"""A recurrent decoder with hard attention: one column per token, trained by REINFORCE."""

from typing import Unpack, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.classification import masked_mean
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.rnn_decoders import AttentionScore, AttentiveIncrementalHead, RNNDecoder, State
from unifier.heads.text_generation import TextGenerationOptions, shift_right
from unifier.trunks.recurrent import Cell
from unifier_tokenizers import Dropout, InputError, Tokens, Vocabulary

NUM_SAMPLES = 2
"""Columns drawn for each token: each one's reward is measured by the other's."""


@final
class HardAttentionHead(AttentiveIncrementalHead):
    """Luong's decoder with hard attention (Xu et al. 2015, section 4.1): a state sees one column, drawn by its weight.

    In use it is the likeliest. The draws are taught by REINFORCE (Williams 1992), whose baseline is the loss of another
    draw of the same state (Kool et al. 2019, eq. 8): there is none to learn or to average. Its soft twin is `LuongHead`
    with the score "general".
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        cell: Cell = "lstm",
        dropout: float = 0.0,
        **options: Unpack[TextGenerationOptions],
    ) -> None:
        """Raises InputError for R-Drop, whose two readings would draw unlike columns."""
        super().__init__(vocabulary, dim, **options)
        if self.r_drop:
            raise InputError(f"r_drop={self.r_drop}: hard attention has none; leave it out")
        self.score = AttentionScore("general", dim)
        self.reader = RNNDecoder(dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(2 * dim, dim)
        self.dropout = Dropout(dropout)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """In training the mean loss of some draws, whose gradient is on average that of the expected loss."""
        if not self.training:
            return super().loss(tokens, target)
        real = target != IGNORE_INDEX
        past, columns, keys, mask = self.start_decoding(tokens)
        states = self.reader(self.dropout(self.embed(shift_right(target))), past)[0]
        weights = self.score(states, keys, mask)[real]
        places = weights.multinomial(NUM_SAMPLES, replacement=True)
        seen = columns[real.nonzero()[:, :1], places]
        logits = self.project(self._say(seen, states[real][:, None].expand_as(seen))).float()
        words = target[real][:, None].expand_as(places)
        losses = functional.cross_entropy(logits.mT, words, reduction="none", label_smoothing=self.label_smoothing)
        return reinforce(losses, weights.gather(1, places).log())

    def start_decoding(self, tokens: Tokens) -> State:
        return self.reader.start(masked_mean(tokens)), *self.score.precompute_keys(tokens)

    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        past, columns, keys, mask = state
        states, past = self.reader(self.dropout(self.embed(ids)), past)
        weights = self.score(states, keys, mask)
        rows = torch.arange(len(ids), device=ids.device)[:, None]
        return self._say(columns[rows, weights.argmax(-1)], states), [weights], (past, columns, keys, mask)

    def _say(self, seen: Tensor, states: Tensor) -> Tensor:
        """Both (..., D) -> (..., D)."""
        return self.dropout(self.out(torch.cat([seen, states], -1)).tanh())


def reinforce(losses: Tensor, logs: Tensor) -> Tensor:
    """The mean of losses (R, K) of K independent draws, whose log-probabilities are `logs` (R, K): a scalar.

    Its gradient is, on average over draws, that of the expected loss. Each draw's baseline is the mean of the others.
    """
    own = losses.detach()
    others = (own.sum(1, keepdim=True) - own) / (own.shape[1] - 1)
    return (losses + (own - others) * (logs - logs.detach())).mean()
