"""Folders of runs and temporary files: unique names, locks, and removal of the folders of killed processes."""

import atexit
import fcntl
import os
import re
import secrets
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from unifier_tokenizers import InputError

RUN_ID = re.compile(r"\d{8}-\d{6}-(.*-)?[0-9a-f]{4}")
"""The name of a run's or a comparison's folder."""

TRIALS_FOLDER = "trials"
"""The name of the folder with all runs of a comparison, inside the comparison's folder."""

FIRST_FILES = ("settings.json", "comparison.json", "checkpoints")
"""Names of which at least one is in the folder of each run or comparison that can resume."""

LOCK_FILE = ".lock"
"""Name of the empty file in the folder of a run or a comparison whose lock belongs to the process that writes there."""


ID_FILE = ".id"
"""Name of the file with the id of a run or a comparison whose folder the user has named."""


@contextmanager
def new_folder(parent: Path, label: str = "", name: str | None = None) -> Generator[Path]:
    """Create a folder with a unique name in `parent`, and lock the folder.

    Folders in `parent` whose processes were killed before they wrote the first file are removed.

    Args:
        parent: The folder in which the folder is created.
        label: A part of the unique name, which also consists of the time and a random number.
        name: The whole name, if the user has chosen the name. Then the file `ID_FILE` contains the unique name.

    Raises:
        InputError: The folder cannot be created, or a folder with the chosen name exists.
    """
    if name is not None:
        with _named_folder(parent / name) as folder:
            yield folder
        return
    remove_unstarted(parent)
    while True:
        folder = _create_folder(parent, label)
        with ExitStack() as lock:
            try:
                lock.enter_context(lock_folder(folder))
            except InputError:  # Another process found the folder before it was locked, and removes the folder.
                continue
            if folder.exists():
                yield folder
                return


@contextmanager
def _named_folder(folder: Path) -> Generator[Path]:
    """Create and lock a folder. A folder that a killed process left without its first file is used again."""
    _make_folder(folder, exist_ok=True)
    with lock_folder(folder):
        is_empty = all(path.name == LOCK_FILE for path in folder.iterdir())
        if not is_empty and (chosen_name(folder) is None or _is_started(folder)):
            raise InputError(f"{folder}: the folder exists; give another --name, or --resume auto to continue its run")
        (folder / ID_FILE).write_text(_unique_name(folder.name), encoding="utf-8")
        yield folder


def tracking_id(folder: Path) -> str:
    """Return the id of a run or a comparison in trackers, which no other folder has."""
    path = folder / ID_FILE
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else folder.name


def chosen_name(folder: Path) -> str | None:
    """Return the name that the user has chosen for the folder of a run or a comparison, or None."""
    return folder.name if (folder / ID_FILE).is_file() else None


def _unique_name(label: str) -> str:
    return "-".join(filter(None, (time.strftime("%Y%m%d-%H%M%S"), label, secrets.token_hex(2))))


def _create_folder(parent: Path, label: str) -> Path:
    folder = parent / _unique_name(label)
    return folder if _make_folder(folder) else _create_folder(parent, label)


def _make_folder(folder: Path, *, exist_ok: bool = False) -> bool:
    """Create a folder. Return False if the folder exists, unless `exist_ok` is set."""
    parent = folder.parent
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError as error:
        if folder.is_dir():
            return False
        raise InputError(f"{parent}: the target of this link does not exist; give another folder with --out") from error
    except (PermissionError, NotADirectoryError, FileNotFoundError) as error:
        raise InputError(
            f"{parent}: no folder can be created there ({error.strerror}); give another folder with --out"
        ) from error
    return True


def remove_unstarted(parent: Path) -> None:
    """Remove the folders of runs and comparisons that were killed before they wrote their first file."""
    for folder in parent.glob("*/"):
        if RUN_ID.fullmatch(folder.name) and not folder.is_symlink() and not _is_started(folder):
            with suppress(InputError), lock_folder(folder) as is_locked:
                if is_locked and not _is_started(folder):
                    rmtree(folder, ignore_errors=True)


def _is_started(folder: Path) -> bool:
    return any((folder / name).exists() for name in FIRST_FILES)


def find_run_folder(text: str, base: Path, root: Path | None = None) -> Path | None:
    """Find the folder of a run from the path in a row of comparison.json.

    Args:
        text: The path in the row, possibly empty.
        base: The folder of the comparison. If all folders were moved together, the run is searched below this folder.
        root: The folder of the report, by default `base`. No run outside of this folder is read, because a row can
            name any folder.

    Returns:
        The path of the existing folder, or None.
    """
    if not text or "\0" in text:
        return None
    tail = Path(*Path(text).parts[-2:])  # The runs of a comparison are in <experiment>/<run id>.
    candidates = (base / text, base.parent.parent / tail, base / tail)
    top = (root or base).resolve()
    for path in candidates:
        with suppress(OSError, RuntimeError):  # The name may be too long, or the links may form a loop.
            if path.is_dir() and top in path.resolve().parents:
                return path
    return None


@contextmanager
def lock_folder(folder: Path) -> Generator[bool]:
    """Hold the lock of a run's or a comparison's folder. The system releases the lock of a killed process.

    Yields False if the folder cannot be locked, because the folder cannot be written or its file system has no locks.

    Raises:
        InputError: Another process holds the lock.
    """
    is_locked = True
    with ExitStack() as lock:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
            lock.enter_context(_lock(os.open(folder / LOCK_FILE, flags, 0o666)))
        except BlockingIOError:
            raise InputError(
                f"{folder}: another process is writing this run; wait for the end of the process, or stop it"
            ) from None
        except OSError:
            is_locked = False
        yield is_locked


@contextmanager
def lock_temporary(folder: Path) -> Generator[None]:
    """Hold the lock of a temporary folder, without a file in the folder.

    Raises:
        OSError: The folder is already locked or cannot be locked.
    """
    with _lock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)):
        yield


def remove_unlocked(parent: Path, prefix: str) -> None:
    """Remove the temporary folders of killed processes, whose names begin with a prefix."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError), lock_temporary(folder):
            rmtree(folder)


def folder_size(folder: Path) -> int:
    """Return the size of all files in a folder in bytes, without files that another process deletes in the meantime."""
    size = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                size += Path(path, name).lstat().st_size
    return size


@contextmanager
def own_temporary_folder(prefix: str) -> Generator[None]:
    """Let an imported package create its temporary files in a folder of this process, which is removed at exit.

    The folder is locked by this process, so that a later process removes the folder if this process was killed.

    Args:
        prefix: The first letters of the folder's name.
    """
    remove_unlocked(Path(tempfile.gettempdir()), prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    stack = ExitStack()
    with suppress(OSError):  # Some file systems have no locks.
        stack.enter_context(lock_temporary(folder))
    stack.callback(rmtree, folder, ignore_errors=True)
    atexit.register(stack.close)
    previous, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = previous


_descriptors = set[int]()


@contextmanager
def _lock(descriptor: int) -> Generator[None]:
    """Lock an open file or folder, and close it at the end. Raises BlockingIOError if another process has the lock."""
    _descriptors.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        if descriptor in _descriptors:  # Else this is a worker process, which has closed the file.
            _descriptors.remove(descriptor)
            os.close(descriptor)


def _close_descriptors() -> None:
    """Close the locked files in a worker process, which must not keep the lock of a killed run."""
    while _descriptors:
        os.close(_descriptors.pop())


os.register_at_fork(after_in_child=_close_descriptors)
