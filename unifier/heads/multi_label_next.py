"""The head that predicts which notes sound next: any number of yes-or-no answers per token."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import IGNORE_INDEX, count_labels
from unifier.heads.summed_metrics import SummedHead
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Tokens

PRIOR = 0.05
"""The initial probability that a value is 1. In music, about 4 of 88 keys sound at the same time."""

MIN_TEMPERATURE = 1e-30
"""A lower temperature would divide by 0 in float64."""


@final
class MultiLabelNextHead(SummedHead):
    """A linear layer that predicts C independent yes-or-no values of the next token, such as the keys of a piano.

    The targets come from the objective `NextToken`. The loss of a token is the sum of C binary cross-entropies, as in
    the polyphonic music of Boulanger-Lewandowski et al. 2012 and of Bai et al. 2018, section 4.3.
    """

    attention_mode = "causal"
    max_score = None
    task_tag = "music-modeling"
    lower_is_better = frozenset({"nats_per_step"})

    def __init__(self, num_labels: int, dim: int, *, first_label: int = 0, dropout: float = 0.0) -> None:
        """Build the head.

        Args:
            num_labels: C, the number of values of a token.
            dim: D, the number of features of a token.
            first_label: The number of the first value in answers, such as the MIDI number of the lowest key.
            dropout: The dropout probability before the linear layer.
        """
        super().__init__()
        self.dim, self.first_label = dim, first_label
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(dim, num_labels)
        # Most values are 0, so training would begin with a large loss from a probability of 0.5 (Lin et al. 2017).
        nn.init.constant_(self.out.bias, math.log(PRIOR / (1 - PRIOR)))

    def encode(self, target: object) -> Tensor:
        """Return 0, because the objective defines the targets."""
        return torch.tensor(0)

    def logits(self, tokens: Tokens) -> Tensor:
        """Map Tokens (B, D, N) to logits (B, C, N)."""
        return in_float32(self.out, self.dropout(tokens.matrix.mT)).mT

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean cross-entropy per predicted token, in nats.

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: The values (B, C, N) of the next tokens, 0, 1 or `IGNORE_INDEX`.
        """
        nats, steps = self._sums(tokens, target)
        return nats.sum() / steps.sum()

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, N, C) of the values that follow each token."""
        return self.logits(tokens).mT.sigmoid()

    def describe_graph(self) -> list[str]:
        return [
            "`output` has one row per token: the probability of each value of the next token. The answer is the row of "
            "the last real token."
        ]

    def target_counts(self, target: Tensor) -> Tensor:
        return count_labels(target[:, 0])

    def predict(self, tokens: Tokens) -> list[Tensor]:
        """Return the probabilities (C,) of the values that follow the last token of each example."""
        last = tokens.mask.sum(1) - 1
        return list(self.logits(tokens)[torch.arange(len(last), device=last.device), :, last].sigmoid().cpu())

    def sample(self, hidden: Tensor, generators: Sequence[torch.Generator], *, temperature: float = 1.0) -> Tensor:
        """Sample the values (B, C) of the next tokens, each value independently of the others.

        Args:
            hidden: The trunk's output (B, D) for the last tokens.
            generators: One random generator on the CPU per example.
            temperature: The divisor of the log-odds of each value. A low temperature removes unlikely notes.

        Raises:
            InputError: If the temperature is out of range.
        """
        if not 0 < temperature < math.inf:
            raise InputError(f"temperature={temperature}: a finite number above 0 is needed")
        log_odds = in_float32(self.out, hidden).double().cpu() / max(temperature, MIN_TEMPERATURE)
        uniform = torch.stack([torch.rand(log_odds.shape[1], generator=each) for each in generators])
        return (uniform < log_odds.sigmoid()).to(hidden.device)

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[Tensor]:
        """Return a tensor (2,) per example: the sum of the nats, and the number of predicted tokens."""
        return list(torch.stack(self._sums(tokens, target), 1).detach().double().cpu())

    def statistics(self, predictions: Sequence[Tensor], targets: Sequence[Any]) -> NDArray[np.float64]:
        return torch.stack([*predictions]).numpy()

    def metrics_of(self, total: NDArray[np.float64]) -> Mapping[str, float]:
        """Return the mean number of nats per predicted token. The first token of an example is not predicted."""
        nats, steps = total.tolist()
        return {"nats_per_step": nats / steps if steps else math.nan}

    def describe(self, prediction: Tensor) -> str:
        if len(prediction) == 2:
            return f"{prediction[0] / prediction[1]:.2f} nats per step"
        labels = enumerate(prediction.tolist(), start=self.first_label)
        return ", ".join(f"{label} ({p:.0%})" for label, p in labels if p >= 0.5) or "none"

    def describe_task(self, noun: str) -> str:
        return f"gives the probability of each of {self.out.out_features} notes in the step after {noun}."

    def describe_answer(self) -> str:
        return "The answer is the sigmoid of each logit of the last token."

    def _sums(self, tokens: Tokens, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nats (B,) and the number of predicted tokens (B,) of each example."""
        is_predicted = target[:, 0] != IGNORE_INDEX
        nats = functional.binary_cross_entropy_with_logits(
            self.logits(tokens), target.clamp(min=0).float(), reduction="none"
        ).sum(1)
        return nats.masked_fill(~is_predicted, 0).sum(1), is_predicted.sum(1)
