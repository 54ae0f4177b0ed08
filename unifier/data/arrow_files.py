"""Rows of Parquet files, and of the Arrow files that Hugging Face's `datasets` saves. Both are read with pyarrow."""

import re
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from unifier.data.readers import MAX_LISTED_COLUMNS, parse_number, read_content
from unifier.data.source import SplitName
from unifier.files import parse_json
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

SAVED, PARQUET = "datasets:", "parquet:"
"""Beginnings of the setting `data` for a folder of `datasets.save_to_disk`, and for a folder of Parquet files."""

TABLES = (SAVED, PARQUET)
"""Beginnings of the setting `data` for tables with one example per row."""

SPLIT_NAMES: Mapping[str, SplitName] = {
    **{"train": "train", "validation": "val", "valid": "val", "val": "val", "dev": "val", "test": "test"}
}
"""Names of splits in folders and files."""

NUM_OPEN = 4
"""Number of files, and of blocks of Parquet files, that each process keeps open."""


class Row(NamedTuple):
    """The place of a row."""

    path: Path
    block: int
    """Number of the record batch of an Arrow file, or of the row group of a Parquet file."""
    row: int
    """Number of the row in the block."""


def locate_row(row: Row) -> str:
    """Return the file, the block and the number of a row for messages. Both numbers count from 1."""
    return f"{row.path}, block {row.block + 1}, row {row.row + 1}"


def find_split_files(data: str) -> dict[SplitName, list[Path]]:
    """Return the files of each split.

    Args:
        data: The setting `data`: `SAVED` or `PARQUET`, and a path.

    Raises:
        InputError: The folder has no such files, or no files of the split train.
    """
    kind, _, path = data.partition(":")
    found: dict[SplitName, list[Path]] = {}
    for name, file in (_saved_files if f"{kind}:" == SAVED else _parquet_files)(Path(path)):
        if name in SPLIT_NAMES:
            found.setdefault(SPLIT_NAMES[name], []).append(file)
        else:
            warnings.warn(f"{file}: left out, because its split {name!r} is not train, val or test", stacklevel=2)
    if "train" not in found:
        raise InputError(f"data={data}: there are no files of a split train")
    return found


def _saved_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the split and the path of each file of a data set that was saved with `save_to_disk`."""
    folders = {"train": folder}
    index = folder / "dataset_dict.json"
    if index.is_file():
        splits = parse_json(index, read_content(index), splits=list)["splits"]
        folders = {str(name): folder / Path(str(name)).name for name in splits}
    elif not (folder / "state.json").is_file():
        raise InputError(f"data={SAVED}{folder}: give a folder that was written by save_to_disk of Hugging Face")
    for name, part in folders.items():
        state = part / "state.json"
        for entry in parse_json(state, read_content(state), _data_files=list)["_data_files"]:
            file: Any = entry.get("filename") if isinstance(entry, dict) else None  # pyright: ignore[reportUnknownMemberType]
            if not isinstance(file, str):
                raise InputError(f"{state}: broken (a file without a name)")
            yield name, part / Path(file).name


def _parquet_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the split and the path of each Parquet file. The name of the file or of a folder contains the split."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.parquet"))
    if not files:
        raise InputError(f"data={PARQUET}{folder}: give a .parquet file, or a folder with .parquet files")
    names = dict[Path, str]()
    for file in files:
        words = [*file.relative_to(folder).parent.parts, *re.findall(r"[a-z]+", file.stem)[:1]]
        names.update((file, word) for word in words if word in SPLIT_NAMES)
    if names and (other := next((file for file in files if file not in names), None)):
        raise InputError(
            f"{other}: its name has no split, but other names have; begin the name with train, val or test"
        )
    yield from ((names.get(file, "train"), file) for file in files)


def rows_of(files: Sequence[Path]) -> list[Row]:
    """Return the rows of files."""
    return [
        Row(path, block, row)
        for path in files
        for block, count in enumerate(_open_file(path).counts)
        for row in range(count)
    ]


def read_cell(row: Row, column: str) -> Any:
    """Return the value of a cell as a Python object. Raises InputError if the file is damaged."""
    return _read_block(row.path, row.block, column)[row.row].as_py()


def read_column(path: Path, column: str) -> list[Any]:
    """Return all values of a column of a file."""
    blocks = range(len(_open_file(path).counts))
    return [value for block in blocks for value in _read_block(path, block, column).to_pylist()]


def read_number(cell: Any, row: Row, column: str) -> float:
    """Return a cell as a finite number. Raises InputError if the cell is not a finite number."""
    is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
    return parse_number(str(cell) if is_number else repr(cell), f"{locate_row(row)}, {column}")


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a file."""
    return tuple(_open_file(path).names)


def find_column(path: Path, candidates: Sequence[str], what: str) -> str:
    """Return the first of several columns that a file has.

    Raises:
        InputError: The file has none of the columns.
    """
    names = _open_file(path).names
    for name in candidates:
        if name in names:
            return name
    listed = ", ".join(names[:MAX_LISTED_COLUMNS])
    raise InputError(
        f"{path} has no column {' or '.join(candidates)} with {what}, only {listed}: rename a column, for example with "
        "rename_column of Hugging Face"
    )


def has_column(path: Path, candidates: Sequence[str]) -> bool:
    """Return True if a file has one of several columns."""
    return any(name in _open_file(path).names for name in candidates)


def class_names(path: Path, column: str) -> tuple[str, ...] | None:
    """Return the names of the classes of a column, which Hugging Face stores in a file, or None."""
    feature: Any = _open_file(path).features.get(column)
    while not isinstance(feature, dict) or "names" not in feature:
        if isinstance(feature, list) and feature:
            feature = feature[0]
        elif isinstance(feature, dict) and "feature" in feature:
            feature = feature["feature"]
        else:
            return None
    names: Any = feature["names"]
    return tuple(map(str, names)) if isinstance(names, list) else None  # pyright: ignore[reportUnknownArgumentType]


class _File(NamedTuple):
    content: Any
    """A pyarrow.parquet.ParquetFile, or the record batches of an Arrow file."""
    counts: Sequence[int]
    """The number of rows of each block."""
    names: Sequence[str]
    features: Mapping[str, Any]
    """The types of Hugging Face for each column."""


@contextmanager
def _reading(path: Path) -> Generator[Any]:
    """Import pyarrow, and convert its errors."""
    try:
        pyarrow = import_module("pyarrow")
    except ImportError as error:
        raise InputError(f"{path} needs pyarrow: install unifier-torch[parquet]") from error
    try:
        yield pyarrow
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error


@lru_cache(maxsize=NUM_OPEN)
def _open_file(path: Path) -> _File:
    with _reading(path) as pyarrow:
        if path.suffix == ".parquet":
            content = import_module("pyarrow.parquet").ParquetFile(path)
            schema, groups = content.schema_arrow, content.metadata
            counts = [groups.row_group(k).num_rows for k in range(groups.num_row_groups)]
        else:
            with pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))) as reader:
                schema, content = reader.schema, list(reader)
            counts = [batch.num_rows for batch in content]
            for batch in content:
                batch.validate(full=True)
    return _File(content, counts, schema.names, _features(path, schema.metadata or {}))


def _features(path: Path, metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    info: Any = parse_json(path, metadata.get(b"huggingface", b"{}")).get("info")
    features: Any = info.get("features") if isinstance(info, dict) else None  # pyright: ignore[reportUnknownMemberType]
    return features if isinstance(features, dict) else {}  # pyright: ignore[reportUnknownVariableType]


@lru_cache(maxsize=NUM_OPEN)
def _read_block(path: Path, block: int, column: str) -> Any:
    """Return a column of a block."""
    file = _open_file(path)
    if path.suffix != ".parquet":
        return file.content[block].column(column)
    with _reading(path):
        values = file.content.read_row_group(block, columns=[column]).column(column)
        values.validate(full=True)
        return values
