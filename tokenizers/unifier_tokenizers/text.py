"""Texts to ids and back, by Hugging Face tokenizers.

Text to columns, one subword a column."""

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Literal, final

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
"""The fewest entries at each level: the specials, and the bytes where it has them, else one to learn."""


PAD, UNK, BOS, EOS = range(4)


SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
"""The first entries of every vocabulary. No text ever encodes to them by its spelling."""


WORD_START = re.compile(r"\w+'?|[^\w\s]")
"""Texts are cut at spaces, after an apostrophe and around marks: "Je n'entre." is Je, n', entre, "."."""


@final
class Vocabulary:
    """The subwords of a set of texts.

    Levels: "bpe" is byte-level byte-pair encoding (Sennrich et al. 2016; on bytes as in Radford et al. 2019), "byte"
    the 256 bytes alone, "character" the characters seen, with a character never seen spelled in bytes, and "word" the
    words and punctuation marks seen. All but "word" give every text back exactly; "word" has an unknown entry, and
    joins its words with spaces.
    """

    def __init__(self, codec: hf.Tokenizer) -> None:
        self.codec = codec

    @classmethod
    def fit(cls, texts: Iterable[str], *, size: int = 8000, level: Level = "bpe") -> "Vocabulary":
        """Learn at most `size` entries from texts, the four specials and any bytes included."""
        if size < (least := MIN_VOCABULARY[check_choice("level", level, tuple(MIN_VOCABULARY))]):
            raise InputError(f'a vocabulary of {size} entries at level "{level}" is too small: at least {least}')
        texts = iter(texts)  # there may be more of them than fit into memory
        first = next(filter(None, texts), None)
        if first is None:
            raise InputError("a vocabulary cannot be learned from no text: give it at least one sentence")
        texts = map(_checked, chain([first], texts))
        if level == "word":
            return cls(_words(texts, size))
        if level == "character":
            return cls(_characters(texts, size))
        return cls(_bytes(texts, size if level == "bpe" else 260))

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Read what `save` wrote, or any tokenizer.json whose first four entries are `SPECIALS`."""
        try:
            codec = hf.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise InputError(f"{path}: not a saved vocabulary ({error})") from error
        if tuple(map(codec.id_to_token, range(4))) != SPECIALS:
            raise InputError(f"{path}: its first entries are not {' '.join(SPECIALS)}")
        return cls(codec)

    def save(self, path: str | Path) -> None:
        """Write one JSON file, in Hugging Face's format."""
        self.codec.save(str(path))

    def __len__(self) -> int:
        return self.codec.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without begin and end."""
        try:
            return self.codec.encode(" " + text, add_special_tokens=False).ids
        except TypeError as error:
            raise _not_unicode(text) from error

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; specials are left out."""
        text = self.codec.decode([i for i in ids if i > EOS], skip_special_tokens=False)
        return text.removeprefix(" ")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Each id as a person would read it, for axes of figures."""
        return [self.codec.decode([i]).strip() if i > EOS else SPECIALS[i] for i in ids]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """For each id which `WORD` of the text it belongs to, from 0 on; a special entry counts as a word of its own.

        An id that spans two words belongs to the second, and a space to the word after it.
        """
        places: list[int] = []
        before = 0
        for special, group in groupby(ids, lambda i: i <= EOS):
            run = list(group)
            if special:
                places += range(before, before + len(run))
                before += len(run)
                continue
            ends = [word.end() for word in WORD_START.finditer(self.decode(run))]
            # Where each id ends. Part of a character's bytes is read as one character or more: not past its own end.
            lengths = [len(self.decode(run[:n])) for n in range(1, len(run) + 1)]
            lasts = [*accumulate(reversed(lengths), min)][::-1]
            places += [before + bisect_right(ends, last - 1) for last in lasts]
            before += len(ends)
        return places


def _not_unicode(text: str) -> InputError:
    return InputError(f"{text[:50]!r} is no Unicode text")  # half of a surrogate pair, as broken JSON leaves it


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _not_unicode(text) from error
    return text


# A trainer's special tokens would be cut out of any text that spells them. So each level is trained without them, and
# built again with the specials at the front of a vocabulary that no text can reach by spelling.


def _numbered(entries: Iterable[str]) -> dict[str, int]:
    return {entry: i for i, entry in enumerate(dict.fromkeys((*SPECIALS, *entries)))}


def _bytes(texts: Iterable[str], size: int) -> hf.Tokenizer:
    # Every text gets one space in front, taken off again by decode, so that a word is spelled alike wherever it stands.
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
    codec = hf.Tokenizer(models.BPE(_numbered((*alphabet, *learned)), merges))
    codec.pre_tokenizer = trained.pre_tokenizer
    codec.decoder = decoders.ByteLevel()
    return codec


def _characters(texts: Iterable[str], size: int) -> hf.Tokenizer:
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    counts: dict[str, int] = {" ": 0}
    for text in texts:
        for character in text:
            counts[character] = counts.get(character, 0) + 1
    seen = sorted(counts, key=lambda character: (-counts[character], character))[: size - 260]
    codec = hf.Tokenizer(models.BPE(_numbered((*spelled, *seen)), [], byte_fallback=True))
    codec.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return codec


def _words(texts: Iterable[str], size: int) -> hf.Tokenizer:
    trained = hf.Tokenizer(models.WordLevel(unk_token=SPECIALS[UNK]))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    trained.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=size - len(SPECIALS), show_progress=False, special_tokens=[])
    )
    learned = trained.get_vocab()
    codec = hf.Tokenizer(
        models.WordLevel(_numbered(sorted(learned, key=lambda word: learned[word])), unk_token=SPECIALS[UNK])
    )
    codec.pre_tokenizer = trained.pre_tokenizer
    return codec


@final
class SubwordTokenizer(Tokenizer):
    """Subwords of a text, and an end mark, as columns: ids (N,) at positions (1, N).

    The columns are rows of a table, scaled by sqrt(D) (Vaswani et al. 2017, section 3.4), plus their positions.
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
        """`vectors` (V, E) presets the table and keeps it fixed, under a learned E -> D projection where E is not D.

        `length` is the longest text, in subwords, for positions="learned".
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
        if not isinstance(raw, str):
            raise InputError(f"a text is expected, not {type(raw).__name__}")
        if not raw.strip():
            raise InputError("an empty text has no tokens")
        ids = torch.tensor([*self.vocabulary.encode(raw), EOS])
        positions = torch.arange(len(ids))[None]
        self.encoding.check(positions)
        return Units(ids, positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        columns = self.project(self.embedding(values)) * math.sqrt(self.dim)
        return self.dropout(self.encoding(columns.transpose(1, 2), positions))

    def position_values(self, units: Units) -> Tensor:
        """Which word of the text each subword belongs to (1, N); the end mark stands after the last."""
        return torch.tensor(self.vocabulary.word_ids(units.values.tolist())).float()[None]


def load_vectors(path: str | Path, vocabulary: Vocabulary) -> Tensor:
    """Read word vectors in the text format of word2vec or GloVe: one word a line, then its E numbers.

    Returns (V, E), unit root mean square times E**-0.5; entries of the vocabulary that the file lacks are drawn from
    a normal distribution of the same spread. Raises InputError naming the line where the file breaks.
    """
    entries = defaultdict[str, list[int]](list)  # a subword that begins a word reads as the same one within a word
    for i, token in enumerate(vocabulary.tokens(range(len(vocabulary)))):
        entries[token].append(i)
    found: dict[str, Tensor] = {}
    width = 0
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                word, *numbers = line.decode("utf-8").rstrip().split(" ")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}, line {number}: not UTF-8; is it word2vec's binary format?") from error
            if number == 1 and len(numbers) == 1:  # word2vec's header: how many words, how many numbers
                continue
            width = width or len(numbers)
            if len(numbers) > width > 0 and not _is_number(numbers[-width - 1]):  # some of GloVe's words have spaces
                continue
            if not numbers or len(numbers) != width:
                raise InputError(f"{path}, line {number}: {len(numbers)} numbers where {width or 'some'} are expected")
            if word in entries:
                try:
                    found[word] = torch.tensor([float(n) for n in numbers])
                except ValueError as error:
                    raise InputError(f"{path}, line {number}: {error}") from error
    if not found:
        raise InputError(f"{path}: none of its words is in the vocabulary; is it a file of word vectors?")
    table = torch.randn(len(vocabulary), width, generator=torch.Generator().manual_seed(0))
    spread = torch.stack(list(found.values())).square().mean().sqrt()
    for word, vector in found.items():
        table[entries[word]] = vector / spread
    return table * width**-0.5


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
