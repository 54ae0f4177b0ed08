"""Texts to learn word vectors from, with judged pairs of words and analogies to test the vectors."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.dataset import Examples
from unifier.data.download import RemoteFile, ensure_files
from unifier.data.readers import hash_all, hash_files, parse_number, read_lines
from unifier.data.source import SPLITS, Example, ScoreRange, SplitName
from unifier.datasets.plain_text import PlainText
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

JUDGMENTS_HOME = "https://raw.githubusercontent.com/piskvorky/gensim/4.4.0/gensim/test/test_data/"

JUDGMENTS = {
    "simlex999.txt": RemoteFile(18126, "d5e0501971478a511430ee880bd0121e94ac701ba86d90544d83e6d2ba3db05d"),
    "wordsim353.tsv": RemoteFile(7186, "f92a022fc2537793a15bc3a8c162ebcd74990e033a228bb6388cb71e4c0b1e1d"),
    "questions-words.txt": RemoteFile(603955, "8c29b3332afc46f3fb8be04cb5297bf96f39aa7131272dff57869b4485b22a36"),
}

VAL_ANALOGY = 5
"""Every fifth analogy belongs to val, and all others belong to test."""


class Words(NamedTuple):
    """The words of an example, and its answer: a judged similarity, the last word of an analogy, or "" for a text."""

    place: str
    text: str
    answer: float | str


@final
class WordVectorTexts:
    """Pieces of plain texts for train, and words with answers for val and test.

    All splits of the plain texts belong to train, because the texts have no labels. An input of val and test is two
    words, with a judged similarity from 0 to 10 as the target. Or the input is three words of an analogy, such as "man
    king woman", with the last word as the target. Val has SimLex-999 and every fifth analogy. Test has WordSim-353 and
    the other analogies.

    Source: Mikolov et al. 2013 (19,544 analogies, Apache 2.0), Finkelstein et al. 2002 (WordSim-353) and Hill et al.
    2015 (SimLex-999), as in the test data of gensim 4.4.0.
    """

    name = "word_vectors"
    score_range = ScoreRange("similarity", 0.0, 46.1, "counts and an SVD, measured on 2.1 million words; WordSim-353")

    def __init__(self, texts: Sequence[PlainText], *, data: str | Path | None = None) -> None:
        """Store the texts, and the folder with the judgments (None means the default folder; see `data_folder`).

        Raises:
            InputError: There are no texts.
        """
        if not texts:
            raise InputError("word vectors need at least one text: give data=wiki_articles or the path of a text")
        self._texts, self._data = texts, data

    def split(self, name: SplitName) -> Examples[Words]:
        """Return the examples of one split.

        Raises:
            InputError: A file cannot be read, or has a wrong line.
        """
        check_choice("split", name, SPLITS)
        if name == "train":
            parts = [text.split(part) for text in self._texts for part in SPLITS]
            words = [Words(part.example_id(i), part[i].input, "") for part in parts for i in range(len(part))]
        else:
            pairs = _read_pairs(self._folder / ("simlex999.txt" if name == "val" else "wordsim353.tsv"))
            analogies = enumerate(_read_analogies(self._folder / "questions-words.txt"))
            words = [*chain(pairs, (words for i, words in analogies if (i % VAL_ANALOGY == 0) == (name == "val")))]
        return Examples(words, _read, _place_of, target=_answer_of)

    @cached_property
    def sha256(self) -> str:
        """The hash of the texts and of the judgments."""
        judgments = hash_files({file: self._folder / file for file in JUDGMENTS})
        texts = {f"text {number}": text.sha256 for number, text in enumerate(self._texts)}
        return hash_all({"judgments": judgments} | texts)

    @cached_property
    def _folder(self) -> Path:
        return ensure_files(self.name, JUDGMENTS_HOME, JUDGMENTS, self._data)


def _read_pairs(path: Path) -> Iterator[Words]:
    """Yield the pairs of a file with two words and a number per line, separated by tabs."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith("#"):
            continue
        place, cells = f"{path}, line {number}", line.split("\t")
        if len(cells) != 3:
            raise InputError(f"{place}: two words and a number are expected: {line!r}")
        yield Words(place, f"{cells[0]} {cells[1]}", parse_number(cells[2], place))


def _read_analogies(path: Path) -> Iterator[Words]:
    """Yield the analogies of a file with four words per line. A line with a colon begins a section."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.startswith(":"):
            *given, answer = line.lower().split()
            if len(given) != 3:
                raise InputError(f"{path}, line {number}: four words are expected: {line!r}")
            yield Words(f"{path}, line {number}", " ".join(given), answer)


def _read(words: Words) -> Example:
    return Example(words.text, words.answer)


def _place_of(words: Words) -> str:
    return words.place


def _answer_of(words: Words) -> float | str:
    return words.answer
