"""Copies of the experiment's files in the folder of a run, and a warning if a file differs from its copy."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import unifier_tokenizers
from unifier.config import split_reference
from unifier.data.readers import hash_files
from unifier.files import write_bytes
from unifier_tokenizers import InputError

EXPERIMENT_ENTRY = "experiment"
"""The key in settings.json of a mapping from the name of each copy to its SHA-256 hash."""


def copy_experiment(origin: str | Sequence[str], folder: Path) -> dict[str, str]:
    """Copy the experiment's files into the folder of a run.

    Args:
        origin: FILE:name of the experiment, or a list of FILE:name for a joint run.
        folder: The folder of the run.

    Returns:
        A mapping from the name of each copy to its SHA-256 hash. Files that do not exist, such as cells of a notebook,
        have no copy.
    """
    hashes: dict[str, str] = {}
    for name, file in _files(origin).items():
        if (content := read_experiment(file)) is not None:
            write_bytes(folder / name, content)
            hashes[name] = sha256(content).hexdigest()
    return hashes


def read_experiment_files(origin: str | Sequence[str]) -> None:
    """Read the experiment's files before the data are encoded, because a user may edit a file in the meantime."""
    for file in _files(origin).values():
        read_experiment(file)


@cache  # Python keeps the code of a file, so later trials of a comparison execute the content of the first trial.
def read_experiment(file: str) -> bytes | None:
    """Return the content of an experiment's file at the first call, or None if the file does not exist."""
    return Path(file).read_bytes() if Path(file).is_file() else None


def hash_code(origin: str | Sequence[str]) -> str:
    """Return a hash of the experiment's files and of all modules of this library."""
    files = {name: Path(file) for name, file in _files(origin).items() if Path(file).is_file()}
    for folder in (Path(__file__).parents[1], Path(unifier_tokenizers.__path__[0])):
        files |= {str(path.relative_to(folder.parent)): path for path in sorted(folder.rglob("*.py"))}
    return hash_files(files)


def warn_of_changed_experiment(folder: Path, settings: Mapping[str, Any]) -> None:
    """Print a warning if an experiment's file differs from the copy in the folder of a run.

    Args:
        folder: The folder of the run.
        settings: The content of the run's settings.json.

    Raises:
        InputError: The hashes or the names of the experiments in settings.json are broken.
    """
    hashes = settings.get(EXPERIMENT_ENTRY, {})
    if not isinstance(hashes, Mapping):
        raise InputError(f"{folder / 'settings.json'}: broken ({EXPERIMENT_ENTRY} must be an object)")
    for name, file in _files(origin_of(folder, settings)).items():
        changed = Path(file).is_file() and sha256(Path(file).read_bytes()).hexdigest() != hashes.get(name)
        if name in hashes and changed:
            warnings.warn(
                f"{file} has changed since the run started; its earlier content is {folder / name}", stacklevel=2
            )


def origin_of(folder: Path, settings: Mapping[str, Any]) -> str | list[str]:
    """Return the FILE:name of a run's experiment, one for each part of a joint run, or "" if no file contains it.

    Args:
        folder: The folder of the run.
        settings: The content of the run's settings.json.

    Raises:
        InputError: The entry in settings.json is broken.
    """
    origin = settings.get("study", "")
    if not isinstance(origin, str | list) or not all(isinstance(part, str) for part in origin):
        raise InputError(f"{folder / 'settings.json'}: broken (study must be FILE:name, or a list of FILE:name)")
    return origin


def _files(origin: str | Sequence[str]) -> dict[str, str]:
    """Return the files of the experiments, keyed by the names of their copies: experiment.py, experiment-2.py, ..."""
    origins = [origin] if isinstance(origin, str) else origin
    files = dict.fromkeys(split_reference(part)[0] for part in origins if part)
    return {f"experiment{f'-{number}' if number > 1 else ''}.py": file for number, file in enumerate(files, start=1)}
