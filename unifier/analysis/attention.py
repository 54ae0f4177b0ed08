"""Statistics of attention: entropy, distance, agreement of heads.

Alignment of words by attention, against the true alignment."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unifier.nn.attention import AttentionMode, build_attention_mask

ATTENTION_STATISTICS = ("entropy", "distance", "uniform_distance", "agreement")


def attention_statistics(
    weights: Tensor, mask: Tensor, mode: AttentionMode, coordinates: Tensor, placed: Tensor
) -> dict[str, Tensor]:
    """What each real column of a batch does with attention (B, H, N, N) under mask (B, N): (columns,) for each name.

    - entropy: over the logarithm of the number of columns seen, mean over heads: 0 for one column, 1 for all alike
    - distance: the mean one attended to, between coordinates (B, A, N), among the columns that are placed (B, N)
    - uniform_distance: the same if attention were spread evenly over what is seen
    - agreement: 1 less the heads' Jensen-Shannon divergence (Lin 1991, section 5) over the logarithm of their number

    NaN stands where there is nothing to say: a column that sees itself alone has no entropy, a lone head no agreement.
    """
    n, heads = weights.shape[-1], weights.shape[1]
    allowed = build_attention_mask(mask, mode)
    seen = mask[:, None, :].expand(-1, n, -1) if allowed is None else allowed[:, 0].expand(-1, n, -1)
    weights = weights.float()
    entropies = torch.special.entr(weights).sum(-1)  # B, H, N
    divergence = torch.special.entr(weights.mean(1)).sum(-1) - entropies.mean(1)
    points = coordinates.float().mT
    between = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    near = seen & placed[:, None, :]
    within = weights.mean(1) * near
    found = (
        entropies.mean(1) / seen.sum(-1).log(),
        (within * between).sum(-1) / within.sum(-1),
        (near * between).sum(-1) / near.sum(-1),
        1 - divergence / torch.tensor(float(heads)).log(),
    )
    found = dict(zip(ATTENTION_STATISTICS, found, strict=True))
    for name in ("distance", "uniform_distance"):
        found[name] = found[name].masked_fill(~placed, torch.nan)
    return {name: each[mask].where(each[mask].isfinite(), torch.nan) for name, each in found.items()}


def attention_received(weights: Tensor, asking: Tensor) -> Tensor:
    """How much attention each column receives, mean over heads and over the columns that ask: (H, N, N) -> (N,).

    `asking` (N,) says which: all real ones before a mean, the first one alone before a class token's head. In units of
    an even share, so that 1 is neither much nor little.
    """
    return weights.float().mean(0)[asking].mean(0) * weights.shape[-1]


def word_attention(attention: Tensor, target_words: Sequence[int], source_words: Sequence[int]) -> Tensor:
    """Attention between tokens (L, N) as attention between words (target words, source words).

    The places say which word each token is part of; the last one's, the end mark's, is left out. What the tokens of a
    source word receive is added up, and the mean taken over those of a target word.
    """
    target, source = (one_hot(torch.tensor(words))[:, :-1].float() for words in (target_words, source_words))
    return (target / target.sum(0).clamp(min=1)).T @ attention.cpu() @ source


class AlignedSentence(NamedTuple):
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


def alignment_error_rate(sentences: Sequence[AlignedSentence]) -> float:
    """From 0 to 1, all gold links being sure ones (Och and Ney 2003, section 4)."""
    return _error_rate(sentences, sum(len(one.found & one.gold) for one in sentences))


def chance_error_rate(sentences: Sequence[AlignedSentence]) -> float:
    """What is to be expected where each target word is linked to a source word drawn evenly."""
    return _error_rate(sentences, sum(len(one.gold) / len(one.source) for one in sentences))


def _error_rate(sentences: Sequence[AlignedSentence], right: float) -> float:
    return 1 - 2 * right / sum(len(one.target) + len(one.gold) for one in sentences)
