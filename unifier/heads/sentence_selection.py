"""A head that chooses the sentence that summarizes a text, with a score for every sentence."""

import re
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import count_examples
from unifier.heads.rouge import rouge_means, rouge_statistics
from unifier.heads.summed_metrics import SummedHead
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Tokens, Units

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
"""The space between two sentences of a text."""


@final
class SummaryTarget(NamedTuple):
    """The sentences of a text, and its reference summaries."""

    sentences: tuple[str, ...]
    references: tuple[str, ...]


@final
class SentenceSelectionHead(SummedHead):
    """A linear score of each sentence, trained with a softmax over the sentences of a text.

    The second axis of the positions is the number of the sentence, as `SubwordTokenizer` encodes a sequence of
    sentences. A sentence is the mean of its tokens. A target is a `SummaryTarget`, and training predicts the sentence
    with the highest ROUGE-1. A prediction is the index of the likeliest sentence. The scores are those of the chosen
    sentence against the best of the reference summaries.
    """

    task_tag = "summarization"

    def __init__(self, dim: int, *, dropout: float = 0.0) -> None:
        """Build the head.

        Args:
            dim: D, the number of features of a token.
            dropout: The dropout probability before the linear map.
        """
        super().__init__()
        self.dim, self.dropout, self.out = dim, Dropout(dropout), nn.Linear(dim, 1)

    def encode(self, target: SummaryTarget) -> Tensor:
        """Return the index of the sentence with the highest ROUGE-1."""
        if not isinstance(target, SummaryTarget) or not target.sentences or not target.references:
            raise InputError("a SummaryTarget with at least one sentence and one reference summary is expected")
        scores = rouge_statistics(target.sentences, [target.references] * len(target.sentences))
        return torch.tensor(int(scores[:, 0].argmax()))

    def check_target(self, units: Units, target: Tensor) -> None:
        if len(units.positions) != 2 or int(target) > int(units.positions[1].max()):
            raise InputError("the input does not consist of the sentences of the target: give a sequence of sentences")

    def logits(self, tokens: Tokens, size: int | None = None) -> Tensor:
        """Return the scores (B, S) of up to S sentences. The score of a missing sentence is -inf.

        Args:
            tokens: The trunk's tokens (B, D, N).
            size: S. None means the largest number of sentences of the texts.
        """
        if tokens.positions.shape[1] != 2:
            raise InputError("the positions have no sentence numbers: give a sequence of sentences, not a text")
        numbers = tokens.positions[:, 1]
        places = torch.arange(int(numbers.max()) + 1 if size is None else size, device=numbers.device)
        belongs = (numbers[..., None] == places) & tokens.mask[..., None]  # B, N, S
        counts = belongs.sum(1)
        means = (tokens.matrix @ belongs.to(tokens.matrix.dtype)).mT / counts.clamp(min=1)[..., None]
        scores = in_float32(self.out, self.dropout(means))[..., 0]
        return scores.masked_fill(counts == 0, -torch.inf)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of the best sentences, with their indices (B,)."""
        return functional.cross_entropy(self.logits(tokens), target)

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, N) of the sentences, of which a text has at most as many as tokens."""
        return self.logits(tokens, tokens.mask.shape[1]).softmax(1)

    def describe_graph(self) -> list[str]:
        return ["`output` has the probability of each sentence, in their order. The answer is the likeliest sentence."]

    def target_counts(self, target: Tensor) -> Tensor:
        return count_examples(target)

    def predict(self, tokens: Tokens) -> list[int]:
        return self.logits(tokens).argmax(1).tolist()

    def statistics(self, predictions: Sequence[int], targets: Sequence[SummaryTarget]) -> NDArray[np.float64]:
        """Return (n, 4): ROUGE-1, ROUGE-2 and ROUGE-L of the chosen sentences in percent, and 1."""
        chosen = [target.sentences[index] for index, target in zip(predictions, targets, strict=True)]
        return rouge_statistics(chosen, [target.references for target in targets])

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        return rouge_means(total)

    def example_score(self, prediction: int, target: SummaryTarget) -> tuple[float, float]:
        return float(self.statistics([prediction], [target])[0, 0]), 1.0

    def describe(self, prediction: int) -> str:
        return f"sentence {prediction + 1}"

    def describe_target(self, target: SummaryTarget) -> str:
        return target.references[0]

    def describe_task(self, noun: str) -> str:
        return f"chooses the sentence that summarizes {noun}."

    def describe_answer(self) -> str:
        return "A linear map of the mean of each sentence's tokens is its score. The answer is the highest score."


def split_sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of a text, which end at white space after a full stop, "!" or "?"."""
    return tuple(SENTENCE_END.split(text.strip()))
