"""The tokenizer for labeled words: one token per word, from the subwords and the letters of the word."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError, check_choice, check_fraction
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.shares import drawn_shape, own_rows
from unifier_tokenizers.subwords import PAD
from unifier_tokenizers.text import WORD_START, MarkedText, Vocabulary, embed_vocabulary
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

WordSplit = Literal["words", "characters"]

UNITS: dict[WordSplit, re.Pattern[str]] = {"words": WORD_START, "characters": re.compile(r"\S")}
"""The pattern of one unit of a text, for each way to split a text."""

MAX_PIECES = 8
"""Number of subwords that represent a word. Further subwords, for example of a web address, are left out."""

LETTER_DIM, LETTER_WINDOW = 32, 3
"""Width of a letter's embedding, and number of neighboring letters that the convolution reads."""


@final
class WordTokenizer(Tokenizer):
    """Tokenizer that turns each word of a text into one token, so each token can have a label.

    An example is a text or a sequence of words. A token is the sum of the embeddings of the word's subwords, plus the
    features of its letters, plus the encoding of its position. Given word vectors replace random embeddings. The
    features of the letters are the maximum over a convolution (Ma and Hovy 2016, section 2.1). The letters are the
    UTF-8 bytes at both ends of the word.

    The values are ids (8 + letters, N) at positions (1, N). The first 8 rows are the subwords of each word, and the
    remaining rows are 1 plus its bytes. The remaining entries are 0.
    """

    unit = "words"

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        split: WordSplit = "words",
        letters: int = 24,
        lowercase: bool = True,
        word_dropout: float = 0.0,
        positions: PositionKind = "sinusoid",
        length: int = 512,
        dropout: float = 0.0,
        vectors: Tensor | None = None,
        freeze_vectors: bool = True,
    ) -> None:
        """Create the tokenizer.

        Args:
            vocabulary: The vocabulary of subwords.
            dim: D, the width of the tokens.
            split: The units of a text: "words", or "characters" without white space. A sequence of words is not split.
            letters: The maximum number of bytes of a word that are read. With 0, only the subwords are read.
            lowercase: Look up the subwords of each word in lower case. The letters keep their case.
            word_dropout: The probability of leaving out the subwords of a word in training, so that the letters and the
                other words must suffice.
            positions: The kind of positional encoding.
            length: The maximum number of words of a text, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
            vectors: Embeddings (V, E) that replace random embeddings. If E is not D, a linear layer from E to D is
                learned.
            freeze_vectors: False trains the vectors, too.

        Raises:
            InputError: If a setting is out of its range, or if the number of vectors is not V.
        """
        super().__init__(dim)
        if letters < 0:
            raise InputError(f"letters={letters}: give the number of letters of a word that are read, at least 0")
        self.vocabulary, self.letters, self.lowercase = vocabulary, letters, lowercase
        self.split = check_choice("split", split, get_args(WordSplit))
        self.word_dropout = check_fraction("word_dropout", word_dropout)
        self.embedding, self.project = embed_vocabulary(vocabulary, dim, vectors, freeze_vectors)
        self.letter_embedding = nn.Embedding(257, LETTER_DIM, padding_idx=0) if letters else None
        self.letter_features = nn.Linear(LETTER_WINDOW * LETTER_DIM, dim) if letters else None
        self.encoding = PositionalEncoding(positions, dim, (length,))
        self.dropout = Dropout(dropout)

    def words(self, raw: str | Sequence[str]) -> list[str]:
        """Return the words of an example, each of which becomes one token.

        Raises:
            InputError: If the example is neither a text nor a sequence of texts, or if it has no words.
        """
        words: list[str]
        if isinstance(raw, MarkedText) and self.vocabulary.extra:
            names = "|".join(map(re.escape, self.vocabulary.extra))
            found = re.findall(f"({names})|({UNITS[self.split].pattern})", raw)
            words = [MarkedText(name) if name else word for name, word in found]
        elif isinstance(raw, str):
            words = UNITS[self.split].findall(raw)
        elif isinstance(raw, Sequence) and all(isinstance(word, str) for word in raw):
            words = [*raw]
        else:
            raise InputError(f"a text or a sequence of words is expected, not {type(raw).__name__}")
        if not words or not all(map(str.strip, words)):
            raise InputError("the text is empty, or one of its words is empty: every word needs a character")
        return words

    def encode(self, raw: str | Sequence[str]) -> Units:
        """Encode the words of a text as ids (8 + letters, N) at positions (1, N)."""
        rows = [
            self._extra_ids(word)
            if isinstance(word, MarkedText)
            else _word_ids(self.vocabulary, word, self.letters, self.lowercase)
            for word in self.words(raw)
        ]
        positions = torch.arange(len(rows))[None]
        self.encoding.check(positions)
        return Units(torch.tensor(rows, dtype=torch.int32).T.contiguous(), positions)

    def unit_names(self, units: Units) -> list[str]:
        """Return a readable text for each encoded word, which consists of the subwords that are read."""
        pieces = units.values[:MAX_PIECES].T.tolist()
        ids = [[i for i in word if i != PAD] for word in pieces]
        return [self.vocabulary.decode(word, extra=True) or "".join(self.vocabulary.tokens(word)) for word in ids]

    def _extra_ids(self, name: str) -> list[int]:
        """Return the ids of an extra entry, such as "<mask>", which has no letters."""
        # At the level of characters, the space before a word is an entry of its own.
        ids = [*(self.vocabulary.encode("") if self.split == "characters" else ()), self.vocabulary.extra[name]]
        return ids + [PAD] * (MAX_PIECES + self.letters - len(ids))

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn ids (B, 8 + letters, N) at positions (B, 1, N) into tokens (B, D, N)."""
        ids = values.mT.contiguous()
        pieces = ids[..., :MAX_PIECES]
        is_piece = (pieces != PAD)[..., None]
        vectors = self.embedding(pieces)
        counts = is_piece.sum(2).clamp(min=1)
        columns = self.project((vectors * is_piece.to(vectors.dtype)).sum(2)) * (self.dim / counts).sqrt()
        if self.training and self.word_dropout:
            shape = drawn_shape(columns[..., :1].shape)
            drawn = own_rows(torch.rand(shape, dtype=columns.dtype, device=columns.device))
            columns = columns * (drawn >= self.word_dropout)
        if self.letter_features is not None:
            columns = columns + self._read_letters(ids[..., MAX_PIECES:])
        return self.dropout(self.encoding(columns.mT, positions))

    def _read_letters(self, letters: Tensor) -> Tensor:
        """Return the features (B, N, D) of letters (B, N, letters)."""
        assert self.letter_embedding is not None
        assert self.letter_features is not None
        words = letters.flatten(0, 1)
        if torch.compiler.is_compiling():  # The number of different words depends on the values.
            index = torch.arange(words.shape[0], device=words.device)
        else:  # The letters of equal words are read once.
            words, index = words.unique(dim=0, return_inverse=True)
        margin = LETTER_WINDOW // 2
        padded = nn.functional.pad(words, (margin, margin))
        windows = self.letter_embedding(padded).unfold(1, LETTER_WINDOW, 1).flatten(2)
        features = self.letter_features(windows).masked_fill((words == 0)[..., None], -math.inf).amax(1)
        features = features.masked_fill(features.isinf(), 0)  # Padding has no letters.
        return features[index].unflatten(0, letters.shape[:2])


@lru_cache(maxsize=1 << 16)
def _word_ids(vocabulary: Vocabulary, word: str, letters: int, lowercase: bool) -> list[int]:
    """Return the first `MAX_PIECES` subwords of a word, and 1 plus the first and the last bytes of the word."""
    pieces = vocabulary.encode(word.lower() if lowercase else word)[:MAX_PIECES]
    encoded = word.encode()
    if len(encoded) > letters:
        encoded = encoded[: letters - letters // 2] + encoded[len(encoded) - letters // 2 :]
    padding = [PAD] * (MAX_PIECES - len(pieces)), [0] * (letters - len(encoded))
    return [*pieces, *padding[0], *(byte + 1 for byte in encoded), *padding[1]]
