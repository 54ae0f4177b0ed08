"""A cache of folders: one run writes them, whole or not at all, and later runs read them."""

import hashlib
import os
import secrets
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from unifier.data.reading.files import hash_files
from unifier.data.saying import say
from unifier.data.source import user_cache
from unifier_tokenizers import InputError

LIMIT = 20 * 2**30
"""Maximum cache size in bytes. When a new folder takes it beyond that, the least recently used ones are deleted; the
newest is always kept."""

DRAFT = "draft-"
"""What the name of a folder begins with that somebody still writes into, or was stopped while writing."""

DAY = 24 * 60 * 60
"""Seconds after which nobody writes into a draft any more."""

SEAL = "seal"
"""The file that is written last: a hash of the key and of all other files."""


def cache() -> Path | None:
    """Where they lie: $UNIFIER_CACHE, else the user's cache; None where that says "off", or there is neither."""
    given = os.environ.get("UNIFIER_CACHE") or user_cache()
    return None if given is None or given == "off" else Path(given) / "encoded"


def find(root: Path, key: str) -> Path | None:
    """The folder stored under this key, or None.

    One whose checksum does not match is reported, deleted and treated as missing.
    """
    folder = _place(root, key)
    if not folder.exists():
        return None
    with suppress(OSError, InputError, ValueError):
        if (folder / SEAL).read_text() == _seal(key, folder):
            with suppress(OSError):  # where they are only to be read
                os.utime(folder)
            return folder
    say(f"{folder}: damaged; rebuilding it", sys.stderr)
    rmtree(folder, ignore_errors=True)
    return None


@contextmanager
def making(root: Path, key: str) -> Generator[Path]:
    """A folder to write files into, which lie under the key once this ends well.

    Of two processes that make the same one the first is found later; both may go on reading what they opened.
    """
    root.mkdir(parents=True, exist_ok=True)
    draft = root / f"{DRAFT}{secrets.token_hex(8)}"
    draft.mkdir()
    try:
        yield draft
        (draft / SEAL).write_text(_seal(key, draft))
        with suppress(OSError):  # another process was faster
            draft.rename(_place(root, key))
    finally:
        rmtree(draft, ignore_errors=True)
    _make_room(root, _place(root, key))


def _place(root: Path, key: str) -> Path:
    return root / hashlib.sha256(key.encode()).hexdigest()[:32]


def _seal(key: str, folder: Path) -> str:
    files = {path.name: path for path in sorted(folder.iterdir()) if path.name != SEAL}
    return hashlib.sha256(f"{key} {hash_files(files)}".encode()).hexdigest()


def _make_room(root: Path, newest: Path) -> None:
    used: list[tuple[float, Path, int]] = []
    for folder in root.iterdir():
        with suppress(OSError):  # another process makes room too
            used.append((folder.stat().st_mtime, folder, sum(file.stat().st_size for file in folder.iterdir())))
    excess = sum(size for _, _, size in used) - LIMIT
    for then, folder, size in sorted(used):
        written = folder.name.startswith(DRAFT) and time.time() - then < DAY
        if excess > 0 and folder != newest and not written:
            rmtree(folder, ignore_errors=True)
            excess -= size
