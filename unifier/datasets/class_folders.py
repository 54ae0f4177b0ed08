"""Reading of your own files: one folder per class, and a table with the fold of each file."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path, PurePath

from torch import nn

from unifier.data.dataset import LabeledFile
from unifier.data.readers import TableRow, read_labels_table
from unifier.data.source import SPLITS, SplitName
from unifier.data.splits import check_no_leak, check_trained_labels, hold_out
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

SPLIT_FOLDER_NAMES = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
"""Usual names of split folders, in lower case. A class folder should have another name."""


def task_name(path: Path) -> str:
    """Return the last component of a path, as the name of a data set.

    Recipes also use the name for the task. Characters that are not allowed in task names are replaced by underscores.
    """
    last = path.name if path.name not in ("", "..") else path.resolve().name
    name = re.sub(r"[^\w-]+", "_", last) or "data"
    return f"{name}_data" if hasattr(nn.ModuleDict(), name) else name


def files_by_class(
    folder: Path, suffixes: Collection[str], unit: str, example: str, *, allow_outside: bool
) -> dict[SplitName, list[LabeledFile]]:
    """Return the files of each split. A file's label is the name of its class folder.

    Split folders have the names train, val and test. Without split folders, all files are in train. Files may be in
    subfolders of their class folder. Hidden files are left out. Files with other suffixes are left out with a warning.

    Args:
        folder: The data folder.
        suffixes: Suffixes of the files to read, in lower case.
        unit: Noun for the files in messages, such as "pictures".
        example: Path of a file inside a split, for messages, such as "cat/1.png".
        allow_outside: True if links may lead outside the data folder.

    Raises:
        InputError: A split or a class has no files, the layout of the folders is wrong, or a link leads outside.
    """
    folders = _subfolders(folder, unit)
    given: list[SplitName] = [part for part in SPLITS if part in folders]
    all_like_splits = any(name.lower() in SPLIT_FOLDER_NAMES for name in folders) or all(map(_names_split, folders))
    if folders and all_like_splits and ("train" not in given or len(folders) > len(given)):
        raise InputError(
            f"{folder} has the folders {', '.join(folders)}: it must have the folder train (and optionally val and "
            "test), or one folder for each class"
        )
    if len(folders) == 1 and not given and len(inner := _subfolders(folder / folders[0], unit)) > 1:
        raise InputError(
            f"{folder} has only the folder {folders[0]}, which has the folders {', '.join(inner)}: use its path, "
            f"{folder / folders[0]}"
        )
    roots: dict[SplitName, Path] = {part: folder / part for part in given} or {"train": folder}
    files: dict[SplitName, list[LabeledFile]] = {
        part: _labeled_files(root, suffixes, unit, None if allow_outside else folder) for part, root in roots.items()
    }
    for part, labeled in files.items():
        if not labeled:
            raise InputError(
                f"{roots[part]} has no class folders with {unit}: add one folder per class, with files such as "
                f"{roots[part] / example}"
            )
    return files


def split_folders(folder: Path, files: Mapping[SplitName, list[LabeledFile]]) -> list[SplitName]:
    """Return the split of each file, in the order of `files`.

    A tenth of every train class is held out for each missing split, val or test.

    Raises:
        InputError: Val or test has examples of a class, but train has no examples of this class.
    """
    parts: list[SplitName] = [part for part, labeled in files.items() for _ in labeled]
    check_trained_labels(str(folder), [file.target for labeled in files.values() for file in labeled], parts)
    missing: list[SplitName] = [part for part in SPLITS if part not in files]
    if missing:
        labels = [file.target for file in files["train"]]
        parts[: len(labels)] = hold_out(str(folder), labels, missing)
    return parts


def read_folds_table(table: Path, files: Sequence[str]) -> list[TableRow]:
    """Read a table with the columns `file` and `fold`. Return the row of each file in the order of `files`.

    Raises:
        InputError: A file has no row or two rows, or the file of a row does not exist.
    """
    if not table.exists():
        raise InputError(f"{table}: no such file; give a table with the columns file and fold")
    rows = read_labels_table(table, ("file", "fold"))
    check_no_leak(f"{table}:", [row.cells["file"] for row in rows], [f"line {row.line}" for row in rows])
    by_file = {row.cells["file"]: row for row in rows}
    if unlisted := next((file for file in files if file not in by_file), None):
        raise InputError(f"{table} has no row for {unlisted}: add a row with its fold, or remove the file")
    if missing := sorted(set(by_file) - set(files)):
        raise InputError(
            f"{table}, line {by_file[missing[0]].line}: the file {missing[0]!r} does not exist; delete the row, or add "
            "the file"
        )
    return [by_file[file] for file in files]


def leads_outside(folder: Path, file: str) -> bool:
    """Return True if a table's file name is absolute, begins with `..`, or is a link to a file outside the folder."""
    if is_outside_name(file):
        return True
    path, root = folder / file, _real_folder(folder)
    is_link = os.path.islink(path)  # noqa: PTH114  Path.is_symlink would raise OSError for a name of 300 letters.
    real = Path(os.path.realpath(path)) if is_link else _real_folder(path.parent)
    return "\0" not in file and not real.is_relative_to(root)


def is_outside_name(file: str) -> bool:
    """Return True if a file name is absolute, or leads out of its folder with `..`."""
    return PurePath(os.path.normpath(file)).parts[:1] == ("..",) or PurePath(file).is_absolute()


@lru_cache(maxsize=1 << 12)
def _real_folder(folder: Path) -> Path:
    return folder if "\0" in str(folder) else Path(os.path.realpath(folder))


def _names_split(folder_name: str) -> bool:
    return not SPLIT_FOLDER_NAMES.isdisjoint(re.split("[^a-z]+", folder_name.lower()))


def _labeled_files(folder: Path, suffixes: Collection[str], unit: str, root: Path | None) -> list[LabeledFile]:
    """Return the files in all class folders of `folder`, with their labels. No link may lead out of `root`."""
    labeled: list[LabeledFile] = []
    left_out = Counter[str]()
    labels = _subfolders(folder, unit)
    if undecodable := next((label for label in labels if re.search(r"[\ud800-\udfff]", label)), None):
        raise InputError(f"{folder} has a class whose name is not UTF-8, {undecodable!r}: rename its folder")
    inner = {name.lower() for label in labels for name in _subfolders(folder / label, unit)}
    if inner and inner <= SPLIT_FOLDER_NAMES:
        label, part = labels[0], sorted(inner)[0]
        raise InputError(
            f"{folder} has split folders inside class folders: move the files to {part}/{label} instead of "
            f"{label}/{part}"
        )
    for label in labels:
        paths = sorted(visible_files(folder / label, root))
        files = [path for path in paths if path.suffix.lower() in suffixes]
        if not files:
            raise InputError(
                f"{folder / label} has no {unit} ({', '.join(sorted(suffixes))}): add files to this class, or remove it"
            )
        labeled += [LabeledFile(path, label) for path in files]
        left_out.update(path.suffix.lower() or path.name for path in paths if path.suffix.lower() not in suffixes)
    if left_out:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in left_out.most_common(5))
        warnings.warn(f"{folder}: left out files whose format cannot be read as {unit} ({counts})", stacklevel=2)
    return labeled


def visible_files(folder: Path, root: Path | None) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders, except hidden files and files in hidden folders.

    The files of a folder come first, sorted by name, and then the files of each subfolder. With the root None, links
    may lead anywhere.

    Raises InputError if a folder cannot be read, or if a link leads out of the folder `root`.
    """
    visited, waiting = set[str](), [str(folder)]
    while waiting:
        directory = waiting.pop()
        if (real := os.path.realpath(directory)) in visited:  # Following a link to a parent folder would never end.
            continue
        visited.add(real)
        _check_inside(directory, real, root)
        inner = list[str]()
        for entry in _visible_entries(directory):
            if _is_folder(entry):
                inner.append(entry.path)
                continue
            if entry.is_symlink():
                _check_inside(entry.path, os.path.realpath(entry.path), root)
            yield Path(entry.path)
        waiting += reversed(inner)


def _check_inside(path: str, real: str, root: Path | None) -> None:
    """Raise InputError if the real path of a file or folder is not in the folder `root`."""
    if root is not None and not Path(real).is_relative_to(_real_folder(root)):
        raise InputError(
            f"{path} is a link to a place outside {root}: copy the files into the folder, or give allow_outside=true "
            "if you trust the data"
        )


def _subfolders(folder: Path, unit: str) -> list[str]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give a folder that contains {unit}")
    return [entry.name for entry in _visible_entries(folder) if _is_folder(entry)]


def _visible_entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder that are not hidden, sorted by name.

    Raises InputError if the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:  # scandir knows the type of an entry without a system call per file.
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {one_line(error)}") from error
    return sorted(visible, key=attrgetter("name"))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return True for a folder or a link to a folder, and False for a link to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False
