"""The head of skip-gram: each word of a text predicts the words around it."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import IGNORE_INDEX
from unifier.heads.word_vectors import WordVectorHead
from unifier_tokenizers import InputError, Tokens, Vocabulary


@final
class SkipGramHead(WordVectorHead):
    """Skip-gram with negative sampling (Mikolov et al. 2013), on a trunk without blocks.

    The product of a token and an output vector is the logit of the question whether the word occurs in the token's
    window. The words of the window are positive examples, and random words are negative examples (see `SkipGram`).
    """

    def __init__(self, vocabulary: Vocabulary, dim: int, *, embedding: nn.Embedding, negatives: int = 5) -> None:
        """Build the head.

        Args:
            vocabulary: The tokenizer's vocabulary with V words.
            dim: D, the number of features of a token.
            embedding: The tokenizer's embedding (V, D).
            negatives: The weight of the random words, as a number of random words per positive example.
        """
        super().__init__(vocabulary, dim, embedding)
        if negatives < 1:
            raise InputError(f"negatives={negatives}: at least 1 random word per positive example is needed")
        self.negatives = negatives

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean loss of the positive examples, each with its negative examples.

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: The ids, the sizes of the windows, and random words (B, 3, N) (see `SkipGram`).
        """
        ids, _, others = target.clamp(min=0).unbind(1)
        is_positive = _find_contexts(target)
        is_word = target[:, 0] != IGNORE_INDEX
        centers = tokens.matrix.mT
        logits = centers @ self.output(ids).mT
        random_logits = centers @ self.output(others).mT
        # All random words of an example serve each of its words, with the weight of `negatives` words per positive one.
        weights = self.negatives * is_positive.sum(2) / is_word.sum(1, keepdim=True).clamp(min=1)
        negative = (functional.softplus(random_logits.float()) * is_word[:, None]).sum(2)
        total = (functional.softplus(-logits.float()) * is_positive).sum() + (weights * negative).sum()
        return total / is_positive.sum().clamp(min=1)

    def target_counts(self, target: Tensor) -> Tensor:
        return _find_contexts(target).sum((1, 2))


def _find_contexts(target: Tensor) -> Tensor:
    """Return (B, N, N), True if the second word is in the window of the first, given the target (B, 3, N)."""
    places = torch.arange(target.shape[2], device=target.device)
    distance = (places[:, None] - places).abs()
    is_word = target[:, 0] != IGNORE_INDEX
    return (distance > 0) & (distance <= target[:, 1, :, None]) & is_word[:, None] & is_word[:, :, None]
