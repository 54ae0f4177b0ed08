"""The objective of skip-gram word vectors: each word predicts the words around it."""

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from unifier.data.dataloader import Batch, Lengths, Objective
from unifier.heads.head import IGNORE_INDEX
from unifier.objectives.words_as_targets import WordsAsTargets
from unifier_tokenizers import NO_POSITION, InputError, Units, Vocabulary

NEGATIVE_POWER = 0.75
"""Exponent of the frequencies from which random words are drawn (Mikolov et al. 2013, section 2.2)."""


@final
class SkipGram(Objective):
    """Words with the size of their window, and one random word for each (Mikolov et al. 2013).

    Unknown words and some of the frequent words are dropped in training. The target (B, 3, N) contains the ids of the
    words, the number of words on each side that a word predicts, and a random word for each word. In validation and
    test, the target (B, N) contains the ids, and no word is dropped.
    """

    def __init__(self, vocabulary: Vocabulary, counts: Tensor, *, window: int = 5, subsample: float = 1e-3) -> None:
        """Store the settings.

        Args:
            vocabulary: The vocabulary with V words.
            counts: How often each word occurs in the training texts (V,) (see `count_words`).
            window: The largest number of words on each side. The number is drawn for each word, from 1 to `window`.
            subsample: A word with the relative frequency f is kept with the probability sqrt(subsample / f).

        Raises:
            InputError: If a setting is out of its range, or if `counts` does not fit the vocabulary.
        """
        if window < 1 or not 0 < subsample <= 1:
            raise InputError(f"window={window}, subsample={subsample}: at least 1, and a share above 0 are expected")
        if counts.shape != (len(vocabulary),) or counts.min() < 0:
            raise InputError(f"counts {tuple(counts.shape)}: one count per entry {(len(vocabulary),)} is expected")
        is_word = torch.tensor([not vocabulary.is_special(i) for i in range(len(vocabulary))])
        words = counts.double() * is_word
        if not words.sum() > 0:
            raise InputError("the training texts have no word of the vocabulary: give a larger vocabulary")
        self.window = window
        frequencies = words / words.sum()
        self.keep = (subsample / frequencies).sqrt().clamp(max=1).where(frequencies > 0, 0.0)
        """(V,), the probability that a word is kept in training."""
        self.cumulative = frequencies.pow(NEGATIVE_POWER).cumsum(0)
        self.kept_share = float((self.keep * counts).sum() / counts.sum())

    def check(self, units: Units) -> None:
        WordsAsTargets().check(units)

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        ids = batch.values.long()
        drawn = [[torch.rand(ids.shape[1], generator=own, dtype=torch.float64) for _ in range(3)] for own in generators]
        kept, radius, negative = (torch.stack(part) for part in zip(*drawn, strict=True))
        is_kept = (kept < self.keep[ids]) & batch.mask
        is_kept[:, 0] |= ~is_kept.any(1)  # An example needs one token.
        num_tokens = int(is_kept.sum(1).max())
        # A stable sort moves the kept tokens to the front, in their order.
        order = (~is_kept).int().argsort(dim=1, stable=True)[:, :num_tokens]
        mask = is_kept.gather(1, order)
        words = ids.gather(1, order)
        windows = 1 + (radius * self.window).long()
        others = torch.searchsorted(self.cumulative, negative * self.cumulative[-1], right=True)
        target = torch.stack([words, windows[:, :num_tokens], others[:, :num_tokens]], 1)
        return Batch(
            words.to(batch.values.dtype).masked_fill(~mask, 0),
            batch.positions.gather(2, order[:, None]).masked_fill(~mask[:, None], NO_POSITION),
            mask,
            target.masked_fill(~mask[:, None], IGNORE_INDEX),
            batch.example_indices,
        )

    def evaluation(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        return WordsAsTargets().evaluation(batch, generators)

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        num_tokens = np.ceil(lengths[:, 0] * self.kept_share)
        return np.stack([num_tokens, num_tokens], 1).clip(1).astype(lengths.dtype)


def count_words(vocabulary: Vocabulary, texts: Iterable[str]) -> Tensor:
    """Return how often each entry of a vocabulary occurs in texts, (V,) float64."""
    counts = np.zeros(len(vocabulary))
    for text in texts:
        np.add.at(counts, vocabulary.encode(text), 1)
    return torch.from_numpy(counts)
