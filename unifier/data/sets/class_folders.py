"""Files of your own in a folder for each class, as pictures and sounds are often kept."""

from collections.abc import Collection, Mapping
from pathlib import Path

from unifier.data.examples import Labelled
from unifier.data.source import SPLITS, SplitName
from unifier.data.splitting import hold_out
from unifier_tokenizers import InputError


def by_class(folder: Path, endings: Collection[str], what: str, such: str) -> dict[SplitName, list[Labelled]]:
    """The files of a folder by the split whose folder they are in, train, val or test; with no such folders all train.

    They have one of the `endings` and the names of their folders as labels; hidden ones are left out. Raises InputError
    where there are none, which calls them `what` and names `such` a file, or where other folders stand beside train.
    """
    folders = _folders(folder, what)
    given: list[SplitName] = [part for part in SPLITS if part in folders]
    if given and ("train" not in given or len(folders) > len(given)):
        raise InputError(
            f"{folder} has the folders {', '.join(folders)}: expected are train, val and test, "
            "of which only train must be there, or one for each class"
        )
    roots: dict[SplitName, Path] = {part: folder / part for part in given} or {"train": folder}
    found: dict[SplitName, list[Labelled]] = {
        part: [
            Labelled(path, label)
            for label in _folders(root, what)
            for path in sorted((root / label).iterdir())
            if path.suffix.lower() in endings and not path.name.startswith(".")
        ]
        for part, root in roots.items()
    }
    if not any(found.values()):
        raise InputError(f"{folder} has no {what} in folders of classes, such as {folder / such}")
    return found


def parts_of(folder: Path, found: Mapping[SplitName, list[Labelled]]) -> list[SplitName]:
    """The split of each file, in their order: for what has no folder a tenth of every class is held out of training."""
    parts: list[SplitName] = [part for part, files in found.items() for _ in files]
    lacking: list[SplitName] = [part for part in SPLITS if part not in found]
    if lacking:
        labels = [file.target for file in found["train"]]
        parts[: len(labels)] = hold_out(str(folder), labels, lacking)
    return parts


def _folders(folder: Path, what: str) -> list[str]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of {what}")
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
