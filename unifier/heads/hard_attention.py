"""A recurrent decoder with hard attention, which attends to one token of the trunk per step."""

from typing import Unpack, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.classification import masked_mean
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.rnn_decoders import AttentionScore, AttentiveIncrementalHead, RNNDecoder
from unifier.heads.text_generation import State, TextGenerationOptions, shift_right
from unifier.trunks.recurrent import Cell
from unifier_tokenizers import Dropout, InputError, Tokens, Vocabulary
from unifier_tokenizers.shares import drawn_shape, own_rows

NUM_ATTENTION_SAMPLES = 2
"""The number of trunk tokens that are sampled per step in training.

At least two samples are needed, because the loss of each sample is the baseline of another sample (see `reinforce`).
"""


@final
class HardAttentionHead(AttentiveIncrementalHead):
    """Luong's decoder with hard attention (Xu et al. 2015, section 4.1).

    In training, each decoder state attends to one sampled token of the trunk. The probability of sampling a token is
    the token's attention weight. In inference, each state attends to the token with the highest weight. REINFORCE
    (Williams 1992) trains the attention weights. The baseline of a sample is the loss of another sample of the same
    decoder state (Kool et al. 2019, eq. 8). `LuongHead` with the score "general" is the variant with soft attention.
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
        """Build the head. R-Drop raises InputError, because the two passes of R-Drop would sample different tokens."""
        super().__init__(vocabulary, dim, **options)
        if self.r_drop:
            raise InputError(f"r_drop={self.r_drop}: hard attention does not support R-Drop; leave r_drop out")
        self.score = AttentionScore("general", dim)
        self.rnn = RNNDecoder(dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(2 * dim, dim)
        self.dropout = Dropout(dropout)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean loss of the sampled tokens, with the gradient of `reinforce`."""
        if not self.training:
            return super().loss(tokens, target)
        is_real = target != IGNORE_INDEX
        rnn_state, values, keys, mask = self.start_decoding(tokens)
        states = self.rnn(self.dropout(self.embed(shift_right(target))), rnn_state)[0]
        weights = self.score(states, keys, mask)
        # The random numbers are drawn for the whole batch, so they do not depend on the number of processes.
        shape = drawn_shape(torch.Size((*target.shape, NUM_ATTENTION_SAMPLES)))
        draws = own_rows(torch.rand(shape, device=target.device))
        cumulative = weights.detach().float().cumsum(-1)
        indices = torch.searchsorted(cumulative, (1 - draws) * cumulative[..., -1:])
        context = values[torch.arange(len(values), device=values.device)[:, None, None], indices]
        hidden = self._hidden(context, states[:, :, None].expand_as(context))[is_real]
        logits, labels = self.project(hidden).float(), target[is_real][:, None].expand(-1, NUM_ATTENTION_SAMPLES)
        losses = functional.cross_entropy(logits.mT, labels, reduction="none", label_smoothing=self.label_smoothing)
        return reinforce(losses, weights.gather(2, indices)[is_real].log())

    def start_decoding(self, tokens: Tokens) -> State:
        return self.rnn.initial_state(masked_mean(tokens)), *self.score.precompute_keys(tokens)

    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        rnn_state, values, keys, mask = state
        output, rnn_state = self.rnn(self.dropout(self.embed(ids)), rnn_state)
        weights = self.score(output, keys, mask)
        rows = torch.arange(ids.shape[0], device=ids.device)[:, None]
        hidden = self._hidden(values[rows, weights.argmax(-1)], output)
        return hidden, [weights], (rnn_state, values, keys, mask)

    def _hidden(self, context: Tensor, states: Tensor) -> Tensor:
        """Combine the context (..., D) and the states (..., D) to hidden states (..., D)."""
        return self.dropout(self.out(torch.cat([context, states], -1)).tanh())


def reinforce(losses: Tensor, log_probs: Tensor) -> Tensor:
    """Return the mean loss, with an unbiased estimate of the gradient of the expected loss.

    The baseline of each sample is the mean loss of the other samples.

    Args:
        losses: Losses (R, K) of K independent samples.
        log_probs: Log-probabilities (R, K) of the samples.
    """
    rewards = losses.detach()
    baseline = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return (losses + (rewards - baseline) * (log_probs - log_probs.detach())).mean()
