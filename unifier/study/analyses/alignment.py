"""Alignment of words by attention, against the true alignment."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def between_words(attention: Tensor, target_words: Sequence[int], source_words: Sequence[int]) -> Tensor:
    """Attention between tokens (L, N) as attention between words (target words, source words).

    The places say which word each token is part of; the last one's, the end mark's, is left out. What the tokens of a
    source word receive is added up, and the mean taken over those of a target word.
    """
    target, source = (one_hot(torch.tensor(words))[:, :-1].float() for words in (target_words, source_words))
    return (target / target.sum(0).clamp(min=1)).T @ attention.cpu() @ source


class Aligned(NamedTuple):
    """A sentence and its translation, word by word."""

    source: list[str]
    target: list[str]
    attention: Tensor
    """(target words, source words)."""
    gold: AbstractSet[tuple[int, int]]
    """The words of source and target that translate each other, by place; none where it is not known."""

    @property
    def found(self) -> set[tuple[int, int]]:
        """Each target word with the source word that it attends to most."""
        return {(source, target) for target, source in enumerate(self.attention.argmax(1).tolist())}


def alignment_error_rate(sentences: Sequence[Aligned]) -> float:
    """From 0 to 1, all gold links being sure ones (Och and Ney 2003, section 4)."""
    return _error_rate(sentences, sum(len(one.found & one.gold) for one in sentences))


def chance_error_rate(sentences: Sequence[Aligned]) -> float:
    """What is to be expected where each target word is linked to a source word drawn evenly."""
    return _error_rate(sentences, sum(len(one.gold) / len(one.source) for one in sentences))


def _error_rate(sentences: Sequence[Aligned], right: float) -> float:
    return 1 - 2 * right / sum(len(one.target) + len(one.gold) for one in sentences)
