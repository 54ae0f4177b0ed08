"""The head of GloVe: the product of two words' vectors equals the logarithm of their co-occurrence count."""

from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from unifier.heads.head import IGNORE_INDEX
from unifier.heads.word_vectors import WordVectorHead
from unifier_tokenizers import InputError, Tokens, Vocabulary

COUNT_POWER = 0.75
"""The exponent of the weight of a count (Pennington et al. 2014, section 3)."""


@final
class GloVeHead(WordVectorHead):
    """Weighted least squares of co-occurrence counts (Pennington et al. 2014, equation 8), on a trunk without blocks.

    If the words i and j occur X times near each other, the error is w_i · v_j + b_i + c_j - log X. The weight of a
    squared error is (X / max_count)^0.75, at most 1. The vectors w are the tokens. The vectors v
    belong to the head.
    """

    def __init__(self, vocabulary: Vocabulary, dim: int, *, embedding: nn.Embedding, max_count: float = 10.0) -> None:
        """Build the head.

        Args:
            vocabulary: The tokenizer's vocabulary with V words.
            dim: D, the number of features of a token.
            embedding: The tokenizer's embedding (V, D), whose vectors are drawn again near 0.
            max_count: Counts from this number on have the weight 1.
        """
        super().__init__(vocabulary, dim, embedding)
        if not max_count > 0:
            raise InputError(f"max_count={max_count}: a number above 0 is expected")
        self.max_count = max_count
        self.input_bias, self.output_bias = (nn.Embedding(len(vocabulary), 1) for _ in range(2))
        # Large random vectors would hide what small counts teach, so both tables start near 0.
        for table in (embedding, self.output):
            nn.init.uniform_(table.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.input_bias.weight)
        nn.init.zeros_(self.output_bias.weight)

    def encode(self, target: object) -> Tensor:
        """Return a row (3, M) float: the word, the other words, and how often the words occur near each other.

        The judgments of validation and test become a row of zeros, because the objective defines their targets.
        """
        return torch.from_numpy(target) if isinstance(target, np.ndarray) else torch.zeros(3, 1)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean of the weighted squared errors of all pairs.

        Args:
            tokens: The trunk's tokens (B, D, 1).
            target: The rows (B, 3, M), padded with `IGNORE_INDEX` (see `encode`).
        """
        is_pair = target[:, 2] != IGNORE_INDEX
        words, others = (target[:, k].long().clamp(min=0) for k in range(2))
        counts = target[:, 2].where(is_pair, 1.0)
        products = (self.output(others).float() @ tokens.matrix[:, :, :1].float())[:, :, 0]
        errors = products + (self.input_bias(words) + self.output_bias(others))[:, :, 0] - counts.log()
        weights = (counts / self.max_count).pow(COUNT_POWER).clamp(max=1) * is_pair
        return (weights * errors.square()).sum() / is_pair.sum().clamp(min=1)

    def target_counts(self, target: Tensor) -> Tensor:
        return (target[:, 2] != IGNORE_INDEX).sum(1)
