"""Data sets with one label per word: your own files in the format of CoNLL, NCBI disease and WNUT17."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, final

from unifier.data.dataset import Examples
from unifier.data.download import RemoteFile, ensure_files
from unifier.data.readers import hash_files, parse_label
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, accuracy_range
from unifier.data.splits import count_copies, hold_out_rows
from unifier.data.text_files import open_lines
from unifier.datasets.class_folders import task_name
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

DOCUMENT_START = "-DOCSTART-"
"""The word that begins a document in the files of CoNLL 2003."""


class LabeledWords(NamedTuple):
    """The words of a sentence with their labels, and the file and line at which the sentence begins."""

    path: Path
    line: int
    """Line number in the file, counted from 1."""
    words: tuple[str, ...]
    labels: tuple[str, ...]


@final
class WordTable:
    """Your own sentences with one label per word, in the format of CoNLL: one word per line, then its label.

    A tab or spaces separate the columns. The first column is the word, and the last column is its label. An empty line
    ends a sentence. The input is a tuple of words, and the target is a tuple of labels. A tenth of the `train`
    sentences is held out for each missing split, val or test.
    """

    def __init__(self, train: str | Path, val: str | Path | None = None, test: str | Path | None = None) -> None:
        """Store the paths of the files, which may be compressed (.gz, .bz2 or .xz). The files are read later."""
        self.name = task_name(Path(Path(train).name.partition(".")[0]))
        files: dict[SplitName, str | Path | None] = {"train": train, "val": val, "test": test}
        self._files: dict[SplitName, Path] = {part: Path(file) for part, file in files.items() if file is not None}

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all files in alphabetical order."""
        return labels_of(self._sentences["train"])

    @property
    def score_range(self) -> ScoreRange:
        """The score range, which contains a chance score but no reference score."""
        if all(label == "O" or label.startswith(("B-", "I-")) for label in self.labels):
            return ScoreRange("f1", 0.0, None, NO_SCORE_RANGE)
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[LabeledWords]:
        """Return the sentences of one split in the order of the file.

        Raises:
            InputError: A file cannot be read, a line has no label, or a label of val or test does not occur in train.
        """
        return to_examples(self._sentences[check_choice("split", name, SPLITS)])

    @cached_property
    def sha256(self) -> str:
        """The hash of the files."""
        return hash_files({str(part): file for part, file in self._files.items()})

    @property
    def copies(self) -> int:
        """The number of sentences of val and test that are also in train."""
        texts = [" ".join(row.words) for rows in self._sentences.values() for row in rows]
        parts: list[SplitName] = [part for part, rows in self._sentences.items() for _ in rows]
        return count_copies(texts, parts)

    @cached_property
    def _sentences(self) -> dict[SplitName, list[LabeledWords]]:
        found: dict[SplitName, list[LabeledWords]] = {part: read_sentences(path) for part, path in self._files.items()}
        missing: list[SplitName] = [part for part in SPLITS if part not in found]
        if missing:
            train = found["train"]
            rows = hold_out_rows(str(self._files["train"]), len(train), missing)
            found |= {part: [train[row] for row in chosen.tolist()] for part, chosen in rows.items()}
        check_labels_in_train(found)
        return found


class _NamedWords:
    """Base class of data sets with one file per split, in the format of CoNLL."""

    name: ClassVar[str]
    home: ClassVar[str]
    files: ClassVar[dict[str, RemoteFile]]
    labels: ClassVar[tuple[str, ...]]
    license = "CC BY 4.0"

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[LabeledWords]:
        """Return the sentences of one split in the order of the file."""
        files = dict(zip(SPLITS, self.files, strict=True))
        return to_examples(read_sentences(self._folder / files[check_choice("split", name, SPLITS)]))

    @cached_property
    def sha256(self) -> str:
        """The hash of the three files."""
        return hash_files({file: self._folder / file for file in self.files})

    @cached_property
    def _folder(self) -> Path:
        return ensure_files(self.name, self.home, self.files, self._data)


@final
class NCBIDisease(_NamedWords):
    """NCBI disease: names of diseases in 793 abstracts of PubMed, 5,424 sentences for train, 923 for val, 940 for test.

    The input is a tuple of words. The target has the label O, B-Disease or I-Disease for each word.

    Source: Dogan, Leaman and Lu, "NCBI disease corpus", 2014, as prepared by
    github.com/cambridgeltl/MTL-Bioinformatics-2016.
    """

    name = "ncbi_disease"
    labels = ("B-Disease", "I-Disease", "O")
    score_range = ScoreRange("f1", 0.0, 79.6, "BiLSTM with GloVe vectors: CREATUSEST-2020/bilstm-cnn-ner-ncbi")
    home = (
        "https://raw.githubusercontent.com/cambridgeltl/MTL-Bioinformatics-2016/"
        "df0df02fae6dbb87d88ffcf323b9096528f06f84/data/NCBI-disease-IOB/"
    )
    files = {
        "train.tsv": RemoteFile(1137445, "58379baf4614b8d757d93dd7a21b202849ca99f9b9d71b49185523ff5443300c"),
        "devel.tsv": RemoteFile(200352, "b4e1e7efcc2a35047bf2f3d281648357470e674f555d4a26a0049ac37d59cc61"),
        "test.tsv": RemoteFile(205664, "8f088ce45dc4746592188f9e69de3d89d87f3bb8f0ed8c4a287d018123fa148d"),
    }


@final
class WNUT17(_NamedWords):
    """WNUT17: new and rare entities in messages of users, 3,394 sentences for train, 1,009 for val and 1,287 for test.

    The input is a tuple of words. The target has a label for each word, for six types of entities. Few entities of val
    and test occur in train, so scores are low.

    Source: Derczynski et al., "Results of the WNUT2017 Shared Task on Novel and Emerging Entity Recognition", 2017.
    """

    name = "wnut17"
    labels = (
        *(f"{p}-{t}" for p in "BI" for t in ("corporation", "creative-work", "group", "location", "person", "product")),
        "O",
    )
    score_range = ScoreRange("f1", 0.0, 41.9, "best system of the shared task (UH-RiTUAL), with vectors of Twitter")
    home = "https://raw.githubusercontent.com/leondz/emerging_entities_17/e52a2d2a71ac1a051ca2d532eef28653c5c02603/"
    files = {
        "wnut17train.conll": RemoteFile(493781, "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5"),
        "emerging.dev.conll": RemoteFile(114749, "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8"),
        "emerging.test.annotated": RemoteFile(
            192425, "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0"
        ),
    }


def labels_of(sentences: Sequence[LabeledWords]) -> tuple[str, ...]:
    """Return all labels of some sentences in alphabetical order."""
    return tuple(sorted({label for sentence in sentences for label in sentence.labels}))


def check_labels_in_train(sentences: dict[SplitName, list[LabeledWords]]) -> None:
    """Raise InputError if a label of val or test does not occur in train."""
    known = set(labels_of(sentences["train"]))
    for part in SPLITS[1:]:
        for sentence in sentences[part]:
            if unknown := next((label for label in sentence.labels if label not in known), None):
                raise InputError(
                    f"{sentence.path}: the sentence at line {sentence.line} has the label {unknown}, which no sentence "
                    "of train has: correct the label, or add sentences with this label to train"
                )


def read_sentences(path: Path) -> list[LabeledWords]:
    """Read a file in the format of CoNLL (see `WordTable`).

    Raises:
        InputError: The file cannot be read or has no sentences, or a line has no word or no label.
    """
    if not (sentences := [*_iterate_sentences(path)]):
        raise InputError(f"{path} has no sentences: one word and its label are expected per line")
    return sentences


def _iterate_sentences(path: Path) -> Iterator[LabeledWords]:
    words, labels = list[str](), list[str]()
    start = 1
    for number, line in enumerate(open_lines(path), start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error
        if not text.strip() or text.startswith(DOCUMENT_START):
            if words:
                yield LabeledWords(path, start, tuple(words), tuple(labels))
            words, labels, start = [], [], number + 1
            continue
        word, *cells = text.split("\t") if "\t" in text else text.split()
        if not cells or not word.strip():
            raise InputError(
                f"{path}, line {number}: a word, a tab and a label are expected, not {text.strip()[:80]!r}; an empty "
                "line ends a sentence"
            )
        words.append(word.strip())
        labels.append(parse_label(cells[-1], f"{path}, line {number}"))
    if words:
        yield LabeledWords(path, start, tuple(words), tuple(labels))


def to_examples(sentences: Sequence[LabeledWords]) -> Examples[LabeledWords]:
    """Return one example per sentence."""
    return Examples(sentences, _read_words, _line_of, target=_labels_of, origin=_words_of)


def _read_words(row: LabeledWords) -> Example:
    return Example(row.words, row.labels)


def _line_of(row: LabeledWords) -> str:
    return f"{row.path}, line {row.line}"


def _labels_of(row: LabeledWords) -> tuple[str, ...]:
    return row.labels


def _words_of(row: LabeledWords) -> tuple[str, ...]:
    return row.words
