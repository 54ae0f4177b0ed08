"""Readers of tables, archives and hashes. A file that cannot be read raises an InputError with its name."""

import csv
import hashlib
import lzma
import math
import os
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from unifier.data.text_files import MAX_LINE_BYTES, open_lines
from unifier.files import open_regular
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

Archive = Mapping[Path, bytes]
"""Contents of the files in an archive.

Each key is the archive's path joined with a file's name in the archive.
"""


MAX_EXPANSION = 1 << 30
"""Largest number of bytes by which the contents of an archive may exceed the archive. The contents fill memory."""

_TAR_END_BLOCK = 1 << 20
"""Number of bytes after the last file of a tar archive that are read at a time."""


def read_archive(path: Path) -> dict[Path, bytes]:
    """Return the contents of all files in a .zip archive or a (compressed) tar archive.

    Each key is `path` joined with a file's name in the archive. Raises InputError if the archive cannot be read, or if
    its contents are larger than the archive by more than `MAX_EXPANSION` bytes.
    """
    contents: dict[Path, bytes] = {}
    with open_regular(path) as file:
        room = os.fstat(file.fileno()).st_size + MAX_EXPANSION
        try:
            for name, stream in _archive_members(file, is_zip=path.suffix.lower() == ".zip"):
                contents[path / name] = stream.read(room + 1)
                room -= len(contents[path / name])
                if room < 0:
                    raise InputError(f"its contents exceed the archive by over {MAX_EXPANSION / 1e9:.1f} GB: unpack it")
        except _ARCHIVE_ERRORS as error:
            raise InputError(f"{path} cannot be read as an archive: {one_line(error)}") from error
    return contents


def _archive_members(file: BinaryIO, *, is_zip: bool) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and an open stream of each file in an archive."""
    if is_zip:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, archive.open(info)
        return
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            if (stream := archive.extractfile(member) if member.isfile() else None) is not None:
                yield member.name, stream
        _check_tar_end(archive)


def _check_tar_end(archive: tarfile.TarFile) -> None:
    """Raise TarError if an archive does not end with zeros, or if its compressed bytes have changed.

    The module tarfile silently ends at a damaged or missing header. The checksum of a compressed archive is checked
    only if all bytes are read.
    """
    content = archive.fileobj
    assert content is not None
    content.seek(archive.offset)
    end = content.read(tarfile.BLOCKSIZE)
    is_complete = len(end) == tarfile.BLOCKSIZE
    for _ in range(MAX_EXPANSION // _TAR_END_BLOCK):
        if end.strip(b"\0") or not is_complete:
            raise tarfile.ReadError("the end of the archive is missing, or a part of the archive is damaged")
        if not (end := content.read(_TAR_END_BLOCK)):
            return
    raise tarfile.ReadError(f"the archive has over {MAX_EXPANSION / 1e9:.1f} GB of zeros after its last file")


_ARCHIVE_ERRORS = (
    *(OSError, ValueError, EOFError, RuntimeError, NotImplementedError, struct.error),
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error),
)
"""Errors that Python raises for damaged archives."""


def read_content(path: Path, archive: Archive | None = None) -> bytes:
    """Return the bytes of a file. If the archive contains `path`, the bytes come from the archive.

    Raises InputError if the file cannot be read, or is not a regular file.
    """
    if archive and path in archive:
        return archive[path]
    with open_regular(path) as file:
        try:
            return file.read()
        except (OSError, MemoryError) as error:
            raise InputError(f"{path} cannot be read: {one_line(error)}") from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file. The file is split into lines as in `LineIndex`.

    Raises InputError if a line is not valid UTF-8. The message contains the file and the line number.
    """
    return list(_decoded_lines(path))


def _decoded_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(open_lines(path), start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error


MAX_LABEL_CHARACTERS = 1000
"""Largest number of characters in a label. Labels occur in every table, figure and message of a run."""

OPTIONAL_COLUMNS = ("split", "fold", "group")
"""Columns that are stored, in addition to the required columns, from a table of over `MAX_STORED_COLUMNS` columns."""

MAX_STORED_COLUMNS = 100
"""Largest number of columns of which all cells are stored. More columns would fill the memory."""

MAX_LISTED_COLUMNS = 20
"""Largest number of columns that an error message lists."""

LAST_ROW = "\x1c"
"""A line that is added after the last line of a table. After an unclosed quotation mark, it is part of a cell."""


class TableRow(NamedTuple):
    """A row of a CSV table."""

    line: int
    """Line number of the row in the file. The header is line 1."""
    cells: dict[str, str]
    """The cells of the row, as a mapping from column names."""


def read_labels_table(path: Path, columns: Sequence[str], *, tab_separated: bool = False) -> list[TableRow]:
    """Return the rows of a CSV or TSV file (see `iterate_table`)."""
    return list(iterate_table(path, columns, tab_separated=tab_separated))


def iterate_table(path: Path, columns: Sequence[str], *, tab_separated: bool = False) -> Iterator[TableRow]:
    """Yield the rows of a CSV or TSV file. Only one row is in memory.

    From a table of over `MAX_STORED_COLUMNS` columns, only the required columns and `OPTIONAL_COLUMNS` are returned.

    Args:
        path: The file.
        columns: Names of the required columns.
        tab_separated: True for a TSV file. In a TSV file, each line is one row, and quotation marks have no special
            meaning.

    Raises:
        InputError: A required column is missing, a column occurs twice, or a row and the header differ in length.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = (line + "\n" for line in _decoded_lines(path))
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tab_separated else {}
    table = csv.reader(chain(lines, (LAST_ROW,)), **options)
    header: list[str] | None = None
    indices: dict[str, int] = {}
    line, cells = 1, list[str]()
    try:
        for cells in table:
            if header is None:
                header = [] if cells == [LAST_ROW] else cells
                indices = _find_columns(path, header, columns)
            elif cells and cells != [LAST_ROW]:
                if len(cells) != len(header) or cells[-1].endswith(LAST_ROW):
                    raise InputError(f"{path}, line {line}: a row needs {len(header)} cells, like the first line")
                yield TableRow(table.line_num, {column: cells[index] for column, index in indices.items()})
            line = table.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: {error}; check the quotation marks") from error


def _find_columns(path: Path, header: Sequence[str], required: Sequence[str]) -> dict[str, int]:
    """Return the index of each column to read. Raises InputError if a column is missing or occurs twice."""
    counts = Counter(header)
    more = f" and {len(counts) - MAX_LISTED_COLUMNS:,} more" if len(counts) > MAX_LISTED_COLUMNS else ""
    listed = (", ".join([*counts][:MAX_LISTED_COLUMNS]) or "none") + more
    if len(header) == 1 and ";" in header[0]:
        raise InputError(f"{path}: the cells of the first line are separated by semicolons; separate cells by commas")
    if missing := [column for column in required if column not in counts]:
        raise InputError(f"{path} has no column {', '.join(missing)}; its columns are {listed}")
    if twice := next((column for column, count in counts.items() if column and count > 1), None):
        raise InputError(f"{path} has two columns {twice}: rename or remove one; its columns are {listed}")
    stored = header if len(header) <= MAX_STORED_COLUMNS else (*required, *OPTIONAL_COLUMNS)
    return {column: header.index(column) for column in dict.fromkeys(stored) if column in counts}


def parse_label(cell: str, location: str) -> str:
    """Return a label without white space around it.

    Raises InputError if the label is empty or has more than `MAX_LABEL_CHARACTERS` characters. The message begins with
    `location`, the cell's file and line.
    """
    label = cell.strip()
    if not label:
        raise InputError(f"{location}: the label is empty; give a label or delete the row")
    if len(label) > MAX_LABEL_CHARACTERS:
        raise InputError(
            f"{location}: a label may have {MAX_LABEL_CHARACTERS:,} characters, not {len(label):,}; shorten the label"
        )
    return label


def read_groups(rows: Sequence[TableRow]) -> list[str] | None:
    """Return the group of each row, or None if the table has no column `group`.

    White space around a group's name is removed. A row with an empty cell forms a group by itself.
    """
    if not rows or "group" not in rows[0].cells:
        return None
    # A row with an empty cell gets a group name that begins with a space, because no other group name does so.
    return [row.cells["group"].strip() or f" {row.line}" for row in rows]


def parse_number(cell: str, location: str) -> float:
    """Return a cell as a finite number.

    Raises InputError if the cell is not a finite number. The message begins with `location`, the cell's file and line.
    """
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{location}: a number is expected, not {cell!r}")
    return number


def parse_integer(cell: str, location: str) -> int:
    """Return a cell as an integer.

    Raises InputError if the cell is not an integer. The message begins with `location`, the cell's file and line.
    """
    number = parse_number(cell, location)
    if number != int(number):
        raise InputError(f"{location}: a whole number is expected, not {cell!r}")
    return int(number)


def hash_each(files: Mapping[str, Path], *, unreadable: str | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file's contents.

    Args:
        files: Mapping from names to files. The names are the keys of the result.
        unreadable: Value returned as the hash of an unreadable file. With None, an unreadable file raises an
            InputError.
    """
    hashes: dict[str, str] = {}
    for name, path in files.items():
        try:
            with open_regular(path) as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except (InputError, OSError) as error:
            if unreadable is None:
                raise InputError(f"{path} cannot be read: {one_line(error)}") from error
            hashes[name] = unreadable
    return hashes


def hash_all(hashes: Mapping[str, str]) -> str:
    """Return one SHA-256 of the names and content hashes of files, in the given order.

    The result does not depend on the folder of the files.
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in hashes.items())
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def hash_files(files: Mapping[str, Path]) -> str:
    """Return one SHA-256 of the names and contents of files. Raises InputError if a file cannot be read."""
    return hash_all(hash_each(files))
