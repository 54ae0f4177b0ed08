"""Co-occurrence counts of words, from which GloVe learns word vectors."""

from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from unifier.data.dataset import Examples
from unifier.data.readers import hash_all
from unifier.data.source import Example, SplitName
from unifier.datasets.word_vectors import WordVectorTexts
from unifier_tokenizers import InputError, Vocabulary

CHUNK_PAIRS = 1 << 22
"""The number of pairs that are counted at a time, which limits the use of memory."""


@final
class Cooccurrences:
    """Words with the counts of the words near them, for train. Val and test are those of the texts.

    The target of an example in train is an array (3, M): the word, M other words, and their counts (see `GloVeHead`).
    A word at the distance d counts 1 / d (Pennington et al. 2014, section 4.2). Words outside the vocabulary count
    nothing. A word that occurs near many different words has several examples.
    """

    name = "cooccurrences"

    def __init__(
        self, texts: WordVectorTexts, vocabulary: Vocabulary, *, window: int = 10, row_length: int = 128
    ) -> None:
        """Store the texts, and the settings.

        Args:
            texts: The texts and judgments.
            vocabulary: The vocabulary with V words.
            window: The largest distance of two words that count.
            row_length: The largest number of other words of an example.

        Raises:
            InputError: If a setting is below 1.
        """
        if window < 1 or row_length < 1:
            raise InputError(f"window={window}, row_length={row_length}: at least 1 is expected")
        self._texts, self._vocabulary, self._window, self._length = texts, vocabulary, window, row_length

    def split(self, name: SplitName) -> Examples[Any]:
        """Return the examples of one split.

        Raises:
            InputError: A file cannot be read, or no two words of the vocabulary are near each other.
        """
        if name != "train":
            return self._texts.split(name)
        starts = self._counts.indptr
        pieces = [
            (word, start)
            for word in range(len(starts) - 1)
            for start in range(starts[word], starts[word + 1], self._length)
        ]
        if not pieces:
            raise InputError("no two words of the vocabulary are near each other: give a larger vocabulary or window")
        read = partial(_read, self._counts, self._vocabulary, self._length)
        return Examples(pieces, read, lambda piece: f"counts of {self._vocabulary.tokens([piece[0]])[0]!r}")

    @cached_property
    def sha256(self) -> str:
        """The hash of the texts and of the vocabulary."""
        words = "\n".join(self._vocabulary.tokens(range(len(self._vocabulary))))
        return hash_all({"texts": self._texts.sha256, "words": words})

    @cached_property
    def _counts(self) -> Any:
        texts = (example.input for example in self._texts.split("train"))
        return count_pairs(self._vocabulary, texts, self._window)


def count_pairs(vocabulary: Vocabulary, texts: Iterable[str], window: int) -> Any:
    """Return the symmetric counts (V, V) of pairs of words as a sparse matrix (`scipy.sparse.csr_array`)."""
    size, total = len(vocabulary), csr_array((len(vocabulary),) * 2, dtype=np.float32)
    is_word = np.array([not vocabulary.is_special(i) for i in range(size)])
    chunk, num_pairs = list[NDArray[Any]](), 0
    for pairs in _pairs(vocabulary, texts, window, is_word):
        chunk.append(pairs)
        num_pairs += pairs.shape[1]
        if num_pairs > CHUNK_PAIRS:
            total, chunk, num_pairs = total + _sum_pairs(chunk, size), [], 0
    total = total + _sum_pairs(chunk, size)
    return csr_array(total + total.T)


def _pairs(
    vocabulary: Vocabulary, texts: Iterable[str], window: int, is_word: NDArray[np.bool_]
) -> Iterator[NDArray[Any]]:
    """Yield the ids of two words and the weight of each pair of a text, (3, P)."""
    for text in texts:
        ids = np.array(vocabulary.encode(text))
        for distance in range(1, min(window, len(ids) - 1) + 1):
            first, second = ids[:-distance], ids[distance:]
            both = is_word[first] & is_word[second]
            yield np.stack([first[both], second[both], np.full(both.sum(), 1 / distance)])


def _sum_pairs(chunk: list[NDArray[Any]], size: int) -> Any:
    first, second, weights = np.concatenate([np.zeros((3, 0)), *chunk], 1)
    return coo_array((weights.astype(np.float32), (first.astype(int), second.astype(int))), (size, size)).tocsr()


def _read(counts: Any, vocabulary: Vocabulary, length: int, piece: tuple[int, int]) -> Example:
    word, start = piece
    part = slice(start, min(start + length, counts.indptr[word + 1]))
    others, near = counts.indices[part], counts.data[part]
    return Example(vocabulary.tokens([word])[0], np.stack([np.full_like(near, word), others.astype(np.float32), near]))
