"""The base class of heads for word vectors, which are tested by judged pairs of words and analogies."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import IGNORE_INDEX, Head
from unifier.heads.masked_language_modeling import Candidate
from unifier.heads.summed_metrics import percent
from unifier_tokenizers import InputError, Tokens, Vocabulary
from unifier_tokenizers.subwords import UNK

NUM_NEAREST = 10
"""The number of nearest words in a prediction."""


class WordVectorHead(Head):
    """Base class of heads that learn word vectors on a trunk without blocks. A subclass defines the loss.

    In validation and test, two words are scored by the cosine of their vectors. For three words such as "man king
    woman", the nearest word to king - man + woman is the answer, without the three words (3CosAdd).
    """

    task_tag = "feature-extraction"

    def __init__(self, vocabulary: Vocabulary, dim: int, embedding: nn.Embedding) -> None:
        """Build the head, with one output vector per word. All output vectors are 0.

        Args:
            vocabulary: The tokenizer's vocabulary with V words.
            dim: D, the number of features of a token.
            embedding: The tokenizer's embedding (V, D), among whose rows the nearest words are searched.
        """
        super().__init__()
        if embedding.weight.shape != (len(vocabulary), dim):
            shape = tuple(embedding.weight.shape)
            raise InputError(f"the shared embedding has the shape {shape}, but the head needs {(len(vocabulary), dim)}")
        self.vocabulary, self.dim, self.embedding = vocabulary, dim, embedding
        self.output = nn.Embedding(len(vocabulary), dim)
        nn.init.zeros_(self.output.weight)
        self._special = [i for i in range(len(vocabulary)) if vocabulary.is_special(i)]

    def encode(self, target: object) -> Tensor:
        """Return 0, because the objective defines the targets."""
        return torch.tensor(0)

    def predict(self, tokens: Tokens) -> list[list[Candidate]]:
        """Return the words with the nearest vectors to the mean vector of the input, and their cosines."""
        return self.predict_inputs(tokens, tokens.mask.new_zeros(len(tokens.mask), 0, dtype=torch.long))

    def predict_inputs(self, tokens: Tokens, values: Tensor) -> list[list[Candidate]]:
        """Return the nearest words, without the words of the input (B, N)."""
        means = (tokens.matrix.float() * tokens.mask[:, None]).sum(2)
        table = self._table()
        return [self._nearest(table, mean, ids, NUM_NEAREST) for mean, ids in zip(means, values.tolist(), strict=True)]

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[float | str | None]:
        """Return the cosine of two words, or the answer to three words, or None if a word is unknown."""
        vectors = functional.normalize(tokens.matrix.mT.float(), dim=2)
        table, answers = self._table(), list[float | str | None]()
        for own, ids in zip(vectors, target.tolist(), strict=True):
            known = [i for i in ids if i != IGNORE_INDEX]
            if UNK in known or len(known) not in (2, 3):
                answers.append(None)
            elif len(known) == 2:
                answers.append(float(own[0] @ own[1]))
            else:
                answers.append(self._nearest(table, own[1] - own[0] + own[2], known, 1)[0].word)
        return answers

    def metrics(self, predictions: Sequence[float | str | None], targets: Sequence[float | str]) -> dict[str, float]:
        """Return Spearman's rank correlation of the pairs times 100, and the share of right analogies in percent.

        Pairs and analogies with an unknown word are left out. The correlation of fewer than three pairs, or of equal
        cosines, is 0. The share of no analogies is NaN.
        """
        both = [*zip(predictions, targets, strict=True)]
        cosines, judged = np.array([pair for pair in both if isinstance(pair[0], float)], dtype=float).reshape(-1, 2).T
        right = [given == answer for given, answer in both if isinstance(given, str) and self._knows(str(answer))]
        ranks: Any = spearmanr(cosines, judged) if len(cosines) > 2 and np.ptp(cosines) > 0 else (0.0,)
        return {
            "similarity": 100 * float(ranks[0]),
            "analogies": percent(sum(right), len(right)) if right else math.nan,
        }

    def describe(self, prediction: float | str | list[Candidate] | None) -> str:
        """Return a prediction as text: nearest words with cosines, a cosine, or a word."""
        if isinstance(prediction, list):
            return ", ".join(f"{word} {cosine:.2f}" for word, cosine in prediction)
        if prediction is None:
            return "a word is unknown"
        return prediction if isinstance(prediction, str) else f"{prediction:.2f}"

    def describe_task(self, noun: str) -> str:
        return f"gives the {NUM_NEAREST} words of {len(self.vocabulary):,} whose vectors are nearest to {noun}."

    def describe_answer(self) -> str:
        return "The answer is the words whose embeddings have the largest cosine with the mean of the input's tokens."

    def _knows(self, word: str) -> bool:
        return self.vocabulary.codec.token_to_id(word) is not None

    def _table(self) -> Tensor:
        """Return the vectors of all words (V, D), each of length 1."""
        return functional.normalize(self.embedding.weight.float(), dim=1)

    def _nearest(self, table: Tensor, vector: Tensor, without: Sequence[int], count: int) -> list[Candidate]:
        """Return the words with the largest cosines, given `_table`, a vector (D,) and the ids that are left out."""
        cosines = table @ functional.normalize(vector, dim=0)
        cosines[[*self._special, *without]] = -torch.inf
        best = cosines.topk(min(count, int(cosines.isfinite().sum())))
        names = self.vocabulary.tokens(best.indices.tolist())
        return [Candidate(*pair) for pair in zip(names, best.values.tolist(), strict=True)]
