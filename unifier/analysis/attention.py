"""Statistics of attention weights, and word alignment from attention."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unifier.nn.attention import AttentionMode, build_attention_mask

ATTENTION_STATISTICS = ("entropy", "distance", "uniform_distance", "agreement")


def attention_statistics(
    weights: Tensor, mask: Tensor, mode: AttentionMode, coordinates: Tensor, has_position: Tensor
) -> dict[str, Tensor]:
    """Compute statistics of the attention of each real token: one value per token, by the name of the statistic.

    - entropy: The mean over heads, divided by the logarithm of the number of visible tokens. It is 0 if attention is on
      one token, and 1 if attention is uniform.
    - distance: The mean distance of a token to the tokens that it attends to, among tokens with a position.
    - uniform_distance: The distance that uniform attention would have.
    - agreement: 1 minus the Jensen-Shannon divergence of the heads (Lin 1991, section 5), divided by the logarithm of
      their number.

    A value is NaN if it is not defined: the entropy of a token that sees itself alone, and the agreement of one head.

    Args:
        weights: Attention weights (B, H, N, N).
        mask: Boolean (B, N), True for real tokens.
        mode: The mode in which the weights were computed.
        coordinates: Positions (B, A, N) in a unit of length.
        has_position: Boolean (B, N), True for tokens with a position.
    """
    n, heads = weights.shape[-1], weights.shape[1]
    attention_mask = build_attention_mask(mask, mode)
    visible = (mask[:, None, :] if attention_mask is None else attention_mask[:, 0]).expand(-1, n, -1)
    weights = weights.float()
    entropies = torch.special.entr(weights).sum(-1)  # (B, H, N)
    divergence = torch.special.entr(weights.mean(1)).sum(-1) - entropies.mean(1)
    points = coordinates.float().mT
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    reachable = visible & has_position[:, None, :]
    reached = weights.mean(1) * reachable
    distance = (reached * distances).sum(-1) / reached.sum(-1)
    uniform_distance = (reachable * distances).sum(-1) / reachable.sum(-1)
    statistics = {
        "entropy": entropies.mean(1) / visible.sum(-1).log(),
        "distance": distance.masked_fill(~has_position, torch.nan),
        "uniform_distance": uniform_distance.masked_fill(~has_position, torch.nan),
        "agreement": 1 - divergence / torch.tensor(float(heads)).log(),
    }
    return {name: values[mask].where(values[mask].isfinite(), torch.nan) for name, values in statistics.items()}


def attention_received(weights: Tensor, is_query: Tensor) -> Tensor:
    """Return the attention that each token receives: (H, N, N) to (N,), with 1 for uniform attention.

    Args:
        weights: Attention weights (H, N, N), averaged over heads.
        is_query: Boolean (N,), True for the tokens whose attention is averaged: all real tokens if the head takes their
            mean, or the first one if the head reads a class token.
    """
    return weights.float().mean(0)[is_query].mean(0) * weights.shape[-1]


def word_attention(attention: Tensor, target_words: Sequence[int], source_words: Sequence[int]) -> Tensor:
    """Convert attention between tokens (L, N) to attention between words (target words, source words).

    The attention to the tokens of a source word is added up. The attention of the tokens of a target word is averaged.

    Args:
        attention: Attention (L, N) of target tokens to source tokens.
        target_words: For each target token, the index of its word. The last token is the end token and is left out.
        source_words: For each source token, the index of its word, as in `target_words`.
    """
    target, source = (one_hot(torch.tensor(words))[:, :-1].float() for words in (target_words, source_words))
    return (target / target.sum(0).clamp(min=1)).T @ attention.cpu() @ source


class AlignedSentence(NamedTuple):
    """A sentence and its translation, with the attention between their words."""

    source: list[str]
    target: list[str]
    attention: Tensor
    """Attention (target words, source words)."""
    gold: AbstractSet[tuple[int, int]]
    """The true links (source word index, target word index); empty if they are not known."""

    @property
    def links(self) -> set[tuple[int, int]]:
        """The predicted links: each target word with the source word that it attends to most."""
        return {(source, target) for target, source in enumerate(self.attention.argmax(1).tolist())}


def alignment_error_rate(sentences: Sequence[AlignedSentence]) -> float:
    """Return the alignment error rate, from 0 to 1, if all gold links are sure links (Och and Ney 2003, section 4)."""
    return _error_rate(sentences, sum(len(sentence.links & sentence.gold) for sentence in sentences))


def chance_error_rate(sentences: Sequence[AlignedSentence]) -> float:
    """Return the expected error rate of linking each target word to a random source word."""
    return _error_rate(sentences, sum(len(sentence.gold) / len(sentence.source) for sentence in sentences))


def _error_rate(sentences: Sequence[AlignedSentence], num_correct: float) -> float:
    return 1 - 2 * num_correct / sum(len(sentence.target) + len(sentence.gold) for sentence in sentences)
