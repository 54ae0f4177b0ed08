"""Files of your own in one folder per class."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from unifier.data.dataset import LabeledFile
from unifier.data.readers import TableRow, read_labels_table
from unifier.data.source import SPLITS, SplitName
from unifier.data.splits import check_no_leak, check_trained_labels, hold_out
from unifier_tokenizers import InputError

SPLIT_FOLDER_NAMES = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
"""Names that folders of splits have, in capitals or not; of classes beside each other none is expected to."""


def files_by_class(folder: Path, endings: Collection[str], what: str, such: str) -> dict[SplitName, list[LabeledFile]]:
    """The files of a folder by the split whose folder they are in, train, val or test; with no such folders all train.

    They have one of the `endings` and lie in their class's folder at any depth, whose name is their label; hidden ones
    are left out, and others with a warning. Raises InputError where a split has none, which calls them `what` and names
    `such` a file, where a class has none, or where other folders stand beside train.
    """
    folders = _folders(folder, what)
    given: list[SplitName] = [part for part in SPLITS if part in folders]
    like_splits = any(name.lower() in SPLIT_FOLDER_NAMES for name in folders) or all(map(_says_split, folders))
    if folders and like_splits and ("train" not in given or len(folders) > len(given)):
        raise InputError(
            f"{folder} has the folders {', '.join(folders)}: expected are train, val and test, "
            "of which only train must be there, or one for each class"
        )
    if len(folders) == 1 and not given and len(within := _folders(folder / folders[0], what)) > 1:
        raise InputError(f"{folder} has one folder, {folders[0]}, with {', '.join(within)}: give {folder / folders[0]}")
    roots: dict[SplitName, Path] = {part: folder / part for part in given} or {"train": folder}
    found: dict[SplitName, list[LabeledFile]] = {part: _labeled(root, endings, what) for part, root in roots.items()}
    for part, files in found.items():
        if not files:
            raise InputError(f"{roots[part]} has no {what} in folders of classes, such as {roots[part] / such}")
    return found


def _says_split(name: str) -> bool:
    return not SPLIT_FOLDER_NAMES.isdisjoint(re.split("[^a-z]+", name.lower()))


def split_folders(folder: Path, found: Mapping[SplitName, list[LabeledFile]]) -> list[SplitName]:
    """The split of each file, in their order: for what has no folder a tenth of every class is held out of training.

    Raises InputError where val or test have a class that train lacks.
    """
    parts: list[SplitName] = [part for part, files in found.items() for _ in files]
    check_trained_labels(str(folder), [file.target for files in found.values() for file in files], parts)
    lacking: list[SplitName] = [part for part in SPLITS if part not in found]
    if lacking:
        labels = [file.target for file in found["train"]]
        parts[: len(labels)] = hold_out(str(folder), labels, lacking)
    return parts


def folds_of(table: Path, files: Sequence[str]) -> list[TableRow]:
    """The row of each file in a table with the columns file and fold, in the order of the files.

    Raises InputError where one has no row or two, and where a row has no file.
    """
    if not table.exists():
        raise InputError(f"{table}: no such file; it says, in the columns file and fold, which fold each file is in")
    rows = read_labels_table(table, ("file", "fold"))
    check_no_leak(f"{table}:", [row.cells["file"] for row in rows], [f"line {row.line}" for row in rows])
    listed = {row.cells["file"]: row for row in rows}
    if lacking := next((file for file in files if file not in listed), None):
        raise InputError(f"{table} has no row for {lacking}")
    if gone := sorted(set(listed) - set(files)):
        raise InputError(f"{table}, line {listed[gone[0]].line}: there is no {gone[0]!r}")
    return [listed[file] for file in files]


def _labeled(folder: Path, endings: Collection[str], what: str) -> list[LabeledFile]:
    found: list[LabeledFile] = []
    others = Counter[str]()
    labels = _folders(folder, what)
    if odd := next((label for label in labels if re.search(r"[\ud800-\udfff]", label)), None):
        raise InputError(f"{folder} has a class whose name is not UTF-8, {odd!r}: rename its folder")
    within = {name.lower() for label in labels for name in _folders(folder / label, what)}
    if within and within <= SPLIT_FOLDER_NAMES:
        first, part = labels[0], sorted(within)[0]
        raise InputError(f"{folder} has splits within its classes: {part}/{first} is expected, not {first}/{part}")
    for label in labels:
        inside = sorted(_inside(folder / label))
        files = [path for path in inside if path.suffix.lower() in endings]
        if not files:
            raise InputError(f"{folder / label} has no {what} ({', '.join(sorted(endings))}): take it away, or fill it")
        found += [LabeledFile(path, label) for path in files]
        others.update(path.suffix.lower() or path.name for path in inside if path.suffix.lower() not in endings)
    if others:
        kinds = ", ".join(f"{count} {ending}" for ending, count in others.most_common(5))
        warnings.warn(f"{folder}: left out are files that do not end as {what} do ({kinds})", stacklevel=2)
    return found


def _inside(folder: Path) -> Iterator[Path]:
    walked = set[str]()
    for place, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in walked:  # a link that leads back
            folders.clear()
            continue
        walked.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files if not name.startswith("."))


def _folders(folder: Path, what: str) -> list[str]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of {what}")
    with os.scandir(folder) as entries:  # which knows what is a folder without a look at each file
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
