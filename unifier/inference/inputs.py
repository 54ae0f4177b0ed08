"""Inputs of a command: files, folders, tables, lines of text, and standard input."""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from unifier.data.audio_files import AUDIO_SUFFIXES
from unifier.data.image_files import IMAGE_SUFFIXES
from unifier.data.inputs import (
    AudioReader,
    ImageReader,
    InputReader,
    ItemReader,
    MidiReader,
    MixtureReader,
    RawReader,
    SeriesReader,
    TextReader,
    VideoReader,
)
from unifier.data.midi_files import MIDI_SUFFIXES
from unifier.data.readers import iterate_table
from unifier.data.text_files import open_lines, remove_compressed_suffix
from unifier.data.video_files import VIDEO_SUFFIXES
from unifier.datasets.class_folders import visible_files
from unifier.datasets.series_windows import read_series
from unifier.files import print_status
from unifier.inference.stream import Pause
from unifier.inference.translate import open_input, read_as_it_arrives
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

STANDARD_INPUT = "-"

TABLE_SUFFIXES = {".csv": False, ".tsv": True}
"""Mapping from the suffix of a table to True if tabs separate the cells."""

_KINDS: Mapping[type[InputReader], tuple[str, Collection[str] | None]] = {
    ImageReader: ("pictures", IMAGE_SUFFIXES),
    VideoReader: ("clips", VIDEO_SUFFIXES),
    AudioReader: ("sounds", AUDIO_SUFFIXES),
    MidiReader: ("MIDI files", MIDI_SUFFIXES),
    TextReader: ("lines of text", {".txt"}),
    ItemReader: ("lines of item numbers", {".txt"}),
    MixtureReader: ("rows", None),
    SeriesReader: ("time series", {".csv"}),
}
"""Mapping from a reader to its inputs in words, and the suffixes of its files in a folder. None means all files."""


LINE_COLUMNS: Mapping[type[InputReader], str] = {TextReader: "text", ItemReader: "items"}
"""Mapping from a reader whose inputs are lines of a file to the column of its inputs in a table."""


@final
class Input(NamedTuple):
    """One input of a model, with its name for the output and its place for messages."""

    name: str
    """The path of a file, or a text."""
    place: str
    """The path of a file, or a file and line."""
    value: Any
    """The input for an `InputReader`, or the `InputError` of an input that cannot be read."""
    cells: Mapping[str, Any] = {}
    """The cells of the input's row in a table, keyed by column."""


def read_inputs(paths: Sequence[str], reader: InputReader, columns: Sequence[str] = ()) -> Iterator[Input | Pause]:
    """Yield the inputs in files, folders, tables and standard input, one after the other.

    A model for texts or items reads each line of a file. Every other model reads one input per file. Standard input
    contains texts, items, paths of files, or objects of JSON for a mixture, one per line. For a model that fills gaps,
    such as "a <mask> film", or that speaks, a text may be given directly.

    Args:
        paths: The files and folders, and "-" for standard input.
        reader: The preparation of the inputs.
        columns: Names of required columns of a table, in addition to the columns of the inputs.

    Raises:
        InputError: A path does not exist, a folder or a file has no inputs, or a table is broken.
    """
    for path in paths:
        if path != STANDARD_INPUT and not _is_text(path, reader) and not os.path.exists(path):  # noqa: PTH110  Path.exists fails for long names.
            raise InputError(f"{path}: no such file or folder; give files, folders, tables, or - for standard input")
    if isinstance(reader, RawReader):
        raise InputError("this model reads objects of Python: use unifier.load(...).predict in Python")
    if isinstance(reader, MixtureReader):
        for path in paths:
            if not (path == STANDARD_INPUT or is_table(path) or _is_json_lines(path)):
                raise InputError(
                    f"{path}: give a table (.csv or .tsv) or JSON Lines (.jsonl) with {', '.join(reader.members)}"
                )
    return _read_inputs(paths, reader, columns)


def _read_inputs(paths: Sequence[str], reader: InputReader, columns: Sequence[str]) -> Iterator[Input | Pause]:
    for path in paths:
        if path == STANDARD_INPUT:
            yield from _read_standard_input(reader)
            continue
        if _is_text(path, reader):
            yield Input(path, path, path)
            continue
        if is_table(path) and not isinstance(reader, SeriesReader):
            inputs = _read_table(Path(path), reader, columns)
        elif isinstance(reader, MixtureReader):
            inputs = _read_json_lines(Path(path), reader)
        elif os.path.isdir(path):  # noqa: PTH112  Path.is_dir fails for long names.
            inputs = _read_folder(Path(path), reader)
        else:
            inputs = _read_file(Path(path), reader)
        if (first := next(inputs, None)) is None:
            raise InputError(f"{path} has no inputs: add {describe_inputs(reader)}")
        yield first
        yield from inputs


def _read_series(path: Path, reader: SeriesReader) -> Iterator[Input]:
    """Yield the last time steps of a table: all channels as one input, or one input per channel."""
    try:
        _, values = read_series(path, reader.channels)
        if (rows := values.shape[1]) < reader.context:
            raise InputError(f"{path} has {rows} rows, but the model reads the last {reader.context} rows")
    except InputError as error:
        yield Input(str(path), str(path), error)
        return
    past = values[:, -reader.context :]
    if reader.joint:
        yield Input(str(path), str(path), past)
        return
    for name, channel in zip(reader.channels, past, strict=True):
        yield Input(f"{path}, {name}", str(path), channel[None])


def _is_text(path: str, reader: InputReader) -> bool:
    """Return True if an argument is not a path but a text.

    A text has the name of an extra entry, such as "<mask>", or the model accepts all texts that have no suffix of a
    file.
    """
    if not isinstance(reader, TextReader) or os.path.exists(path):  # noqa: PTH110  Path.exists fails for long names.
        return False
    has_name = reader.marked and re.search("<.+>", path)
    return bool(has_name) or (reader.direct and re.search(r"\.\w+$", path) is None)


def is_table(path: str) -> bool:
    """Return True if a path has the suffix of a table, which may be followed by the suffix of a compressed file."""
    return _suffix(path) in TABLE_SUFFIXES and not os.path.isdir(path)  # noqa: PTH112  Path.is_dir fails for long names.


def _is_json_lines(path: str) -> bool:
    return _suffix(path) == ".jsonl" and not os.path.isdir(path)  # noqa: PTH112  Path.is_dir fails for long names.


def describe_inputs(reader: InputReader) -> str:
    """Return the inputs that a reader accepts, such as "lines of text", for messages."""
    return _KINDS.get(type(reader), ("files", None))[0]


def _suffix(path: str) -> str:
    return Path(remove_compressed_suffix(os.path.basename(path))).suffix  # noqa: PTH119  The path may be any text.


def _read_table(path: Path, reader: InputReader, columns: Sequence[str]) -> Iterator[Input]:
    """Yield the inputs in the rows of a table. Paths are relative to the table."""
    members = reader.members if isinstance(reader, MixtureReader) else None
    own = list(members) if members else [LINE_COLUMNS.get(type(reader), "file")]
    for row in iterate_table(path, (*own, *columns), tab_separated=TABLE_SUFFIXES[_suffix(str(path))]):
        place = f"{path}, line {row.line}"
        if members:
            parts = {name: _cell_value(path, member, row.cells[name]) for name, member in members.items()}
            yield Input(place, place, parts, row.cells)
        else:
            yield Input(row.cells[own[0]], place, _cell_value(path, reader, row.cells[own[0]]), row.cells)


def _read_json_lines(path: Path, reader: MixtureReader) -> Iterator[Input]:
    """Yield the inputs in a file with one object per line. The object has a text or a path for each member."""
    for number, line in enumerate(open_lines(path), start=1):
        if line.strip():
            yield _decode_row(line, f"{path}, line {number}", path, reader)


def _decode_row(line: bytes, place: str, path: Path, reader: MixtureReader) -> Input:
    """Return the input in a line of JSON Lines. Paths in the line are relative to the file with the line."""
    try:
        row = json.loads(line)
        value: Any = {name: _cell_value(path, each, row[name]) for name, each in reader.members.items()}
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        value = InputError(f"an object with the texts {', '.join(reader.members)} is expected ({reason})")
    return Input(place, place, value)


def _cell_value(table: Path, reader: InputReader, cell: str) -> str | Path:
    return cell if type(reader) in LINE_COLUMNS else table.parent / cell


def _read_folder(folder: Path, reader: InputReader) -> Iterator[Input]:
    """Yield the inputs in the files of a folder and its subfolders. Files of other formats are left out."""
    _, expected = _KINDS.get(type(reader), ("files", None))
    left_out = Counter[str]()
    for path in visible_files(folder, None):
        suffix = _suffix(path.name) if isinstance(reader, TextReader) else path.suffix.lower()
        if expected is None or suffix in expected:
            yield from _read_file(path, reader)
        else:
            left_out[path.suffix.lower() or path.name] += 1
    if left_out:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in left_out.most_common(5))
        reason = f"left out files that are not {describe_inputs(reader)} ({counts})"
        print_status(f"warning: {folder}: {reason}", sys.stderr)


def _read_file(path: Path, reader: InputReader) -> Iterator[Input]:
    if isinstance(reader, SeriesReader):
        yield from _read_series(path, reader)
        return
    if type(reader) not in LINE_COLUMNS:
        yield Input(str(path), str(path), path)
        return
    try:
        lines = open_lines(path)
    except InputError as error:
        yield Input(str(path), str(path), error)
        return
    for number, line in enumerate(lines, start=1):
        yield _decode_line(line, f"{path}, line {number}")


def _read_standard_input(reader: InputReader) -> Iterator[Input | Pause]:
    """Yield the inputs in the lines of standard input, with a pause if no line is ready.

    Raises InputError if there is no input.
    """
    is_empty = True
    with open_input(None) as file:
        for group in read_as_it_arrives(file, "standard input"):
            for number, line in group:
                place = f"standard input, line {number}"
                for each in _read_line(line, place, reader):
                    yield each._replace(place=place)
                    is_empty = False
            yield Pause()
    if is_empty:
        kinds: Mapping[type[InputReader], str] = {**LINE_COLUMNS, MixtureReader: "object of JSON"}
        raise InputError(f"standard input has no inputs: add one {kinds.get(type(reader), 'path')} per line")


def _read_line(line: bytes, place: str, reader: InputReader) -> Iterator[Input]:
    """Yield the inputs in a line of standard input: a text, an object of JSON, or the path of a file."""
    if type(reader) in LINE_COLUMNS:
        yield _decode_line(line, place)
    elif line and isinstance(reader, MixtureReader):
        yield _decode_row(line, place, Path(STANDARD_INPUT), reader)
    elif line:
        yield from _read_file(Path(os.fsdecode(line)), reader)


def _decode_line(line: bytes, place: str) -> Input:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Input(line.decode(errors="replace"), place, InputError(f"not UTF-8 text ({error.reason})"))
    return Input(text, place, text)
