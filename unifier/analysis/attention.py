"""Statistics of attention weights, and word alignment from attention."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unifier.nn.attention import AttentionMode, build_attention_mask
from unifier_tokenizers import Vocabulary
from unifier_tokenizers.text import WORD_START

ATTENTION_STATISTICS = ("entropy", "distance", "uniform_distance", "agreement")


def attention_statistics(
    weights: Tensor, mask: Tensor, mode: AttentionMode, coordinates: Tensor, has_position: Tensor
) -> dict[str, Tensor]:
    """Compute statistics of the attention of each real token.

    - entropy: The mean entropy of the heads, divided by the logarithm of the number of unmasked tokens. The normalized
      entropy is 0 for attention to a single token, and 1 for uniform attention.
    - distance: The attention-weighted mean distance to all unmasked tokens. Tokens without a position are excluded.
    - uniform_distance: The value of `distance` for uniform attention.
    - agreement: 1 - J / log(H), with the Jensen-Shannon divergence J of the H attention heads (Lin 1991, section 5).

    Undefined values are NaN. The entropy is undefined for a token that attends only to itself. The agreement is
    undefined for a single head.

    Args:
        weights: The attention weights (B, H, N, N).
        mask: (B, N), True for real tokens.
        mode: The attention mode with which the weights were computed.
        coordinates: The positions (B, A, N) between which distances are measured.
        has_position: (B, N), True for tokens with a position.

    Returns:
        A mapping from the name of a statistic to one value per real token.
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
    """Return the mean attention (N,) that each token receives, scaled to 1 for uniform attention.

    Args:
        weights: The attention weights (H, N, N) of H heads.
        is_query: (N,), True for the tokens whose attention is averaged. With a class token, only the class token is a
            query. Without a class token, all real tokens are queries.
    """
    return weights.float().mean(0)[is_query].mean(0) * weights.shape[-1]


def word_attention(attention: Tensor, target_words: Sequence[int], source_words: Sequence[int]) -> Tensor:
    """Convert attention between tokens (L, N) to attention between words (target words, source words).

    The attention to all tokens of a source word is summed. The attention from all tokens of a target word is averaged.

    Args:
        attention: The attention (L, N) from target tokens to source tokens.
        target_words: The word index of each target token. The last word is the end token, which is excluded from the
            result.
        source_words: The word index of each source token. The last word is the end token, which is excluded from the
            result.
    """
    target, source = (one_hot(torch.tensor(words))[:, :-1].float() for words in (target_words, source_words))
    return (target / target.sum(0).clamp(min=1)).T @ attention.cpu() @ source


def split_words(vocabulary: Vocabulary, ids: Sequence[int], text: str) -> tuple[list[str], list[int]] | None:
    """Return the words of a text, and the word index of each id.

    Return None if the vocabulary and `WORD_START` split the text into different words. For example, level "word" splits
    "n'" into two words.

    Args:
        vocabulary: The vocabulary that encoded the text.
        ids: The ids of the text, with the end token.
        text: The text.
    """
    words, indices = WORD_START.findall(text), vocabulary.word_ids(ids)
    return (words, indices) if indices[-1] == len(words) else None


class AlignedSentence(NamedTuple):
    """Sentence and its translation, with the attention weights between source words and target words."""

    source: list[str]
    target: list[str]
    attention: Tensor
    """The attention weights (target words, source words)."""
    gold: AbstractSet[tuple[int, int]]
    """The true alignment links (source word index, target word index). The set is empty without true links."""

    @property
    def links(self) -> set[tuple[int, int]]:
        """The predicted alignment links, from each target word to the source word with the largest attention."""
        return {(source, target) for target, source in enumerate(self.attention.argmax(1).tolist())}


def alignment_error_rate(sentences: Sequence[AlignedSentence]) -> float:
    """Return the alignment error rate, from 0 to 1 (Och and Ney 2003, section 4).

    All gold links are treated as sure links.
    """
    return _error_rate(sentences, sum(len(sentence.links & sentence.gold) for sentence in sentences))


def chance_error_rate(sentences: Sequence[AlignedSentence]) -> float:
    """Return the expected error rate if each target word is linked to a random source word."""
    return _error_rate(sentences, sum(len(sentence.gold) / len(sentence.source) for sentence in sentences))


def _error_rate(sentences: Sequence[AlignedSentence], num_correct: float) -> float:
    return 1 - 2 * num_correct / sum(len(sentence.target) + len(sentence.gold) for sentence in sentences)
