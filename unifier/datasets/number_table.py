"""Numbers to predict from texts, pictures or sounds: a table of your own."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from unifier.data.audio_files import AUDIO_SUFFIXES
from unifier.data.dataset import Examples
from unifier.data.image_files import IMAGE_SUFFIXES
from unifier.data.inputs import AudioReader, ImageReader, InputReader, TextReader
from unifier.data.readers import hash_files, parse_number, read_labels_table
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName
from unifier.data.splits import hold_out_rows, select_part
from unifier.data.text_files import remove_compressed_suffix
from unifier.datasets.arrow_tables import check_number_columns
from unifier.datasets.class_folders import task_name
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

TableKind = Literal["text", "image", "audio"]

READERS: dict[TableKind, InputReader] = {"text": TextReader(), "image": ImageReader(), "audio": AudioReader()}


class NumberRow(NamedTuple):
    """A row of a table: its file and line, its input, and its numbers."""

    table: Path
    line: int
    input: str
    numbers: tuple[float, ...]
    split: str


@final
class NumberTable:
    """Your own table (.csv or .tsv) with a column of texts, or a column `file` with pictures or sounds, and numbers.

    The target is a tuple with one number per column in `columns`. File names are relative to the table. The optional
    column `split` contains train, val or test. Without this column, a tenth of the rows is held out for val, and a
    tenth for test, with a fixed seed.
    """

    def __init__(self, table: str | Path, columns: Sequence[str], *, text: str | None = None) -> None:
        """Store the path of the table. The table is read later.

        Args:
            table: The table.
            columns: The names of the columns with the numbers.
            text: The name of the column with the texts. None means that the column `file` has the inputs.
        """
        self._table, self.labels, self._column = Path(table), check_number_columns(columns, text), text or "file"
        self.name = task_name(Path(self._table.name.partition(".")[0]))
        self.score_range = ScoreRange("r2", 0.0, None, NO_SCORE_RANGE)

    @property
    def kind(self) -> TableKind:
        """The kind of the inputs: "text", "image" or "audio"."""
        if self._column != "file":
            return "text"
        suffix = Path(self._rows[0].input).suffix.lower()
        if suffix in IMAGE_SUFFIXES:
            return "image"
        if suffix in AUDIO_SUFFIXES:
            return "audio"
        raise InputError(f"{self._table}: {self._rows[0].input} is neither a picture nor a sound; set text=COLUMN")

    @property
    def reader(self) -> InputReader:
        """The reader of the inputs."""
        return READERS[self.kind]

    def split(self, name: SplitName) -> Examples[NumberRow]:
        """Return the rows of one split in the order of the table.

        Raises:
            InputError: The table cannot be read, a column is missing, or a cell is not a finite number.
        """
        rows = select_part(self._rows, self._parts, name)
        return Examples(rows, partial(_read, self.reader), _name_of, _numbers_of, _input_of)

    @cached_property
    def sha256(self) -> str:
        """The hash of the table and of all files."""
        files = {row.input: self._table.parent / row.input for row in self._rows} if self._column == "file" else {}
        return hash_files({self._table.name: self._table, **files})

    @cached_property
    def _parts(self) -> list[SplitName]:
        if self._rows[0].split:
            rows = self._rows
            return [check_choice(f"split ({_name_of(row)})", row.split, SPLITS) for row in rows]
        parts: list[SplitName] = ["train"] * len(self._rows)
        for part, rows in hold_out_rows(str(self._table), len(parts), SPLITS[1:]).items():
            for row in rows.tolist():
                parts[row] = part
        return parts

    @cached_property
    def _rows(self) -> list[NumberRow]:
        ending = remove_compressed_suffix(self._table.name).rpartition(".")[2]
        if ending not in ("csv", "tsv"):
            raise InputError(f"{self._table}: give a table with the suffix .csv or .tsv")
        rows: list[NumberRow] = []
        columns = (self._column, *self.labels)
        for line, cells in read_labels_table(self._table, columns, tab_separated=ending == "tsv"):
            place = f"{self._table}, line {line}"
            numbers = tuple(parse_number(cells[name], f"{place}, {name}") for name in self.labels)
            rows.append(NumberRow(self._table, line, cells[self._column], numbers, cells.get("split", "")))
        if not rows:
            raise InputError(f"{self._table} has a header but no rows: add one row per example")
        return rows


def _read(reader: InputReader, row: NumberRow) -> Example:
    raw: Any = row.input if isinstance(reader, TextReader) else reader(row.table.parent / row.input)
    return Example(raw, row.numbers)


def _name_of(row: NumberRow) -> str:
    return f"{row.table}, line {row.line}"


def _numbers_of(row: NumberRow) -> tuple[float, ...]:
    return row.numbers


def _input_of(row: NumberRow) -> str:
    return row.input
