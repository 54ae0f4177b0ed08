"""Plain texts to learn from, cut into pieces of a number of words: film reviews, Wikipedia, and your own text file."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.dataset import Examples
from unifier.data.download import RemoteFile, ensure_files, require_file
from unifier.data.readers import hash_files, read_archive, read_lines
from unifier.data.source import SPLITS, Example, SplitName, data_folder
from unifier.datasets.class_folders import task_name
from unifier.datasets.multi30k import MULTI30K_FILES, MULTI30K_HOME, MULTI30K_LANGUAGES
from unifier.datasets.question_answering import read_questions, squad_file
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

REVIEWS_HOME = (
    "https://raw.githubusercontent.com/nltk/nltk_data/5db857e6f7df11eabb5e5665836db9ec8df07e28/packages/corpora/"
)

REVIEWS_FILES = {
    "movie_reviews.zip": RemoteFile(4004848, "a41211ae685019137410268134db6a1a14428c89b671eb83056151a878539008")
}

REVIEW = re.compile(r"cv(\d{3})_\d+\.txt")
"""The name of a review's file, with its number from 0 to 999."""

VAL_START, TEST_START = 900, 950
"""Number of the first review of val, and of the first review of test."""

WIKI_FILE = "wiki_articles.txt.gz"

TITLE = re.compile(r"= (.+) =")
"""The line before an article."""

MULTI30K_STEMS: Mapping[SplitName, str] = {"train": "train", "val": "val", "test": "test_2016_flickr"}
"""The names of Multi30k's files, without the language."""

NUM_HELD_OUT = 5
"""Number of articles of val, and of articles of test, at the end of the file."""


class Document(NamedTuple):
    """A text that belongs to one split."""

    part: SplitName
    name: str
    """The name of the document in messages."""
    words: Sequence[str]


class Piece(NamedTuple):
    """Consecutive words of a document."""

    place: str
    """The document and the number of the first word, for messages."""
    text: str


class PlainText(ABC):
    """Base class of sources of plain texts. Input and target of an example are the same piece of a document.

    A piece has a fixed number of words, which are separated by single spaces. The last piece of a document may be
    shorter. No piece crosses the end of a document.
    """

    name: str

    def __init__(self, words: int) -> None:
        if words < 1:
            raise InputError(f"words={words}: a piece needs at least one word")
        self._words = words

    @abstractmethod
    def _find_file(self) -> Path:
        """Return the file that contains the texts. Raises InputError if the file is missing."""

    @abstractmethod
    def _documents(self) -> Iterator[Document]:
        """Yield the documents in a fixed order."""

    def _files(self) -> Sequence[Path]:
        """Return the files with texts, which are the file itself, or files in a folder."""
        return [self._file]

    def split(self, name: SplitName) -> Examples[Piece]:
        """Return the pieces of one split, in the order of the documents.

        Raises:
            InputError: The file cannot be read, or a split would be empty.
        """
        return Examples(self._pieces[check_choice("split", name, SPLITS)], _read_piece, _place_of, target=_text_of)

    @cached_property
    def _file(self) -> Path:
        return self._find_file()

    @cached_property
    def sha256(self) -> str:
        """The hash of the files."""
        return hash_files({file.name: file for file in self._files()})

    @cached_property
    def _pieces(self) -> dict[SplitName, list[Piece]]:
        pieces: dict[SplitName, list[Piece]] = {part: [] for part in SPLITS}
        for part, name, words in self._documents():
            for start in range(0, len(words), self._words):
                text = " ".join(words[start : start + self._words])
                pieces[part].append(Piece(f"{self._file}, {name}word {start + 1}", text))
        if empty := [part for part in SPLITS if not pieces[part]]:
            raise InputError(f"{self._file} has no text for {' and '.join(empty)}: give a longer text")
        return pieces


@final
class MovieReviews(PlainText):
    """2,000 film reviews with 1.5 million words, in lower case and tokenized.

    Of the 1,000 positive and the 1,000 negative reviews, the numbers 900 to 949 are val, and 950 to 999 are test.

    Source: Pang and Lee, "A Sentimental Education", 2004 (polarity dataset 2.0), as prepared by NLTK.
    """

    name = "movie_reviews"
    license = "CC BY 4.0"

    def __init__(self, *, words: int = 64, data: str | Path | None = None) -> None:
        """Store the number of words of a piece, and the folder of the data set (see `data_folder`)."""
        super().__init__(words)
        self._data = data

    def _find_file(self) -> Path:
        return ensure_files(self.name, REVIEWS_HOME, REVIEWS_FILES, self._data) / "movie_reviews.zip"

    def _documents(self) -> Iterator[Document]:
        for path, content in sorted(read_archive(self._file).items()):
            if match := REVIEW.fullmatch(path.name):
                number = int(match[1])
                part = "train" if number < VAL_START else "val" if number < TEST_START else "test"
                yield Document(part, f"{path.parent.name}/{path.name}, ", content.decode("latin-1").split())


@final
class WikiArticles(PlainText):
    """104 articles of the English Wikipedia with 430,000 words: Anarchism to Algorithm. The last ten are val and test.

    A line "= Title =" comes before each article, and each further line is a paragraph. The titles are left out.

    Source: the test data of gensim 4.4.0 (a dump of 2014), without templates, tables, references and short paragraphs.
    """

    name = "wiki_articles"
    license = "CC BY-SA 3.0"

    def __init__(self, *, words: int = 64, data: str | Path | None = None) -> None:
        """Store the number of words of a piece, and the folder of the data set (see `data_folder`)."""
        super().__init__(words)
        self._data = data

    def _find_file(self) -> Path:
        folder = data_folder(self.name, self._data)
        hint = 'put there a text of articles, one paragraph per line, with a line "= Title =" before each article'
        require_file(self.name, folder, (WIKI_FILE,), hint)
        return folder / WIKI_FILE

    def _documents(self) -> Iterator[Document]:
        articles: list[tuple[str, list[str]]] = []
        for line in read_lines(self._file):
            if match := TITLE.fullmatch(line):
                articles.append((match[1], []))
            elif articles:
                articles[-1][1].extend(line.split())
        for number, (title, words) in enumerate(articles, start=1 - len(articles)):
            part = "test" if number > -NUM_HELD_OUT else "val" if number > -2 * NUM_HELD_OUT else "train"
            yield Document(part, f"{title}, ", words)


@final
class SQuADContexts(PlainText):
    """The paragraphs of 48 articles of the English Wikipedia that questions were asked about (see `SQuADDev`).

    Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016.
    """

    name = "squad_dev"
    license = "CC BY-SA 4.0"

    def __init__(self, *, words: int = 64, data: str | Path | None = None) -> None:
        """Store the number of words of a piece, and the folder of the data set (see `data_folder`)."""
        super().__init__(words)
        self._data = data

    def _find_file(self) -> Path:
        return squad_file(self._data)

    def _documents(self) -> Iterator[Document]:
        contexts = dict.fromkeys((row.split, row.context) for row in read_questions(self._file))
        for number, (split, context) in enumerate(contexts, start=1):
            yield Document(check_choice("split", split, SPLITS), f"paragraph {number}, ", context.split())


@final
class Multi30kSentences(PlainText):
    """The sentences of Multi30k in several languages, one language after the other, without their translations.

    Each sentence is a document. Val and test are those of Multi30k.

    Source: see `Multi30k`.
    """

    name = "multi30k"

    def __init__(
        self, languages: Sequence[str] = MULTI30K_LANGUAGES, *, words: int = 64, data: str | Path | None = None
    ) -> None:
        """Choose the languages, the number of words of a piece, and the folder of the data set (see `data_folder`)."""
        super().__init__(words)
        self._languages = [check_choice("languages", language, MULTI30K_LANGUAGES) for language in languages]
        self._data = data

    def _find_file(self) -> Path:
        names = [f"{stem}.{language}.gz" for stem in MULTI30K_STEMS.values() for language in self._languages]
        return ensure_files(self.name, MULTI30K_HOME, {name: MULTI30K_FILES[name] for name in names}, self._data)

    def _files(self) -> Sequence[Path]:
        names = (f"{stem}.{language}.gz" for stem in MULTI30K_STEMS.values() for language in self._languages)
        return [self._file / name for name in names]

    def _documents(self) -> Iterator[Document]:
        for language, (part, stem) in product(self._languages, MULTI30K_STEMS.items()):
            name = f"{stem}.{language}.gz"
            for number, line in enumerate(read_lines(self._file / name), start=1):
                yield Document(part, f"{name}, line {number}, ", line.split())


@final
class TextFile(PlainText):
    """Your own text file in UTF-8, which may be compressed. The last tenth of its words are val and test."""

    def __init__(self, path: str | Path, *, words: int = 64) -> None:
        """Store the path, and the number of words of a piece. The whole file is read into memory later."""
        super().__init__(words)
        self._path = Path(path)
        self.name = task_name(Path(self._path.name.partition(".")[0]))

    def _find_file(self) -> Path:
        return self._path

    def _documents(self) -> Iterator[Document]:
        words = [word for line in read_lines(self._path) for word in line.split()]
        val, test = (len(words) * twentieths // 20 for twentieths in (18, 19))
        yield Document("train", "train, ", words[:val])
        yield Document("val", "val, ", words[val:test])
        yield Document("test", "test, ", words[test:])


def _read_piece(piece: Piece) -> Example:
    return Example(piece.text, piece.text)


def _place_of(piece: Piece) -> str:
    return piece.place


def _text_of(piece: Piece) -> str:
    return piece.text
