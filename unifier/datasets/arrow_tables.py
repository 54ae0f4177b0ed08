"""Data sets in Parquet files, or in folders that Hugging Face's `datasets` has saved."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from unifier.data.arrow_files import (
    Row,
    class_names,
    find_column,
    find_split_files,
    locate_row,
    read_cell,
    read_column,
    read_number,
    rows_of,
)
from unifier.data.dataset import Examples
from unifier.data.inputs import AudioReader, ImageReader, InputReader, TextReader
from unifier.data.readers import hash_files, parse_label
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, accuracy_range
from unifier.data.splits import check_trained_labels, hold_out, hold_out_rows, select_part
from unifier.datasets.class_folders import task_name
from unifier.datasets.plain_text import Document, PlainText
from unifier.datasets.voice_prompts import spoken_text
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

RowKind = Literal["image", "audio", "text", "words", "pair", "summary", "speech"]
"""The inputs of a table: pictures, sounds, texts, or words with a label each, or texts with their translation.

With "summary", each text has a summary. With "speech", each sound has a text in lower case (see `spoken_text`).
"""

LABEL_COLUMNS = ("label", "labels")

INPUT_COLUMNS: Mapping[RowKind, tuple[str, ...]] = {
    "image": ("image", "img"),
    "audio": ("audio",),
    "text": ("text", "sentence"),
    "words": ("tokens", "words"),
    "pair": ("translation",),
    "summary": ("text", "document", "article"),
    "speech": ("audio",),
}

TARGET_COLUMNS: Mapping[RowKind, tuple[str, ...]] = {
    "words": ("ner_tags", "pos_tags", "tags", "labels"),
    "pair": ("translation",),
    "summary": ("summary", "highlights"),
    "speech": ("text", "sentence", "transcription"),
}
"""Columns of targets. The other kinds have the columns `LABEL_COLUMNS`."""

TARGET_NAMES: Mapping[RowKind, str] = {"pair": "pairs of texts", "summary": "summaries", "speech": "spoken texts"}
"""Names of the targets for messages. The other kinds have labels."""

TEXT_SCORES: Mapping[RowKind, tuple[str, float]] = {
    "pair": ("bleu", 0.0),
    "summary": ("rouge1", 0.0),
    "speech": ("error_rate", 100.0),
}
"""The metric of texts, and the score of an empty answer."""


class LabeledRow(NamedTuple):
    """A row and its target. The targets of pairs and summaries are read later, together with the inputs."""

    row: Row
    target: Any


@final
class ArrowTable:
    """A data set with one example per row.

    Pictures and sounds are the bytes of files in any format that folders of pictures and sounds may have. A tenth of
    the train rows is held out for each missing split, val or test. The held-out rows are chosen with a fixed seed.

    Args:
        data: "datasets:" and a folder that `save_to_disk` has written, or "parquet:" and a file or a folder of files.
        kind: The kind of inputs.
        column: The column with the inputs. By default, the first column in `INPUT_COLUMNS` that exists.
        target: The column with the targets. By default, the first usual column that exists.
        numbers: The columns of numbers, if the targets are numbers. The target is a tuple with one number per column.
        size: The maximum length of a picture's longer side in pixels.
        languages: The languages of a pair.
    """

    def __init__(
        self,
        data: str,
        kind: RowKind,
        *,
        column: str | None = None,
        target: str | None = None,
        numbers: Sequence[str] = (),
        size: int | None = None,
        languages: tuple[str, str] = ("", ""),
    ) -> None:
        self.kind: RowKind = kind
        self.name = task_name(Path(data.partition(":")[2]))
        readers = {"image": ImageReader(3, size), "audio": AudioReader(), "speech": AudioReader()}
        self.reader: InputReader = readers.get(kind, TextReader())
        self._data, self._given, self._languages = data, (column, target), languages
        self._numbers = check_number_columns(numbers, column) if numbers else ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes in the order of the file, or in alphabetical order if the file has no names of classes.

        The labels of speech are its characters, and the labels of numbers are the names of the columns.
        """
        return self._labels

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        if self._numbers:
            return self._numbers
        if (names := class_names(self._first, self._columns[1])) is not None:
            return names
        rows = (row for rows in self._rows.values() for row in rows)
        return tuple(sorted({label for row in rows for label in ([row.target] if self._has_classes else row.target)}))

    @property
    def score_range(self) -> ScoreRange:
        """The score range, which contains a chance score but no reference score."""
        if self._numbers:
            return ScoreRange("r2", 0.0, None, NO_SCORE_RANGE)
        if self.kind in TEXT_SCORES:
            return ScoreRange(*TEXT_SCORES[self.kind], None, NO_SCORE_RANGE)
        if self.kind == "words" and all(label == "O" or label.startswith(("B-", "I-")) for label in self.labels):
            return ScoreRange("f1", 0.0, None, NO_SCORE_RANGE)
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[LabeledRow]:
        """Return the rows of one split in the order of the files.

        Raises:
            InputError: A file or a column is missing or damaged, or a label has no name.
        """
        rows = self._rows[check_choice("split", name, SPLITS)]
        read = partial(_read_example, self.kind, self._columns, self._languages, self.reader)
        return Examples(rows, read, _locate, None if self.kind in ("pair", "summary") else _target_of, _row_of)

    @property
    def _has_classes(self) -> bool:
        """True if each row has one class."""
        return self.kind in ("image", "audio", "text") and not self._numbers

    @cached_property
    def sha256(self) -> str:
        """The hash of the files."""
        return hash_files({f"{part} {path.name}": path for part, paths in self._files.items() for path in paths})

    @cached_property
    def _files(self) -> dict[SplitName, list[Path]]:
        return find_split_files(self._data)

    @property
    def _first(self) -> Path:
        return self._files["train"][0]

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        """The column of the inputs, and the columns of the targets."""
        inputs, targets = self._given
        what = {"image": "pictures", "words": "lists of words", "pair": "pairs of texts"}
        what |= dict.fromkeys(("audio", "speech"), "sounds")
        column = find_column(
            self._first, [inputs] if inputs else INPUT_COLUMNS[self.kind], what.get(self.kind, "texts")
        )
        if self._numbers:
            return column, *(find_column(self._first, [name], "numbers") for name in self._numbers)
        usual = TARGET_COLUMNS.get(self.kind, LABEL_COLUMNS)
        return column, find_column(self._first, [targets] if targets else usual, TARGET_NAMES.get(self.kind, "labels"))

    @cached_property
    def _rows(self) -> dict[SplitName, list[LabeledRow]]:
        rows: dict[SplitName, list[LabeledRow]] = {part: self._read(paths) for part, paths in self._files.items()}
        if empty := [part for part in rows if not rows[part]]:
            raise InputError(f"data={self._data}: {' and '.join(empty)} has no rows")
        train = rows["train"]
        missing: list[SplitName] = [part for part in SPLITS if part not in rows]
        if self._has_classes:
            given: list[SplitName] = [part for part, found in rows.items() for _ in found]
            check_trained_labels(f"data={self._data}", [row.target for found in rows.values() for row in found], given)
        if not missing:
            return rows
        if not self._has_classes:
            drawn = hold_out_rows(self.name, len(train), missing)
            rows.update((part, [train[k] for k in chosen.tolist()]) for part, chosen in drawn.items())
            return rows
        parts = hold_out(self.name, [row.target for row in train], missing)
        held_out: list[SplitName] = ["train", *missing]
        rows.update((part, select_part(train, parts, part)) for part in held_out)
        return rows

    def _read(self, paths: Sequence[Path]) -> list[LabeledRow]:
        rows = rows_of(paths)
        if self.kind in ("pair", "summary"):
            return [LabeledRow(row, None) for row in rows]
        if self._numbers:
            columns = [[cell for path in paths for cell in read_column(path, name)] for name in self._columns[1:]]
            return [
                LabeledRow(
                    row, tuple(read_number(cell, row, name) for name, cell in zip(self._numbers, cells, strict=True))
                )
                for row, *cells in zip(rows, *columns, strict=True)
            ]
        names = class_names(self._first, self._columns[1])
        cells = [cell for path in paths for cell in read_column(path, self._columns[1])]
        if self.kind == "speech":
            return [LabeledRow(row, _spoken(cell, row)) for row, cell in zip(rows, cells, strict=True)]
        if self.kind == "words":
            return [
                LabeledRow(row, tuple(_label(part, names, row) for part in _list(cell, row)))
                for row, cell in zip(rows, cells, strict=True)
            ]
        return [LabeledRow(row, _label(cell, names, row)) for row, cell in zip(rows, cells, strict=True)]


def check_number_columns(columns: Sequence[str], text: str | None) -> tuple[str, ...]:
    """Return the columns of numbers. Raises InputError if no column is given, or if a column is given twice."""
    if not columns or len({*columns, text}) <= len(columns):
        raise InputError(f"columns={', '.join(columns)}, text={text}: give different columns, at least one number")
    return tuple(columns)


@final
class ArrowTexts(PlainText):
    """Plain texts in a column of Parquet files or of a saved data set, cut into pieces.

    Args:
        data: See `ArrowTable`.
        words: The number of words of a piece.
    """

    def __init__(self, data: str, *, words: int) -> None:
        super().__init__(words)
        self.name = task_name(Path(data.partition(":")[2]))
        self._data = data

    def _find_file(self) -> Path:
        return find_split_files(self._data)["train"][0]

    @cached_property
    def sha256(self) -> str:
        """The hash of the files."""
        return hash_files(
            {f"{part} {path}": path for part, paths in find_split_files(self._data).items() for path in paths}
        )

    def _documents(self) -> Iterator[Document]:
        files = find_split_files(self._data)
        rows: dict[SplitName, list[Row]] = {part: rows_of(paths) for part, paths in files.items()}
        missing: list[SplitName] = [part for part in SPLITS if part not in rows]
        if missing:
            drawn, train = hold_out_rows(self.name, len(rows["train"]), missing), rows["train"]
            rows |= {part: [train[k] for k in chosen.tolist()] for part, chosen in drawn.items()}
        column = find_column(files["train"][0], INPUT_COLUMNS["text"], "texts")
        for part, found in rows.items():
            for row in found:
                yield Document(part, f"row {row.row + 1}, ", _text(read_cell(row, column), row).split())


def _read_example(
    kind: RowKind, columns: tuple[str, ...], languages: tuple[str, str], reader: InputReader, labeled: LabeledRow
) -> Example:
    row, target = labeled
    column = columns[0]
    cell = read_cell(row, column)
    if isinstance(reader, ImageReader | AudioReader):
        content = cell.get("bytes") if isinstance(cell, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not isinstance(content, bytes):
            raise InputError(f"{locate_row(row)}: the column {column} has no bytes of a file; store the files' content")
        place = Path(locate_row(row))
        return Example(reader(place, {place: content}), target)
    if kind == "pair":
        if not isinstance(cell, dict) or not set(languages) <= cell.keys():
            given = ", ".join(map(str, cell)) if isinstance(cell, dict) else "no languages"  # pyright: ignore[reportUnknownArgumentType]
            raise InputError(f"{locate_row(row)}: source={languages[0]} target={languages[1]}, but it has {given}")
        return Example(*(_text(cell[language], row) for language in languages))
    if kind == "words":
        words = tuple(_text(word, row) for word in _list(cell, row))
        if len(words) != len(target):
            raise InputError(f"{locate_row(row)}: {len(words)} words, but {len(target)} labels")
        return Example(words, target)
    if kind == "summary":
        return Example(_text(cell, row), _text(read_cell(row, columns[1]), row))
    return Example(_text(cell, row), target)


def _spoken(cell: Any, row: Row) -> str:
    if not (text := spoken_text(_text(cell, row))):
        raise InputError(f"{locate_row(row)}: no letter in the text {str(cell)[:30]!r}; correct or remove the row")
    return text


def _text(cell: Any, row: Row) -> str:
    if not isinstance(cell, str) or not cell.strip():
        raise InputError(f"{locate_row(row)}: a text is expected, not {str(cell)[:30]!r}")
    return cell


def _list(cell: Any, row: Row) -> Sequence[Any]:
    if not isinstance(cell, list) or not cell:
        raise InputError(f"{locate_row(row)}: a list of words, and a list of their labels, are expected")
    return cell  # pyright: ignore[reportUnknownVariableType]


def _label(cell: Any, names: Sequence[str] | None, row: Row) -> str:
    """Return the label of a cell: a text, or the number of a class."""
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        raise InputError(f"{locate_row(row)}: a label is expected, not {str(cell)[:30]!r}")
    if isinstance(cell, int) and names is not None:
        if not 0 <= cell < len(names):
            raise InputError(
                f"{locate_row(row)}: the label {cell} is not one of the {len(names)} classes; leave out the row"
            )
        cell = names[cell]
    return parse_label(str(cell), locate_row(row))


def _locate(labeled: LabeledRow) -> str:
    return locate_row(labeled.row)


def _target_of(labeled: LabeledRow) -> Any:
    return labeled.target


def _row_of(labeled: LabeledRow) -> Row:
    return labeled.row
