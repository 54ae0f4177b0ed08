"""The tokenizer for text, and vocabularies of subwords, words or characters."""

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import NamedTuple, Self, final

import torch
from torch import Tensor, nn

import tokenizers as hf
from tokenizers import decoders, normalizers, processors
from unifier_tokenizers.configurable import StoredFile
from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError, check_choice, check_file
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.subwords import BOS, EOS, MIN_VOCABULARY, SPECIALS, UNK, Level, learn_codec
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

LONG_PART = re.compile(r".{65536}.*?\S(?=\s)|.+", re.DOTALL)
"""Parts of a long text, which end before white space. Encoding a text of 4 MB at one time would take 1 GB of memory."""

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
        codec = learn_codec(texts, size, level, lowercase=lowercase)
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
        check_file(path)
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


def _capitalized(text: str) -> str:
    """Return a text in lower case, except its first letter."""
    return re.sub(r"[^\W\d_]", lambda letter: letter.group().title(), text.lower(), count=1)


def _unicode_error(text: str) -> InputError:
    # A text from broken JSON can contain one half of a surrogate pair.
    return InputError(f"{text[:50]!r} is not valid Unicode: repair this text or remove it from the data")


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _unicode_error(text) from error
    return text
