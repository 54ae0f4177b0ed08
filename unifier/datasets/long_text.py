"""Long texts for language models: your own file, the plays of tinyshakespeare, articles of Wikipedia, and pieces."""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.dataset import Examples, open_split
from unifier.data.download import RemoteFile, ensure_files, require_file
from unifier.data.readers import hash_files
from unifier.data.source import Example, ScoreRange, Source, SplitName, data_folder, describe_example, name_of
from unifier.data.text_files import open_decompressed
from unifier.datasets.class_folders import task_name
from unifier.datasets.plain_text import WIKI_FILE
from unifier_tokenizers import InputError, TextPiece, Vocabulary
from unifier_tokenizers.subwords import BOS

SHAKESPEARE_HOME = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/"
)

SHAKESPEARE_FILES = {
    "input.txt": RemoteFile(1115394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
}

WIKI_HELD_OUT = 5
"""Number of articles in val, and in test."""

VAL_START, TEST_START = 0.85, 0.9
"""Shares of a text at which val and test begin. The last tenth of tinyshakespeare is nanoGPT's validation set."""


class TextPart(NamedTuple):
    """Part of a text file, which is one example."""

    path: Path
    start: int
    """Offset of the first character in the file."""
    text: str


@final
class LongTextFile:
    """Your own text file, in order: 85 percent for train, 5 percent for val and 10 percent for test.

    Each split is one example, whose input is the text. The target is the text too, for the report.
    """

    def __init__(self, path: str | Path) -> None:
        """Store the path of a file with UTF-8 text, which may be compressed (.gz, .bz2 or .xz). It is read later."""
        self._path = Path(path)
        self.name = task_name(Path(self._path.name.partition(".")[0]))

    def split(self, name: SplitName) -> Examples[TextPart]:
        """Return the text of one split.

        Raises:
            InputError: The file cannot be read, is not UTF-8 text, or is too short to be split.
        """
        return _examples(_by_share(self._path, read_long_text(self._path))[name])

    @cached_property
    def sha256(self) -> str:
        """The hash of the file."""
        return hash_files({self._path.name: self._path})


@final
class TinyShakespeare:
    """Tinyshakespeare: 1.1 million characters of plays, in order: 85 percent for train, 5 for val and 10 for test.

    The test split is the last tenth of the text, which is the validation set of nanoGPT. Published losses of nanoGPT
    therefore compare with the scores on the test split.

    Source: github.com/karpathy/char-rnn. The reference is the loss of nanoGPT's model with 10.65 million parameters in
    its README. Chance is the entropy of the frequencies of single characters of train on the test split.
    """

    name = "tinyshakespeare"
    score_range = ScoreRange(
        "bits_per_character", 4.83, 2.1203, "nanoGPT with 10.65 million parameters, 1.4697 nats; chance: letter counts"
    )

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[TextPart]:
        """Return the text of one split. A missing file is downloaded first."""
        return _examples(_by_share(self._path, read_long_text(self._path))[name])

    @cached_property
    def sha256(self) -> str:
        """The hash of the file."""
        return hash_files({self._path.name: self._path})

    @cached_property
    def _path(self) -> Path:
        return ensure_files(self.name, SHAKESPEARE_HOME, SHAKESPEARE_FILES, self._data) / "input.txt"


@final
class LongWikiArticles:
    """Articles of Wikipedia: 94 for train, 5 for val and 5 for test, with 2.7 million characters.

    The articles of a split are joined to one text, in which no character is changed (compare `WikiArticles`). The line
    before each article is "= Title =". The file must be in the data folder, because no server offers the cleaned text.

    Source: the first articles of an English dump of 2014 in the test data of gensim 4.4.0, without tables and notes.
    The reference is 2.33 bits per character of xz -9 on the complete text.
    """

    name = "wiki_articles"

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[TextPart]:
        """Return the articles of one split as one text.

        Raises:
            InputError: The file is missing, or has too few articles.
        """
        text = read_long_text(self._path)
        starts = [0 if not k else k + 1 for k in _article_ends(text)]
        if len(starts) <= 2 * WIKI_HELD_OUT:
            raise InputError(f"{self._path} has {len(starts)} articles: more than {2 * WIKI_HELD_OUT} are needed")
        bounds = [0, starts[-2 * WIKI_HELD_OUT], starts[-WIKI_HELD_OUT], len(text)]
        return _examples(_parts(self._path, text, bounds)[name])

    @cached_property
    def sha256(self) -> str:
        """The hash of the file."""
        return hash_files({WIKI_FILE: self._path})

    @cached_property
    def _path(self) -> Path:
        folder = data_folder(self.name, self._data)
        require_file(
            self.name, folder, [WIKI_FILE], "put the file there, or give the folder that contains it as --data"
        )
        return folder / WIKI_FILE


@final
class TextPieces:
    """Source whose examples are pieces of the encoded texts of another source, for the objective `NextToken`.

    A piece of val and test contains `length` ids after the first id. The first id belongs to the previous piece, so the
    pieces together predict every id of a text exactly once. The target of a piece is its text.

    A piece of train is twice as long, and training reads a random window of the piece (see `RandomWindow`). With
    `stream`, pieces of train equal pieces of val, and positions run on through each text, for heads with a memory.
    """

    def __init__(self, source: Source, vocabulary: Vocabulary, length: int, *, stream: bool = False) -> None:
        """Store the source. Its texts are encoded later.

        Args:
            source: A source whose inputs are texts.
            vocabulary: The vocabulary of the tokenizer.
            length: The number of predicted ids of a piece.
            stream: Prepare the pieces for a memory.
        """
        if length < 2:
            raise InputError(f"length={length}: a piece needs at least 2 tokens")
        self._source, self._vocabulary, self.length, self._stream = source, vocabulary, length, stream
        self.name, self.sha256 = name_of(source), getattr(source, "sha256", "")

    def split(self, name: SplitName) -> Examples["_Piece"]:
        """Return the pieces of one split, in the order of the texts."""
        examples, size = open_split(self._source, name), 1 if self._stream or name != "train" else 2
        pieces: list[_Piece] = []
        for index in range(len(examples)):
            ids = [BOS, *self._vocabulary.encode_start(examples[index].input)]
            ends = self._ends(ids)
            place = describe_example(examples, index)
            for start, end in pairwise([0, *ends]):
                longer = min(end + (size - 1) * self.length, len(ids) - 1)
                pieces.append(
                    _Piece(place, start, tuple(ids[start : longer + 1]), self._text(ids[start + 1 : end + 1]))
                )
        read = _read_stream_piece if self._stream else _read_piece
        return Examples(pieces, read, _locate_piece, target=_text_of, origin=_ids_of)

    def _ends(self, ids: Sequence[int]) -> list[int]:
        """Return the index of the last id of each piece. No piece ends within a character."""
        ends, last = list[int](), len(ids) - 1
        while (start := ends[-1] if ends else 0) < last:
            end = min(start + self.length, last)
            while end < last and end > start + 1 and self._text(ids[start + 1 : end + 1]).endswith("\ufffd"):
                end -= 1
            ends.append(end)
        return ends

    def _text(self, ids: Sequence[int]) -> str:
        return self._vocabulary.codec.decode([*ids], skip_special_tokens=False)


class _Piece(NamedTuple):
    place: str
    start: int
    ids: tuple[int, ...]
    text: str


def read_long_text(path: Path) -> str:
    """Return the text of a UTF-8 file, which may be compressed.

    Raises:
        InputError: The file cannot be read, is empty, or is not UTF-8 text.
    """
    with open_decompressed(path) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start:,}): save it as UTF-8"
        ) from error
    if not text.strip():
        raise InputError(f"{path} contains no text: give a file with a text")
    return text


def _by_share(path: Path, text: str) -> dict[SplitName, list[TextPart]]:
    bounds = [0, int(VAL_START * len(text)), int(TEST_START * len(text)), len(text)]
    parts = _parts(path, text, bounds)
    if not all(part.text.strip() for part in (*parts["val"], *parts["test"])):
        raise InputError(f"{path} has only {len(text):,} characters: the parts for val and test would be empty")
    return parts


def _parts(path: Path, text: str, bounds: Sequence[int]) -> dict[SplitName, list[TextPart]]:
    names: tuple[SplitName, ...] = ("train", "val", "test")
    pairs = zip(names, pairwise(bounds), strict=True)
    return {name: [TextPart(path, start, text[start:end])] for name, (start, end) in pairs}


def _article_ends(text: str) -> list[int]:
    """Return the index of the line end before each article, and 0 for the first article."""
    ends, index = [0], 0
    while (index := text.find("\n= ", index + 1)) >= 0:
        ends.append(index)
    return ends


def _examples(parts: Sequence[TextPart]) -> Examples[TextPart]:
    return Examples(parts, _read_part, _locate_part, target=_text_of, origin=_text_of)


def _read_part(part: TextPart) -> Example:
    return Example(part.text, part.text)


def _locate_part(part: TextPart) -> str:
    return f"{part.path}, from character {part.start + 1:,}"


def _read_piece(piece: _Piece) -> Example:
    return Example(TextPiece(piece.ids), piece.text)


def _read_stream_piece(piece: _Piece) -> Example:
    return Example(TextPiece(piece.ids, piece.start), piece.text)


def _locate_piece(piece: _Piece) -> str:
    return f"{piece.place}, from token {piece.start + 1:,}"


def _text_of(part: TextPart | _Piece) -> str:
    return part.text


def _ids_of(piece: _Piece) -> tuple[int, ...]:
    return piece.ids
