"""The cache of encoded data and of copied shards: its size, and its removal."""

import re
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple, final

from unifier.data.cache import DRAFT_PREFIX, cache_folder
from unifier.data.shard_folder import SHARDS
from unifier.folders import folder_size, remove_unlocked
from unifier_tokenizers import InputError

ENTRY_NAME = re.compile(r"[0-9a-f]{32}")
"""The name of an entry's folder. Other files in the cache's folder belong to the user."""

COPY_NAME = re.compile(r"[0-9a-f]{64}")
"""The name of a copied shard, which is its hash."""


@final
class CacheSize(NamedTuple):
    """The number and the size of entries of the cache."""

    folder: Path
    entries: int
    size: int
    """The size of all entries in bytes."""


def measure_cache() -> CacheSize:
    """Return the folder and the size of the cache. Raises InputError if the cache is turned off."""
    if (folder := cache_folder()) is None:
        raise InputError("UNIFIER_CACHE=off turns the cache off: set UNIFIER_CACHE to a folder, or unset it")
    entries = _entries(folder)
    return CacheSize(folder, len(entries), sum(_size(entry) for entry in entries))


def clear_cache() -> CacheSize:
    """Delete all entries of the cache, and return the number and the size of the deleted entries.

    A run that has already opened an entry keeps its data. Drafts that another process is writing remain.

    Raises:
        InputError: The cache is turned off.
    """
    folder = measure_cache().folder
    remove_unlocked(folder, DRAFT_PREFIX)
    sizes = {entry: _size(entry) for entry in _entries(folder)}
    for entry in sizes:
        if entry.is_dir():
            rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    deleted = [size for entry, size in sizes.items() if not entry.exists()]
    return CacheSize(folder, len(deleted), sum(deleted))


def _entries(folder: Path) -> list[Path]:
    """Return the folders of encoded data, and the copies of shards beside the folder of the cache."""
    encoded = [path for path in folder.glob("*/") if ENTRY_NAME.fullmatch(path.name) and not path.is_symlink()]
    shards = [path for path in (folder.parent / SHARDS).glob("*") if COPY_NAME.fullmatch(path.name)]
    return encoded + shards


def _size(entry: Path) -> int:
    with suppress(FileNotFoundError):  # A run may delete the entry in the meantime.
        return entry.lstat().st_size if entry.is_file() else folder_size(entry)
    return 0
