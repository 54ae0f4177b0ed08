"""Files of your own in one folder per class, and the table of their folds."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from unifier.data.dataset import LabeledFile
from unifier.data.readers import TableRow, read_labels_table
from unifier.data.source import SPLITS, SplitName
from unifier.data.splits import check_no_leak, check_trained_labels, hold_out
from unifier_tokenizers import InputError

SPLIT_FOLDER_NAMES = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
"""Usual names of split folders, in lower case. No class is expected to have such a name."""


def task_name(path: Path) -> str:
    """Return the last part of a path as the name of a data set.

    Recipes name a task by its data set, so characters that the name of a task cannot have become underscores.
    """
    last = path.name if path.name not in ("", "..") else path.resolve().name
    name = re.sub(r"[^\w-]+", "_", last) or "data"
    return f"{name}_data" if hasattr(nn.ModuleDict(), name) else name


def files_by_class(
    folder: Path, suffixes: Collection[str], unit: str, example: str
) -> dict[SplitName, list[LabeledFile]]:
    """Return the files of a folder by split, labeled with the name of their class folder.

    Split folders are named train, val and test; without them all files are in train. Files may lie at any depth of
    their class folder. Hidden files are left out, files with other suffixes are left out with a warning.

    Args:
        folder: The data folder.
        suffixes: File name suffixes to read, in lower case.
        unit: Noun of the files in messages, such as "pictures".
        example: Path of a file inside a split, for messages, such as "cat/1.png".

    Raises:
        InputError: If a split or a class has no files, or the folders are not as described.
    """
    folders = _subfolders(folder, unit)
    given: list[SplitName] = [part for part in SPLITS if part in folders]
    all_like_splits = any(name.lower() in SPLIT_FOLDER_NAMES for name in folders) or all(map(_names_split, folders))
    if folders and all_like_splits and ("train" not in given or len(folders) > len(given)):
        raise InputError(
            f"{folder} has the folders {', '.join(folders)}: expected are train and, optionally, val and test, "
            "or one folder for each class"
        )
    if len(folders) == 1 and not given and len(inner := _subfolders(folder / folders[0], unit)) > 1:
        raise InputError(f"{folder} has one folder, {folders[0]}, with {', '.join(inner)}: give {folder / folders[0]}")
    roots: dict[SplitName, Path] = {part: folder / part for part in given} or {"train": folder}
    files: dict[SplitName, list[LabeledFile]] = {
        part: _labeled_files(root, suffixes, unit) for part, root in roots.items()
    }
    for part, labeled in files.items():
        if not labeled:
            raise InputError(f"{roots[part]} has no {unit} in folders of classes, such as {roots[part] / example}")
    return files


def split_folders(folder: Path, files: Mapping[SplitName, list[LabeledFile]]) -> list[SplitName]:
    """Return the split of each file, in the order of `files`.

    If val or test has no folder, a tenth of every class is held out of train for it.

    Raises:
        InputError: If val or test has a class that train lacks.
    """
    parts: list[SplitName] = [part for part, labeled in files.items() for _ in labeled]
    check_trained_labels(str(folder), [file.target for labeled in files.values() for file in labeled], parts)
    missing: list[SplitName] = [part for part in SPLITS if part not in files]
    if missing:
        labels = [file.target for file in files["train"]]
        parts[: len(labels)] = hold_out(str(folder), labels, missing)
    return parts


def read_folds_table(table: Path, files: Sequence[str]) -> list[TableRow]:
    """Return the row of each file in a table with the columns file and fold, in the order of `files`.

    Raises:
        InputError: If a file has no row or two rows, or a row names a file that does not exist.
    """
    if not table.exists():
        raise InputError(f"{table}: no such file; give a table with the columns file and fold")
    rows = read_labels_table(table, ("file", "fold"))
    check_no_leak(f"{table}:", [row.cells["file"] for row in rows], [f"line {row.line}" for row in rows])
    by_file = {row.cells["file"]: row for row in rows}
    if unlisted := next((file for file in files if file not in by_file), None):
        raise InputError(f"{table} has no row for {unlisted}")
    if missing := sorted(set(by_file) - set(files)):
        raise InputError(f"{table}, line {by_file[missing[0]].line}: there is no {missing[0]!r}")
    return [by_file[file] for file in files]


def _names_split(folder_name: str) -> bool:
    return not SPLIT_FOLDER_NAMES.isdisjoint(re.split("[^a-z]+", folder_name.lower()))


def _labeled_files(folder: Path, suffixes: Collection[str], unit: str) -> list[LabeledFile]:
    """Return the files of all class folders inside `folder`."""
    labeled: list[LabeledFile] = []
    left_out = Counter[str]()
    labels = _subfolders(folder, unit)
    if undecodable := next((label for label in labels if re.search(r"[\ud800-\udfff]", label)), None):
        raise InputError(f"{folder} has a class whose name is not UTF-8, {undecodable!r}: rename its folder")
    inner = {name.lower() for label in labels for name in _subfolders(folder / label, unit)}
    if inner and inner <= SPLIT_FOLDER_NAMES:
        label, part = labels[0], sorted(inner)[0]
        raise InputError(f"{folder} has splits inside its classes: {part}/{label} is expected, not {label}/{part}")
    for label in labels:
        paths = sorted(_visible_files(folder / label))
        files = [path for path in paths if path.suffix.lower() in suffixes]
        if not files:
            raise InputError(f"{folder / label} has no {unit} ({', '.join(sorted(suffixes))}): remove it, or fill it")
        labeled += [LabeledFile(path, label) for path in files]
        left_out.update(path.suffix.lower() or path.name for path in paths if path.suffix.lower() not in suffixes)
    if left_out:
        counts = ", ".join(f"{count} {suffix}" for suffix, count in left_out.most_common(5))
        warnings.warn(f"{folder}: left out files whose suffix is not one of {unit} ({counts})", stacklevel=2)
    return labeled


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, except hidden ones and files in hidden folders."""
    visited = set[str]()
    for directory, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(directory)) in visited:  # A link to a parent folder would never end.
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(directory, name) for name in files if not name.startswith("."))


def _subfolders(folder: Path, unit: str) -> list[str]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of {unit}")
    with os.scandir(folder) as entries:  # scandir knows the folders without a system call for each file.
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
