"""The tokenizer for text, and subword vocabularies based on Hugging Face's tokenizers."""

import json
import math
import os
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Literal, NamedTuple, Self, final
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from unifier_tokenizers.configurable import StoredFile
from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError, check_choice
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

Level = Literal["bpe", "wordpiece", "unigram", "word", "character", "byte"]

MIN_VOCABULARY: dict[Level, int] = {
    "bpe": 260,
    "wordpiece": 515,
    "unigram": 260,
    "word": 5,
    "character": 261,
    "byte": 260,
}
"""The smallest vocabulary size for each level: 4 special entries, plus the 256 bytes, one learned entry, or both.

Level "wordpiece" has two entries for each byte, one at the start and one inside of a word. Only "#" has one entry.
"""

PAD, UNK, BOS, EOS = range(4)

SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
"""The special entries, which come first in every vocabulary. The text "<pad>" is not encoded as a special entry."""

LONG_PART = re.compile(r".{65536}.*?\S(?=\s)|.+", re.DOTALL)
"""Parts of a long text, which end before white space. Encoding a text of 4 MB at one time would take 1 GB of memory."""

MAX_WORD_BYTES = 1000
"""Length of a word at the levels "bpe", "unigram" and "byte". A longer word is cut into words of this length.

Learning takes time in proportion to the square of a word's length.
"""

MAX_WORDPIECE_BYTES = 50
"""Length of a word at the level "wordpiece". Encoding takes time in proportion to the square of a word's length."""

NUM_ESTIMATES = 3
"""Number of times that the probabilities of a unigram vocabulary are estimated."""

DECODED_WINDOW = 32
"""Number of ids that are decoded together to find the end of each id in the text."""

WORD_START = re.compile(r"\w+'?|[^\w\s]")
"""A regular expression for words. Words end at spaces, after an apostrophe, and before and after punctuation.

"Je n'entre." has the words Je, n', entre and the full stop.
"""


@final
class MarkedText(str):
    """Text in which the name of an extra entry, such as "<mask>", means the entry and not the characters."""

    __slots__ = ()


@final
class TextPiece(NamedTuple):
    """Part of a long text as ids. `SubwordTokenizer` encodes a piece without a change."""

    ids: tuple[int, ...]
    """The ids of the piece. The first id is the id before the piece in the long text, or the begin token."""
    start: int = 0
    """The position of the first id."""


@final
class Vocabulary(StoredFile):
    """Mapping between texts and the ids of their subwords. There are six levels of subwords.

    - Level "bpe" is byte-pair encoding (Sennrich et al. 2016) of bytes (Radford et al. 2019). No subword crosses a
      multiple of `MAX_WORD_BYTES` bytes in a word.
    - Level "wordpiece" cuts a word of bytes into the longest entries, from left to right (Devlin et al. 2019). Entries
      inside a word begin with "##". No subword crosses a multiple of `MAX_WORDPIECE_BYTES` bytes in a word.
    - Level "unigram" splits the bytes of a word so that the product of probabilities is largest (Kudo 2018).
    - Level "byte" contains only the 256 bytes.
    - Level "character" contains the characters of the texts, and encodes all other characters as bytes.
    - Level "word" contains the words and punctuation marks of the texts, and one entry for unknown words.

    All levels except "word" decode ids to exactly the encoded text, because an unknown character is encoded as bytes.
    Level "word" decodes ids to words that are separated by spaces.

    A vocabulary may have named extra entries, such as "<mask>". Ordinary texts are never encoded as extra entries.
    """

    def __init__(self, codec: hf.Tokenizer) -> None:
        self.codec = codec
        # Without this option, the characters "<mask>" in an ordinary text would become the extra entry.
        codec.encode_special_tokens = True
        added = sorted(codec.get_added_tokens_decoder().items())
        self.extra: Mapping[str, int] = {token.content: i for i, token in added if token.special and i > EOS}
        """The ids of the extra entries, keyed by name."""
        self._names = {i: name for name, i in self.extra.items()} | dict(enumerate(SPECIALS))

    def __setstate__(self, state: Mapping[str, hf.Tokenizer]) -> None:
        self.__init__(state["codec"])  # A pickled codec loses its option.

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        *,
        size: int = 8000,
        level: Level = "bpe",
        extra: Sequence[str] = (),
        lowercase: bool = False,
    ) -> Self:
        """Learn a vocabulary.

        Args:
            texts: The texts, which need not fit into memory. The names of extra entries in a `MarkedText` are left out.
            size: The maximum number of entries, including the four special entries, any bytes and the extra entries.
            level: The kind of subword.
            extra: The names of extra entries, such as "<mask>". The extra entries get the last ids.
            lowercase: Convert all texts to lower case, at level "word" only.

        Raises:
            InputError: If the size is too small for the level, if all texts are empty, or if a text is not valid
                Unicode. The error is also raised if the name of an extra entry is already an entry.
        """
        minimum = MIN_VOCABULARY[check_choice("level", level, tuple(MIN_VOCABULARY))] + len(extra)
        if size < minimum:
            raise InputError(f'size={size} is too small for level "{level}": use at least {minimum} entries')
        if lowercase and level != "word":
            raise InputError(f'lowercase=True: only level "word" reads texts in lower case, not level "{level}"')
        size -= len(extra)
        names = "|".join(map(re.escape, sorted(extra, key=len, reverse=True)))
        # A list of all texts might not fit into memory.
        texts = (re.sub(names, "", text) if isinstance(text, MarkedText) and extra else text for text in texts)
        first = next(filter(None, texts), None)
        if first is None:
            raise InputError("no text has any characters, so no vocabulary can be learned: give at least one sentence")
        texts = map(_check_unicode, chain([first], texts))
        if level == "word":
            codec = _word_codec(texts, size, lowercase=lowercase)
        elif level == "character":
            codec = _character_codec(texts, size)
        elif level == "wordpiece":
            codec = _wordpiece_codec(texts, size)
        elif level == "unigram":
            codec = _unigram_codec(texts, size)
        else:
            codec = _byte_codec(texts, size if level == "bpe" else 260)
        for name in extra:
            if not name or name != name.strip() or codec.token_to_id(name) is not None:
                raise InputError(
                    f"extra={name!r}: empty, with outer spaces, or already an entry; choose a name such as <mask>"
                )
            codec.add_special_tokens([name])
        return cls(codec)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a vocabulary from a JSON file, whose first four entries must be `SPECIALS`.

        `save` and Hugging Face's tokenizers write files in this format.
        """
        _check_file(path)
        try:
            codec = hf.Tokenizer.from_file(str(path))
        except Exception as error:  # Hugging Face's library raises plain Exception.
            raise InputError(f"{path} is not a vocabulary ({error}): give a file from Vocabulary.save") from error
        if tuple(map(codec.id_to_token, range(4))) != SPECIALS:
            raise InputError(f"{path}: the first entries of the vocabulary must be {' '.join(SPECIALS)}")
        return cls(codec)

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to a JSON file in Hugging Face's format."""
        self.codec.save(str(path))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the vocabulary as a folder in the format of Hugging Face's transformers.

        `transformers.AutoTokenizer.from_pretrained(folder)` then gives the ids of `SubwordTokenizer.encode`, which end
        with <eos>. The characters "<eos>" in a text are not encoded as the special entry there either.

        Args:
            folder: The folder, which is created.
        """
        codec = hf.Tokenizer.from_str(self.codec.to_str())
        lower = [codec.normalizer] if codec.normalizer is not None else []
        codec.normalizer = normalizers.Sequence([*lower, normalizers.Prepend(" ")])
        steps = [codec.decoder, decoders.Strip(" ", 1, 0)] if codec.decoder is not None else []
        if steps:
            codec.decoder = decoders.Sequence(steps)
        codec.post_processor = processors.TemplateProcessing(
            single=f"$A {SPECIALS[EOS]}", special_tokens=[(SPECIALS[EOS], EOS)]
        )
        names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIALS, strict=True))
        special = {**names, "additional_special_tokens": [*self.extra]}
        config = {
            **special,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        codec.save(str(Path(folder) / "tokenizer.json"))
        for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
            (Path(folder) / name).write_text(json.dumps(content, indent=2), encoding="utf-8")

    def __len__(self) -> int:
        return self.codec.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Encode a text as ids. No begin token or end token is added.

        In a `MarkedText`, a name such as "<mask>" becomes the id of this extra entry. Spaces before a name are dropped,
        because a word's first subword contains the space before the word.
        """
        parts = [" " + text]
        if isinstance(text, MarkedText) and self.extra:
            names = sorted(self.extra, key=len, reverse=True)  # A name may begin with another name.
            parts = re.split(rf"\s*({'|'.join(map(re.escape, names))})", " " + text)
        ids: list[int] = []
        try:
            for part in filter(None, parts):
                ids += [self.extra[part]] if part in self.extra else self._encode_part(part)
        except TypeError as error:
            raise _unicode_error(text) from error
        return ids

    def _encode_part(self, text: str) -> list[int]:
        parts = [text] if len(text) < 1 << 16 else LONG_PART.findall(text)
        return [i for part in parts for i in self.codec.encode(part, add_special_tokens=False).ids]

    def unknown_characters(self, text: str) -> list[str]:
        """Return the characters of a text that are no entries of a vocabulary of level "character", without repeats.

        Such a vocabulary encodes an unknown character as bytes. The names of extra entries in a `MarkedText` are left
        out.
        """
        if isinstance(text, MarkedText):
            for name in sorted(self.extra, key=len, reverse=True):
                text = text.replace(name, "")
        return [c for c in dict.fromkeys(text) if self.codec.token_to_id(c) is None]

    @property
    def characters(self) -> list[str]:
        """The sorted entries that are single characters."""
        return sorted(entry for entry in self.codec.get_vocab() if len(entry) == 1)

    def encode_start(self, text: str) -> list[int]:
        """Encode a text like `encode`. If the added space in front becomes a separate id, the id is left out."""
        ids = self.encode(text)
        return ids[1:] if ids and self.codec.decode(ids[:1], skip_special_tokens=False) == " " else ids

    def decode(self, ids: Iterable[int], *, extra: bool = False) -> str:
        """Decode ids to a text. Special entries are removed.

        Args:
            ids: The ids.
            extra: Write the names of extra entries, as in "a <mask> film". If False, extra entries are removed too.
        """
        if extra and self.extra:
            groups = groupby((i for i in ids if i > EOS), self._names.get)
            space = " " if self.codec.decoder is None else ""  # Only level "word" decodes a word without its space.
            parts = [f" {name}" * len([*run]) if name else space + self.codec.decode([*run]) for name, run in groups]
            return "".join(parts).removeprefix(" ")
        text = self.codec.decode([i for i in ids if i not in self._names], skip_special_tokens=False)
        return text.removeprefix(" ")

    def is_special(self, i: int) -> bool:
        """Return True if an id is a special entry or an extra entry."""
        return i in self._names

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return a readable text for each id, for example for the axes of a figure."""
        return [self._names.get(i) or self.codec.decode([i]).strip() for i in ids]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the index of the word in the text for each id.

        Words are matches of `WORD_START`. A special entry counts as one word. An id that spans two words belongs to the
        second word, and a space belongs to the next word.
        """
        indices: list[int] = []
        num_words = 0
        for special, group in groupby(ids, self.is_special):
            run = list(group)
            if special:
                indices += range(num_words, num_words + len(run))
                num_words += len(run)
                continue
            word_ends = [word.end() for word in WORD_START.finditer(self.decode(run))]
            # The end of an id is the length of the decoded text, up to and including the id. An incomplete character
            # can decode to several characters, so the end of an id must not exceed the ends of later ids.
            ends = [*accumulate(reversed(self._decoded_lengths(run)), min)][::-1]
            indices += [num_words + bisect_right(word_ends, end - 1) for end in ends]
            num_words += len(word_ends)
        return indices

    def _decoded_lengths(self, ids: list[int]) -> list[int]:
        """Return the length of the text up to and including each id. The time grows linearly with the ids."""
        lengths: list[int] = []
        start, base = 0, -int(self.codec.decode(ids[:1], skip_special_tokens=False).startswith(" "))
        for end in range(1, len(ids) + 1):
            text = self.codec.decode(ids[start:end], skip_special_tokens=False)
            lengths.append(base + len(text))
            if end - start >= DECODED_WINDOW and not text.endswith("\ufffd"):
                # If possible, the next window begins with the last id, because decoding may add a space between ids.
                last = self.codec.decode(ids[end - 1 : end], skip_special_tokens=False)
                overlap = int("\ufffd" not in last)
                start, base = end - overlap, lengths[-1] - overlap * len(last)
        return lengths


@final
class SubwordTokenizer(Tokenizer):
    """Tokenizer that turns the subwords of a text and an end token into tokens.

    For language models, a begin token precedes the text, so that the first subword can be predicted. The
    values are ids (N,) at positions (1, N). A token is the embedding of its id times sqrt(D) (Vaswani et al. 2017,
    section 3.4), plus the encoding of its position.

    With `sentences=True`, the input is a sequence of sentences, each of which ends with the end token. The positions
    (2, N) then contain also the number of the sentence, which serves heads that read whole sentences.
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
        freeze_vectors: bool = True,
        begin: bool = False,
        end: bool = True,
        sentences: bool = False,
        codes: Sequence[str] = (),
        recase: bool = False,
        known_characters: bool = False,
    ) -> None:
        """Create the tokenizer.

        Args:
            vocabulary: The vocabulary of subwords.
            dim: D, the width of the tokens.
            positions: The kind of positional encoding.
            length: The maximum number of subwords of a text, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
            vectors: Embeddings (V, E) that replace random embeddings. If E is not D, a linear layer from E to D is
                learned.
            freeze_vectors: False trains the vectors, too.
            begin: Add a begin token before each text. The text then has no added space before its first word, if the
                space would be an id of its own.
            end: Add an end token after each text. A part of a longer text has no end.
            sentences: Read sequences of sentences in place of texts.
            codes: The names of extra entries, such as "<de>". If there are any, a `MarkedText` must begin with a code.
            recase: Read a text in capitals as if it had the usual capitals (see `recased`).
            known_characters: Refuse a text with characters that are no entries of the vocabulary. The vocabulary must
                have the level "character".

        Raises:
            InputError: If the vocabulary has no entry for a code, or if the word vectors have another number.
        """
        super().__init__(dim)
        self.vocabulary = vocabulary
        self.embedding, self.project = embed_vocabulary(vocabulary, dim, vectors, freeze_vectors)
        self.encoding = PositionalEncoding(positions, dim, (length,))
        self.dropout = Dropout(dropout)
        self.begin, self.end, self.sentences, self.codes, self.recase = begin, end, sentences, tuple(codes), recase
        self.known_characters = known_characters
        if missing := [code for code in self.codes if code not in vocabulary.extra]:
            raise InputError(f"the vocabulary has no entry {missing[0]}: learn a vocabulary with this extra entry")

    def encode(self, raw: str | TextPiece | Sequence[str]) -> Units:
        """Encode a text as ids (N,), with a begin token and an end token as chosen. A piece consists of its ids."""
        if self.sentences:
            return self._encode_sentences(raw)
        piece = raw if isinstance(raw, TextPiece) else TextPiece(tuple(self._encode_text(raw)))
        ids = torch.tensor(piece.ids)
        positions = torch.arange(piece.start, piece.start + len(ids))[None]
        self.encoding.check(positions)
        return Units(ids, positions)

    def recased(self, text: str) -> str:
        """Return a text of several words without lower-case letters with the usual capitals.

        The first letter is a capital. The first letter of each later word is a capital if the word then needs fewer
        ids, as in a name or a German noun. Frequent subwords have smaller ids, so a word that is one id in both cases
        gets a capital if its id is then at most half as large. A known case is preferred to an unknown word. A code at
        the start is not changed. With `recase=False`, every text is returned unchanged.
        """
        code = next((code for code in self.codes if text.startswith(code)), "")
        body = text[len(code) :]
        if not self.recase or not body.isupper() or len(body.split()) < 2:
            return text
        first, *others = re.findall(r"\s*\S+\s*", body)
        changed = code + _capitalized(first) + "".join(map(self._recased_word, others))
        return MarkedText(changed) if isinstance(text, MarkedText) else changed

    def _recased_word(self, word: str) -> str:
        lower, capitalized = word.lower(), _capitalized(word)
        ids, others = (self.vocabulary.encode(each.strip()) for each in (lower, capitalized))
        if (UNK in ids) != (UNK in others):
            return capitalized if UNK in ids else lower
        is_frequent = len(ids) == len(others) == 1 and 2 * others[0] <= ids[0]
        return capitalized if len(others) < len(ids) or is_frequent else lower

    def _encode_sentences(self, sentences: object) -> Units:
        if not isinstance(sentences, list | tuple) or not sentences:
            raise InputError(f"a sequence of sentences is expected, not {type(sentences).__name__} {sentences!r:.50}")
        parts = [self._encode_text(sentence) for sentence in sentences]
        ids = torch.tensor([i for part in parts for i in part])
        numbers = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))
        positions = torch.stack([torch.arange(len(ids)), numbers])
        self.encoding.check(positions[:1])
        return Units(ids, positions)

    def _encode_text(self, raw: object) -> list[int]:
        if not isinstance(raw, str):
            raise InputError(f"a text is expected, not {type(raw).__name__}")
        if not raw.strip():
            raise InputError("the text is empty: at least one word is needed")
        raw = self.recased(raw)
        ids = [BOS, *self.vocabulary.encode_start(raw)] if self.begin else self.vocabulary.encode(raw)
        if self.codes and ids[int(self.begin)] not in map(self.vocabulary.extra.get, self.codes):
            unknown = re.match(r"<[^<>\s]+>", raw.lstrip())
            fault = f"begins with the unknown code {unknown.group()}" if unknown else "has no code"
            raise InputError(f"{raw!r:.50} {fault}: begin the text with one of {', '.join(self.codes)}")
        if self.known_characters and (unknown := self.vocabulary.unknown_characters(raw)):
            listed, known = (" ".join(map(repr, each)) for each in (unknown, self.vocabulary.characters))
            raise InputError(f"{raw!r:.50} has characters that no training text has: {listed}; use only {known}")
        return [*ids, EOS] if self.end else ids

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn ids (B, N) at positions (B, 1, N) or (B, 2, N) into tokens (B, D, N)."""
        columns = self.project(self.embedding(values)) * math.sqrt(self.dim)
        return self.dropout(self.encoding(columns.transpose(1, 2), positions[:, :1]))

    def position_values(self, units: Units) -> Tensor:
        """Return the word index of each subword (1, N). The end token counts as one word."""
        return torch.tensor(self.vocabulary.word_ids(units.values.tolist())).float()[None]


def embed_vocabulary(
    vocabulary: Vocabulary, dim: int, vectors: Tensor | None, freeze: bool
) -> tuple[nn.Embedding, nn.Module]:
    """Create the embedding of a vocabulary, and the layer that maps its rows to the width of the tokens.

    Args:
        vocabulary: The vocabulary with V entries.
        dim: D, the width of the tokens.
        vectors: The rows (V, E) of the embedding, or None for random rows of the width D.
        freeze: Do not train the given vectors.

    Raises:
        InputError: The number of vectors is not V.
    """
    if vectors is None:
        embedding = nn.Embedding(len(vocabulary), dim)
        nn.init.normal_(embedding.weight, std=dim**-0.5)
        return embedding, nn.Identity()
    if vectors.shape[0] != len(vocabulary):
        raise InputError(
            f"{vectors.shape[0]} word vectors for a vocabulary of {len(vocabulary)} entries: give one per entry"
        )
    embedding = nn.Embedding.from_pretrained(vectors.float(), freeze=freeze)
    return embedding, nn.Identity() if vectors.shape[1] == dim else nn.Linear(vectors.shape[1], dim, bias=False)


def load_vectors(path: str | Path, vocabulary: Vocabulary) -> Tensor:
    """Read word vectors from a text file in the format of word2vec or GloVe, or from an array with a list of words.

    Each line of a text file contains a word and its E numbers. An array and its words are two files, "ARRAY,WORDS": a
    NumPy file (.npz or .npy) with the vectors (W, E), and a text file with one word per line.

    Returns:
        The vectors (V, E) of the vocabulary (see `match_vectors`).

    Raises:
        InputError: If a file is missing or malformed, or if no word of the file is in the vocabulary.
    """
    wanted = {*vocabulary.tokens(range(len(vocabulary)))}
    array, comma, words = str(path).partition(",")
    vectors = _read_vector_array(array, words, wanted) if comma else _read_vector_lines(path, wanted)
    return match_vectors(vectors, vocabulary, str(path))


def match_vectors(vectors: Mapping[str, Tensor], vocabulary: Vocabulary, origin: str) -> Tensor:
    """Return a vector for each entry of a vocabulary, given the vectors (E,) of words.

    Entries without a given vector get random vectors from a normal distribution.

    Args:
        vectors: The vector of each word. Words that are not in the vocabulary are left out.
        vocabulary: The vocabulary with V entries.
        origin: The file or the model of the vectors, for messages.

    Returns:
        The vectors (V, E), scaled to a root mean square of E**-0.5.

    Raises:
        InputError: If no word is in the vocabulary, or if the vectors cannot be scaled.
    """
    # A subword at the start of a word and the same subword inside a word are two entries with the same text.
    entries = defaultdict[str, list[int]](list)
    for i, token in enumerate(vocabulary.tokens(range(len(vocabulary)))):
        entries[token].append(i)
    vectors = {word: vector for word, vector in vectors.items() if word in entries}
    if not vectors:
        raise InputError(
            f"{origin}: no word of these vectors is in the vocabulary: give word vectors for the language of the texts"
        )
    width = len(next(iter(vectors.values())))
    table = torch.randn(len(vocabulary), width, generator=torch.Generator().manual_seed(0))
    root_mean_square = torch.stack(list(vectors.values())).square().mean().sqrt()
    if not 0 < root_mean_square < math.inf:
        raise InputError(f"{origin}: its vectors have a root mean square of {root_mean_square:g}; correct the numbers")
    for word, vector in vectors.items():
        table[entries[word]] = vector / root_mean_square
    return table * width**-0.5


def vector_words(path: str | Path) -> list[str]:
    """Return all words of a file of word vectors, in the order of the file. See `load_vectors` for the formats."""
    words = str(path).partition(",")[2]
    if words:
        return _read_words(words)
    _check_file(path)
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        parts = [line.rstrip().split(" ") for line in lines]
    return [word for n, (word, *numbers) in enumerate(parts) if n or len(numbers) != 1]


def _read_words(path: str) -> list[str]:
    _check_file(path)
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text; save one word per line in UTF-8") from error


def _read_vector_array(array: str, words: str, wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the vectors (E,) of the wanted words, given an array and a list of words."""
    names = _read_words(words)
    _check_file(array)
    try:
        content = np.load(array, allow_pickle=False)
        arrays = [content] if isinstance(content, np.ndarray) else [content[name] for name in content.files]
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{array} is no NumPy file that can be read: save the vectors as .npz or .npy") from error
    if len(arrays) != 1 or arrays[0].ndim != 2 or arrays[0].dtype.kind != "f":
        raise InputError(f"{array}: a single array (words, numbers) of floats is expected")
    if len(arrays[0]) != len(names):
        raise InputError(f"{array} has {len(arrays[0])} vectors, but {words} has {len(names)} words: give one per word")
    table = torch.from_numpy(arrays[0].astype(np.float32))
    return {word: vector for word, vector in zip(names, table, strict=True) if word in wanted}


def _read_vector_lines(path: str | Path, wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the vectors (E,) of the wanted words, given a text file."""
    _check_file(path)
    vectors: dict[str, Tensor] = {}
    width = 0
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                word, *numbers = line.decode("utf-8").rstrip().split(" ")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}, line {number}: this line is not UTF-8; save the vectors as text, not as binary"
                ) from error
            if number == 1 and len(numbers) == 1:  # word2vec's header contains the number of words, and E.
                continue
            width = width or len(numbers)
            if len(numbers) > width > 0 and not _is_number(numbers[-width - 1]):  # Some words of GloVe contain spaces.
                continue
            if not numbers or len(numbers) != width:
                raise InputError(f"{path}, line {number}: {len(numbers)} numbers, but {width or 'some'} are expected")
            if word in wanted:
                try:
                    vectors[word] = torch.tensor([float(n) for n in numbers])
                except ValueError as error:
                    raise InputError(f"{path}, line {number}: {error}") from error
    return vectors


def _check_file(path: str | Path) -> None:
    """Raise InputError if a file is missing, or is a pipe or a device, which may never end."""
    if not os.path.isfile(path):  # noqa: PTH113  Path.is_file would raise OSError for a name of 300 letters.
        raise InputError(f"{path}: no such file, or not a regular file; give the path of a file")


def _capitalized(text: str) -> str:
    """Return a text in lower case, except its first letter."""
    return re.sub(r"[^\W\d_]", lambda letter: letter.group().title(), text.lower(), count=1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unicode_error(text: str) -> InputError:
    # A text from broken JSON can contain one half of a surrogate pair.
    return InputError(f"{text[:50]!r} is not valid Unicode: repair this text or remove it from the data")


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _unicode_error(text) from error
    return text


# A trainer with special tokens would remove the names of special tokens from the texts, so each codec is trained
# without special tokens. The trained codec is then rebuilt, and the special entries get the first ids.


def _with_specials(entries: Iterable[str]) -> dict[str, int]:
    """Map each entry to its id. The special entries get the first ids."""
    return {entry: i for i, entry in enumerate(dict.fromkeys((*SPECIALS, *entries)))}


def _byte_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    # Every text gets one leading space, so a word has the same ids anywhere in a text. `decode` removes the leading
    # space.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = hf.Tokenizer(models.BPE())
    words, parts = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.FixedLength(length=MAX_WORD_BYTES)
    trained.pre_tokenizer = pre_tokenizers.Sequence([words, parts])
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


def _wordpiece_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    # The decoder removes "##". A word "##!" of the text would lose its signs, so each "#" is a word of its own.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inside = [f"##{letter}" for letter in alphabet if letter != "#"]
    words, signs = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Split("#", "isolated")
    parts = pre_tokenizers.FixedLength(length=MAX_WORDPIECE_BYTES)
    trained = hf.Tokenizer(models.WordPiece())
    trained.pre_tokenizer = pre_tokenizers.Sequence([words, signs, parts])
    # Special tokens of a trainer have fixed ids. Otherwise, equal texts would give different vocabularies.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size - len(SPECIALS),
        initial_alphabet=alphabet,
        special_tokens=inside,
        show_progress=False,
        min_frequency=2,
    )
    trained.train_from_iterator(map(_shorten_words, texts), trainer)
    ids = trained.get_vocab()
    entries = _with_specials((*alphabet, *inside, *sorted(ids, key=lambda entry: ids[entry])))
    codec = hf.Tokenizer(
        models.WordPiece({entry: i for entry, i in entries.items() if i < size}, unk_token=SPECIALS[UNK])
    )
    codec.pre_tokenizer = trained.pre_tokenizer
    codec.decoder = decoders.Sequence([decoders.Replace(hf.Regex("^##"), ""), decoders.ByteLevel()])
    return codec


def _unigram_codec(texts: Iterable[str], size: int) -> hf.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words, parts = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.FixedLength(length=MAX_WORD_BYTES)
    cut = pre_tokenizers.Sequence([words, parts])
    trained = hf.Tokenizer(models.Unigram())
    trained.pre_tokenizer = cut
    counts = Counter[str]()

    def count_words() -> Iterator[str]:
        for text in map(_shorten_words, texts):
            counts.update(word for word, _ in cut.pre_tokenize_str(text))
            yield text

    trainer = trainers.UnigramTrainer(vocab_size=size - len(SPECIALS), initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(count_words(), trainer)
    # The library's probabilities differ a little in each call, and equal texts must give equal vocabularies. With equal
    # probabilities, a word first has as few subwords as possible.
    learned = sorted({*trained.get_vocab()} - {*alphabet}, key=lambda entry: (-len(entry), entry))
    entries = dict.fromkeys((*alphabet, *learned[: size - MIN_VOCABULARY["unigram"]]), -1.0)
    for _ in range(NUM_ESTIMATES):
        model, used = _unigram_model(entries), Counter[str]()
        for word, count in counts.items():
            for token in model.tokenize(word):
                used[token.value] += count
        entries = {entry: math.log((used[entry] + 0.5) / (used.total() + 1)) for entry in entries}
    codec = hf.Tokenizer(_unigram_model(entries))
    codec.pre_tokenizer = cut
    codec.decoder = decoders.ByteLevel()
    return codec


def _unigram_model(entries: Mapping[str, float]) -> models.Unigram:
    """Create a model from the log-probability of each entry. The special entries get the first ids."""
    specials = [(name, 0.0) for name in SPECIALS]
    ranked = sorted(entries.items(), key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*specials, *ranked], unk_id=UNK)


def _shorten_words(text: str) -> str:
    """Prepend a space, and shorten words to `MAX_WORD_BYTES` characters, because longer words take minutes to learn."""
    return " " + re.sub(rf"(\S{{{MAX_WORD_BYTES}}})\S+", r"\1", text)


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


def _word_codec(texts: Iterable[str], size: int, *, lowercase: bool) -> hf.Tokenizer:
    trained = hf.Tokenizer(models.WordLevel(unk_token=SPECIALS[UNK]))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    if lowercase:
        trained.normalizer = normalizers.Lowercase()
    trained.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=size - len(SPECIALS), show_progress=False, special_tokens=[])
    )
    learned = trained.get_vocab()
    words = sorted(learned, key=lambda word: learned[word])
    codec = hf.Tokenizer(models.WordLevel(_with_specials(words), unk_token=SPECIALS[UNK]))
    codec.pre_tokenizer = trained.pre_tokenizer
    if lowercase:
        codec.normalizer = normalizers.Lowercase()
    return codec
