"""Files of a packed data set, read in place or through fsspec into a local folder of bounded size."""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, final

from safetensors.torch import load_file
from torch import Tensor

from unifier.data.source import user_cache
from unifier.files import print_status
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

INDEX_NAME = "index.json"
"""Name of the file that describes a packed data set. The file is written last."""

OWN_NAMES = re.compile(r".+\.(safetensors|pt|lengths|vocabulary\.json)")
"""Names of the other files of a packed data set."""

ROOM_VARIABLE = "UNIFIER_SHARDS_GB"
"""The variable with the largest size of the local folder in gigabytes."""

DEFAULT_ROOM_GB = 20.0

SHARDS = "shards"
"""Name of the folder of copies in the cache."""

DRAFT_NAME = "draft"
"""Name of the file that is being copied. Only the process with the lock of the folder writes this file."""

COPY_CHUNK_BYTES = 1 << 20
ATTEMPTS = 3
"""Number of attempts to read a remote file, because connections are unreliable."""


class PackFile(NamedTuple):
    """A file of a packed data set, as described in its index."""

    name: str
    size: int
    """The number of bytes."""
    sha256: str


@final
class PackStore:
    """The files of a packed data set in a folder or at a URL.

    Args:
        address: The path of a folder, or the URL of a folder that fsspec can read.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.is_local = "://" not in address
        self._checked = set[str]()
        """Names of the local files whose hash is known to be right."""
        self._reading: Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the content for `pickle`, without the thread."""
        return {**vars(self), "_reading": None}

    def locate(self, name: str) -> str:
        """Return the path or the URL of a file, for messages."""
        return f"{self.address}/{name}"

    def read(self, name: str, file: PackFile | None = None) -> bytes:
        """Return the content of a small file.

        Args:
            name: The name of the file.
            file: The expected size and hash, or None to accept any content.

        Raises:
            InputError: The file cannot be read, or differs from `file`.
        """
        content = b"".join(self._chunks(name))
        if file is not None:
            self._check(file, len(content), hashlib.sha256(content).hexdigest())
        return content

    def tensors(self, file: PackFile, window: Collection[PackFile] = ()) -> Mapping[str, Tensor]:
        """Return the memory-mapped tensors of a shard. A remote shard is copied first, if it has no local copy.

        Args:
            file: The shard.
            window: Shards that are needed soon. Other copies are deleted first.
        """
        while True:
            path = self.path(file, window)
            with suppress(FileNotFoundError):  # Another process may have deleted the copy.
                if path not in OPENED:
                    OPENED[path] = load_file(path)
                return OPENED[path]

    def path(self, file: PackFile, window: Collection[PackFile] = ()) -> Path:
        """Return the path of a local file with the content of `file`.

        Raises:
            InputError: The file cannot be read, differs from the index, or is larger than the room for copies.
        """
        if self.is_local:
            path = Path(self.address) / file.name
            if file.name not in self._checked:
                self._check(file, *_measure(self._chunks(file.name)))
                self._checked.add(file.name)
            return path
        path = copies_folder() / file.sha256
        if not self._is_whole(path, file):
            keep = {other.sha256 for other in window}
            self._copy(file, keep, force=True)
        return path

    def read_ahead(self, files: Sequence[PackFile]) -> None:
        """Copy remote shards in a thread, in order, as far as there is room without deleting one of them."""
        if self.is_local or (self._reading is not None and self._reading.is_alive()):
            return
        if missing := [file for file in files if not (copies_folder() / file.sha256).exists()]:
            self._reading = Thread(target=self._copy_all, args=(missing, {file.sha256 for file in files}), daemon=True)
            self._reading.start()

    def _copy_all(self, files: Sequence[PackFile], keep: Collection[str]) -> None:
        with suppress(InputError, OSError):  # The error occurs again when the shard is needed.
            for file in files:
                if not self._copy(file, keep, force=False):
                    return

    def _copy(self, file: PackFile, keep: Collection[str], *, force: bool) -> bool:
        """Copy a remote file. Return False if there is no room without deleting the copies in `keep`.

        Args:
            file: The file.
            keep: Names of copies that are deleted last.
            force: Delete the copies in `keep`, too, if there is no room otherwise.
        """
        folder = copies_folder()
        with _lock(folder):
            path, draft = folder / file.sha256, folder / DRAFT_NAME
            if path.exists():  # Another process has copied the file in the meantime.
                return True
            draft.unlink(missing_ok=True)
            if not _make_room(folder, file.size, keep, force=force):
                return False
            try:
                with draft.open("wb") as copy:
                    size, digest = _measure(self._chunks(file.name), copy)
                self._check(file, size, digest)
                draft.rename(path)
            finally:
                draft.unlink(missing_ok=True)
        self._checked.add(file.name)
        return True

    def _is_whole(self, path: Path, file: PackFile) -> bool:
        """Return True if a copy exists and has the right hash, and note the time of its use. Delete a damaged copy."""
        try:
            os.utime(path)
            if file.name in self._checked:
                return True
            with path.open("rb") as copy:
                size, digest = _measure(iter(lambda: copy.read(COPY_CHUNK_BYTES), b""))
        except FileNotFoundError:
            return False
        if (size, digest) != (file.size, file.sha256):
            print_status(f"{path}: a damaged copy of {self.locate(file.name)}; it is deleted and copied again")
            path.unlink(missing_ok=True)
            return False
        self._checked.add(file.name)
        return True

    def _check(self, file: PackFile, size: int, digest: str) -> None:
        if (size, digest) != (file.size, file.sha256):
            raise InputError(
                f"{self.locate(file.name)}: missing bytes, or changed since it was packed ({size:,} bytes, not "
                f"{file.size:,}; SHA-256 hash {digest[:16]}, not {file.sha256[:16]}): restore the file, or pack the "
                "data again"
            )

    def _chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file. An attempt that fails in the middle continues at the same byte."""
        done = 0
        for attempt in range(ATTEMPTS):
            try:
                with open_remote(self.locate(name), "rb") as file:
                    file.seek(done)
                    while chunk := file.read(COPY_CHUNK_BYTES):
                        done += len(chunk)
                        yield chunk
                return
            except FileNotFoundError as error:
                raise InputError(f"{self.locate(name)}: no such file; give the folder or URL of packed data") from error
            except InputError:
                raise
            except Exception as error:  # File systems of fsspec raise the exceptions of many libraries.
                if self.is_local or attempt == ATTEMPTS - 1:
                    raise InputError(f"{self.locate(name)} cannot be read: {one_line(error)}") from error
                time.sleep(attempt)


OPENED: dict[Path, Mapping[str, Tensor]] = {}
"""The memory-mapped tensors of this process. Before a copy is deleted, its tensors are removed."""


def open_remote(address: str, mode: str) -> Any:
    """Open a path or URL with fsspec. Raises InputError if no installed package supports the protocol."""
    import fsspec

    try:
        opened: Any = fsspec.open(address, mode)
        return opened.open()
    except (ImportError, ValueError) as error:
        raise InputError(f"{address} cannot be opened: {one_line(error)}") from error


def remote_folder(address: str) -> Callable[[str, bytes], None]:
    """Return a function that writes a file, given its name and content, into a folder or to a URL.

    Raises:
        InputError: The folder contains other files than those of an interrupted pack, or cannot be written.
    """
    import fsspec

    try:
        system, root = fsspec.url_to_fs(address)
        names = {Path(path).name for path in system.ls(root, detail=False)} if system.exists(root) else set[str]()
    except Exception as error:  # File systems of fsspec raise the exceptions of many libraries.
        raise InputError(f"{address} cannot be opened: {one_line(error)}") from error
    if INDEX_NAME in names or any(not OWN_NAMES.fullmatch(name) for name in names):
        raise InputError(f"{address} is not empty: give a new folder for packed data")

    def write(name: str, content: bytes) -> None:
        try:
            system.makedirs(root, exist_ok=True)
            system.pipe_file(f"{root}/{name}", content)
        except Exception as error:
            raise InputError(f"{address}/{name} cannot be written: {one_line(error)}") from error

    return write


def copies_folder() -> Path:
    """Return the folder of local copies, `SHARDS` in $UNIFIER_CACHE or in the user's cache."""
    given = os.environ.get("UNIFIER_CACHE")
    root = user_cache() if given in (None, "", "off") else Path(given)
    if root is None:
        raise InputError("there is no home folder for copies of shards: set UNIFIER_CACHE to a folder")
    return _create(root / SHARDS)


@cache
def _create(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def room() -> int:
    """Return the largest size of the folder of copies in bytes."""
    text = os.environ.get(ROOM_VARIABLE) or str(DEFAULT_ROOM_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = 0.0
    if not 0 < gigabytes < float("inf"):
        raise InputError(f"{ROOM_VARIABLE}={text}: a number of gigabytes above 0 is expected")
    return int(gigabytes * 1e9)


def check_room(address: str, largest: int) -> None:
    """Raise InputError if the folder of copies has no room for a shard of `largest` bytes."""
    if room() < largest:
        raise InputError(
            f"{address}: a shard has {largest / 1e9:.3g} GB, but {ROOM_VARIABLE}={room() / 1e9:.3g} leaves no room for "
            "it: give more room, or pack smaller shards"
        )


def _make_room(folder: Path, size: int, keep: Collection[str], *, force: bool) -> bool:
    """Delete copies, the least recently used first, until there is room for a file. Return False without room."""
    files = [(path.name in keep, path.stat(), path) for path in folder.iterdir() if path.name != LOCK_NAME]
    excess = sum(status.st_size for _, status, _ in files) + size - room()
    order = sorted((kept, status.st_mtime_ns, status.st_size, path) for kept, status, path in files)
    if excess > sum(length for kept, _, length, _ in order if force or not kept):
        return False
    for _, _, length, path in order:
        if excess > 0:
            OPENED.pop(path, None)
            path.unlink(missing_ok=True)
            excess -= length
    return True


LOCK_NAME = ".lock"


@contextmanager
def _lock(folder: Path) -> Generator[None]:
    """Wait for the lock of the folder, which one thread of one process has at a time."""
    with (folder / LOCK_NAME).open("w") as file:
        with suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _measure(chunks: Iterator[bytes], copy: Any = None) -> tuple[int, str]:
    """Return the size and the SHA-256 hash of a content, and write the content to the file `copy` if it is given."""
    size, digest = 0, hashlib.sha256()
    for chunk in chunks:
        size += len(chunk)
        digest.update(chunk)
        if copy is not None:
            copy.write(chunk)
    return size, digest.hexdigest()
