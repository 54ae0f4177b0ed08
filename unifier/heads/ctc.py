"""A head that reads a sequence of symbols from frames: connectionist temporal classification (CTC)."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.error_rates import error_names, error_rates, error_statistics
from unifier.heads.head import IGNORE_INDEX, check_labels, count_examples, list_labels
from unifier.heads.summed_metrics import SummedHead, percent
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Tokens, Units

BLANK = 0
"""The index of the blank, which separates equal neighbors and stands for no symbol."""


@final
class CTCHead(SummedHead):
    """A linear classifier of each token into symbols and a blank, trained with CTC (Graves et al. 2006).

    A target is a sequence of symbols without their times, such as the digits "3755". A prediction contains the index of
    each symbol (L,), from 1. Repeated symbols count once if no blank is between them.
    """

    max_score = None
    task_tag = "speech-recognition"

    def __init__(
        self,
        labels: Sequence[str],
        dim: int,
        *,
        beam_width: int = 1,
        dropout: float = 0.0,
        longest: int | None = None,
    ) -> None:
        """Build the head.

        Args:
            labels: The symbols.
            dim: D, the number of features of a token.
            beam_width: The number of prefixes in the beam search. With 1, the most probable symbol of each token is
                read.
            dropout: The dropout probability before the linear map.
            longest: The number of symbols of the longest training target. With a number, longer targets have an error
                rate of their own.
        """
        super().__init__()
        self.longest, self.lower_is_better = longest, error_names(longest)
        self.labels, self.dim, self.beam_width = check_labels(labels), dim, beam_width
        self.label_index = {label: i for i, label in enumerate(self.labels, start=1)}
        if beam_width < 1:
            raise InputError(f"beam_width={beam_width}: at least 1 is needed")
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(dim, 1 + len(self.labels))

    def encode(self, target: Sequence[str]) -> Tensor:
        """Return the index of each symbol (L,)."""
        if not isinstance(target, Sequence) or not target:
            raise InputError(f"the target {target!r} is not a sequence of symbols")
        if unknown := [symbol for symbol in target if symbol not in self.label_index]:
            raise InputError(f"the symbol {unknown[0]!r} is not one of: {', '.join(self.labels)}")
        return torch.tensor([self.label_index[symbol] for symbol in target])

    def check_target(self, units: Units, target: Tensor) -> None:
        repeats, tokens = int((target[1:] == target[:-1]).sum()), units.values.shape[-1]
        if tokens < (needed := len(target) + repeats):
            raise InputError(
                f"{len(target)} symbols with {repeats} equal neighbors need {needed} tokens, not {tokens}: "
                "give the tokenizer fewer frames per token, or leave out the example"
            )

    def log_probabilities(self, tokens: Tokens) -> Tensor:
        """Map Tokens (B, D, N) to the log-probabilities (B, N, 1 + C) of the blank and the symbols."""
        return in_float32(self.out, self.dropout(tokens.matrix.mT)).log_softmax(-1)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the negative log-likelihood per symbol, averaged over the examples, with indices (B, L)."""
        is_symbol = target != IGNORE_INDEX
        return functional.ctc_loss(
            self.log_probabilities(tokens).transpose(0, 1),
            target.where(is_symbol, 1),
            tokens.mask.sum(1),
            is_symbol.sum(1),
            blank=BLANK,
            zero_infinity=True,  # An augmentation can make an input too short for its target.
        )

    def graph_output(self, tokens: Tokens) -> Tensor:
        return self.log_probabilities(tokens)

    def target_counts(self, target: Tensor) -> Tensor:
        return count_examples(target)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        scores, lengths = self.log_probabilities(tokens).detach().cpu(), tokens.mask.sum(1).tolist()
        examples = [score[:length] for score, length in zip(scores, lengths, strict=True)]
        if self.beam_width > 1:
            return [
                torch.tensor(prefix_beam_search(each.numpy(), self.beam_width), dtype=torch.long) for each in examples
            ]
        paths = [each.argmax(-1).unique_consecutive() for each in examples]
        return [path[path != BLANK] for path in paths]

    def statistics(self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """Return the statistics (n, 6) of `error_statistics`."""
        true = [self.encode(target).tolist() for target in targets]
        return error_statistics([prediction.tolist() for prediction in predictions], true, self.longest)

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        return error_rates(total, self.longest)

    def example_score(self, prediction: Tensor, target: Sequence[str]) -> tuple[float, float]:
        wrong, length = self.statistics([prediction], [target])[0, 1:3]
        return percent(wrong, length), float(length)

    def describe_target(self, target: Sequence[str]) -> str:
        return self.describe(self.encode(target))

    def describe(self, prediction: Tensor) -> str:
        symbols = [self.labels[index - 1] for index in prediction.tolist()]
        return ("" if all(len(label) == 1 for label in self.labels) else " ").join(symbols)

    def describe_task(self, noun: str) -> str:
        return f"reads a sequence of these symbols from {noun}: {list_labels(self.labels)}."

    def describe_answer(self) -> str:
        search = f"a prefix beam search of width {self.beam_width}" if self.beam_width > 1 else "the best path"
        return f"The answer is decoded by {search}: logit 0 is the blank, and repeated symbols count once."

    def describe_graph(self) -> list[str]:
        search = (
            f"The answer is found by a prefix beam search of width {self.beam_width} (Hannun et al. 2014)."
            if self.beam_width > 1
            else "Take the index with the largest value in each row, and keep one of equal neighbors."
        )
        return [
            "`output` has one row per token: the natural logarithms of the probabilities of the blank, index 0, and of "
            "the labels, from index 1. Ignore the rows of padding.",
            f"{search} Remove the blanks.",
        ]


def prefix_beam_search(scores: NDArray[np.float32], width: int) -> list[int]:
    """Return the most probable sequence of symbols that a prefix beam search finds (Hannun et al. 2014, algorithm 1).

    Args:
        scores: The log-probabilities (N, 1 + C) of the blank and the symbols for each token.
        width: The number of prefixes that are kept after each token.
    """
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}  # The last token is a blank, or not.
    for row in scores.astype(float).tolist():
        grown = defaultdict[tuple[int, ...], list[float]](lambda: [-math.inf, -math.inf])
        for prefix, (blank, symbol) in beams.items():
            either, last = np.logaddexp(blank, symbol), prefix[-1] if prefix else BLANK
            grown[prefix][0] = np.logaddexp(grown[prefix][0], either + row[BLANK])
            if prefix:
                grown[prefix][1] = np.logaddexp(grown[prefix][1], symbol + row[last])
            for index in range(1, len(row)):
                longer = (*prefix, index)
                grown[longer][1] = np.logaddexp(grown[longer][1], (blank if index == last else either) + row[index])
        best = sorted(grown, key=lambda prefix: -np.logaddexp(grown[prefix][0], grown[prefix][1]))[:width]
        beams = {prefix: (grown[prefix][0], grown[prefix][1]) for prefix in best}
    return list(next(iter(beams)))
