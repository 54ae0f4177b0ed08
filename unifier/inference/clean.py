"""The cache of encoded data and of copied shards: its size, and its removal."""

import re
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple, final

from unifier.data.cache import DRAFT_PREFIX, cache_folder
from unifier.data.shard_folder import SHARDS
from unifier.folders import remove_unlocked
from unifier_tokenizers import InputError

ENTRY_NAME = re.compile(r"[0-9a-f]{32}")
"""The name of an entry's folder. Other files in the cache's folder belong to the user."""

COPY_NAME = re.compile(r"[0-9a-f]{64}")
"""The name of a copied shard, which is its hash."""


@final
class CacheSize(NamedTuple):
    """The size of the cache."""

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
    """Delete all entries of the cache, and return the size of the remaining entries.

    A run that has already opened an entry keeps its data. Drafts that another process is writing remain.

    Raises:
        InputError: The cache is turned off.
    """
    folder = measure_cache().folder
    remove_unlocked(folder, DRAFT_PREFIX)
    for entry in _entries(folder):
        if entry.is_dir():
            rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    return measure_cache()


def _entries(folder: Path) -> list[Path]:
    """Return the folders of encoded data, and the copies of shards beside the folder of the cache."""
    encoded = [path for path in folder.glob("*/") if ENTRY_NAME.fullmatch(path.name) and not path.is_symlink()]
    shards = [path for path in (folder.parent / SHARDS).glob("*") if COPY_NAME.fullmatch(path.name)]
    return encoded + shards


def _size(entry: Path) -> int:
    files = [entry] if entry.is_file() else [path for path in entry.rglob("*") if not path.is_dir()]
    return sum(path.lstat().st_size for path in files)
