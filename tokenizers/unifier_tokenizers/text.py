"""Text as tokens: vocabularies of subwords, built on Hugging Face tokenizers, and the tokenizer that reads them."""

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Literal, Self, final

import torch
from torch import Tensor, nn

import tokenizers as hf
from tokenizers import decoders, models, pre_tokenizers, trainers
from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError, check_choice
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

Level = Literal["bpe", "word", "character", "byte"]

MIN_VOCABULARY: dict[Level, int] = {"bpe": 260, "byte": 260, "character": 261, "word": 5}
"""The smallest vocabulary of each level: the special entries, and all bytes or one learned entry."""

PAD, UNK, BOS, EOS = range(4)

SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
"""The first entries of every vocabulary. No text can spell them."""

WORD_START = re.compile(r"\w+'?|[^\w\s]")
"""Matches one word: texts are cut at spaces, after an apostrophe and around punctuation.

"Je n'entre." has the words Je, n', entre and the full stop.
"""


@final
class Vocabulary:
    """The subwords of a set of texts.

    "bpe" is byte-level byte-pair encoding (Sennrich et al. 2016; on bytes: Radford et al. 2019). "byte" has only the
    256 bytes. "character" has the characters of the texts, and spells other characters in bytes. "word" has the words
    and punctuation marks of the texts, and an entry for unknown words. All levels but "word" restore every text
    exactly; "word" joins its words with spaces.
    """

    def __init__(self, codec: hf.Tokenizer) -> None:
        self.codec = codec

    @classmethod
    def fit(cls, texts: Iterable[str], *, size: int = 8000, level: Level = "bpe") -> Self:
        """Learn a vocabulary.

        Args:
            texts: The texts, read as a stream.
            size: The most entries, including the four special entries and any bytes.
            level: The kind of subword.

        Raises:
            InputError: If the size is too small for the level, or if every text is empty or one is not Unicode.
        """
        if size < (minimum := MIN_VOCABULARY[check_choice("level", level, tuple(MIN_VOCABULARY))]):
            raise InputError(f'a vocabulary of {size} entries at level "{level}" is too small: at least {minimum}')
        texts = iter(texts)  # The texts may not fit into memory.
        first = next(filter(None, texts), None)
        if first is None:
            raise InputError("a vocabulary cannot be learned from no text: give it at least one sentence")
        texts = map(_check_unicode, chain([first], texts))
        if level == "word":
            return cls(_word_codec(texts, size))
        if level == "character":
            return cls(_character_codec(texts, size))
        return cls(_byte_codec(texts, size if level == "bpe" else 260))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by `save`, or any tokenizer.json with `SPECIALS` as its first four entries."""
        try:
            codec = hf.Tokenizer.from_file(str(path))
        except Exception as error:  # The library raises plain Exception.
            raise InputError(f"{path}: not a saved vocabulary ({error})") from error
        if tuple(map(codec.id_to_token, range(4))) != SPECIALS:
            raise InputError(f"{path}: its first entries are not {' '.join(SPECIALS)}")
        return cls(codec)

    def save(self, path: str | Path) -> None:
        """Write one JSON file in Hugging Face's format."""
        self.codec.save(str(path))

    def __len__(self) -> int:
        return self.codec.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without a begin or end mark."""
        try:
            return self.codec.encode(" " + text, add_special_tokens=False).ids
        except TypeError as error:
            raise _unicode_error(text) from error

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special entries are left out."""
        text = self.codec.decode([i for i in ids if i > EOS], skip_special_tokens=False)
        return text.removeprefix(" ")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return a readable text for each id, such as for the axes of figures."""
        return [self.codec.decode([i]).strip() if i > EOS else SPECIALS[i] for i in ids]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the index of each id's word (`WORD_START`) in the text; a special entry is a word of its own.

        An id that spans two words belongs to the second word, and a space belongs to the next word.
        """
        indices: list[int] = []
        num_words = 0
        for special, group in groupby(ids, lambda i: i <= EOS):
            run = list(group)
            if special:
                indices += range(num_words, num_words + len(run))
                num_words += len(run)
                continue
            word_ends = [word.end() for word in WORD_START.finditer(self.decode(run))]
            # The end of each id. An incomplete character may decode to several characters, so an end is at most the
            # ends after it.
            lengths = [len(self.decode(run[:n])) for n in range(1, len(run) + 1)]
            ends = [*accumulate(reversed(lengths), min)][::-1]
            indices += [num_words + bisect_right(word_ends, end - 1) for end in ends]
            num_words += len(word_ends)
        return indices


@final
class SubwordTokenizer(Tokenizer):
    """Subwords of a text and an end mark as tokens: ids (N,) at positions (1, N).

    A token is its id's embedding times sqrt(D) (Vaswani et al. 2017, section 3.4), plus its position.
    """

    unit = "words"

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        positions: PositionKind = "sinusoid",
        length: int = 512,
        dropout: float = 0.0,
        vectors: Tensor | None = None,
    ) -> None:
        """Create the tokenizer.

        Args:
            vocabulary: The subwords.
            dim: D, the width of the tokens.
            positions: The kind of positional encoding.
            length: The longest text, in subwords, for positions="learned".
            dropout: The dropout of the tokens.
            vectors: (V, E) fixed embeddings in place of learned ones; a linear map E -> D is learned if E is not D.
        """
        super().__init__(dim)
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(len(vocabulary), dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.project = nn.Identity()
        if vectors is not None:
            if vectors.shape[0] != len(vocabulary):
                raise InputError(f"{vectors.shape[0]} word vectors for a vocabulary of {len(vocabulary)} entries")
            self.embedding = nn.Embedding.from_pretrained(vectors.float(), freeze=True)
            if vectors.shape[1] != dim:
                self.project = nn.Linear(vectors.shape[1], dim, bias=False)
        self.encoding = PositionalEncoding(positions, dim, (length,))
        self.dropout = Dropout(dropout)

    def encode(self, raw: str) -> Units:
        """Encode a text as ids (N,) with an end mark."""
        if not isinstance(raw, str):
            raise InputError(f"a text is expected, not {type(raw).__name__}")
        if not raw.strip():
            raise InputError("an empty text has no tokens")
        ids = torch.tensor([*self.vocabulary.encode(raw), EOS])
        positions = torch.arange(len(ids))[None]
        self.encoding.check(positions)
        return Units(ids, positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn ids (B, N) at positions (B, 1, N) into tokens (B, D, N)."""
        columns = self.project(self.embedding(values)) * math.sqrt(self.dim)
        return self.dropout(self.encoding(columns.transpose(1, 2), positions))

    def position_values(self, units: Units) -> Tensor:
        """Return the index of each subword's word (1, N); the end mark has the index after the last word."""
        return torch.tensor(self.vocabulary.word_ids(units.values.tolist())).float()[None]


def load_vectors(path: str | Path, vocabulary: Vocabulary) -> Tensor:
    """Read word vectors in the text format of word2vec or GloVe: one word per line, then its E numbers.

    Entries that are missing in the file are drawn from a normal distribution with the same root mean square.

    Returns:
        (V, E) vectors with a root mean square of E**-0.5.

    Raises:
        InputError: If a line is malformed, which the message names, or if no word is in the vocabulary.
    """
    # A subword at the start of a word and the same subword inside a word are two entries with one text.
    entries = defaultdict[str, list[int]](list)
    for i, token in enumerate(vocabulary.tokens(range(len(vocabulary)))):
        entries[token].append(i)
    vectors: dict[str, Tensor] = {}
    width = 0
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                word, *numbers = line.decode("utf-8").rstrip().split(" ")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}, line {number}: not UTF-8; is it word2vec's binary format?") from error
            if number == 1 and len(numbers) == 1:  # word2vec's header holds the number of words and their width.
                continue
            width = width or len(numbers)
            if len(numbers) > width > 0 and not _is_number(numbers[-width - 1]):  # Some words of GloVe hold spaces.
                continue
            if not numbers or len(numbers) != width:
                raise InputError(f"{path}, line {number}: {len(numbers)} numbers where {width or 'some'} are expected")
            if word in entries:
                try:
                    vectors[word] = torch.tensor([float(n) for n in numbers])
                except ValueError as error:
                    raise InputError(f"{path}, line {number}: {error}") from error
    if not vectors:
        raise InputError(f"{path}: none of its words is in the vocabulary; is it a file of word vectors?")
    table = torch.randn(len(vocabulary), width, generator=torch.Generator().manual_seed(0))
    root_mean_square = torch.stack(list(vectors.values())).square().mean().sqrt()
    for word, vector in vectors.items():
        table[entries[word]] = vector / root_mean_square
    return table * width**-0.5


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unicode_error(text: str) -> InputError:
    # Broken JSON can leave one half of a surrogate pair.
    return InputError(f"{text[:50]!r} is not valid Unicode: repair it or leave it out")


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _unicode_error(text) from error
    return text


# A trainer's special tokens would be cut out of any text that spells them. So each codec is trained without special
# tokens. It is then rebuilt with the special entries in front, outside everything that a text can spell.


def _with_specials(entries: Iterable[str]) -> dict[str, int]:
    """Return the ids of all entries, after the special entries."""
    return {entry: i for i, entry in enumerate(dict.fromkeys((*SPECIALS, *entries)))}


def _byte_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    # Every text gets one leading space, which decode removes, so that a word has one spelling at any position.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = hf.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS), initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    trained.train_from_iterator((" " + text for text in texts), trainer)
    model = json.loads(trained.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    merges = [(left, right) for left, right in model["merges"]]
    codec = hf.Tokenizer(models.BPE(_with_specials((*alphabet, *learned)), merges))
    codec.pre_tokenizer = trained.pre_tokenizer
    codec.decoder = decoders.ByteLevel()
    return codec


def _character_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    byte_names = [f"<0x{byte:02X}>" for byte in range(256)]
    counts: dict[str, int] = {" ": 0}
    for text in texts:
        for character in text:
            counts[character] = counts.get(character, 0) + 1
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    characters = by_frequency[: size - 260]
    codec = hf.Tokenizer(models.BPE(_with_specials((*byte_names, *characters)), [], byte_fallback=True))
    codec.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return codec


def _word_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    trained = hf.Tokenizer(models.WordLevel(unk_token=SPECIALS[UNK]))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    trained.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=size - len(SPECIALS), show_progress=False, special_tokens=[])
    )
    learned = trained.get_vocab()
    words = sorted(learned, key=lambda word: learned[word])
    codec = hf.Tokenizer(models.WordLevel(_with_specials(words), unk_token=SPECIALS[UNK]))
    codec.pre_tokenizer = trained.pre_tokenizer
    return codec
