"""The cache of encoded inputs and of tokenizer statistics.

Each cache entry is a folder, which is written completely or not at all.
"""

import hashlib
import inspect
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any, final

import numpy as np
import soundfile
from safetensors.torch import load_file, save
from torch import Tensor

import unifier_tokenizers
from unifier.data.dataset import Examples, open_split
from unifier.data.encoding import EncodedSplit, encode_units, failure_reason, ordered_map, yield_readable
from unifier.data.packed import load_statistics
from unifier.data.readers import hash_files
from unifier.data.source import (
    SPLITS,
    BadExamples,
    Example,
    Source,
    describe_example,
    name_of,
    readable_examples,
    user_cache,
)
from unifier.data.storage import RaggedArray
from unifier.files import print_status
from unifier.folders import lock_temporary, remove_unlocked
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer, Units
from unifier_tokenizers.audio import AudioTokenizer

MAX_CACHE_BYTES = 20 * 2**30
"""Maximum cache size in bytes. Above the maximum size, the least recently used entries are deleted. The newest entry is
never deleted."""

DRAFT_PREFIX = "draft-"
"""Prefix for the folder names of drafts, which are unfinished cache entries."""

DRAFT_SECONDS = 24 * 60 * 60
"""Age in seconds after which an unfinished entry may be deleted.

By then, the process that wrote the entry has probably ended.
"""

SEAL_FILE = "seal"
"""Name of the last file that is written to an entry. The seal file contains a hash of the entry's key and other
files."""

INDEX_FILE = "index.json"
"""Name of an entry's file with the rows of examples, the failures, and the layouts of the arrays."""

STATISTICS_FILE = "buffers.safetensors"
"""Name of the file with a tokenizer's buffers, which contain statistics of training examples."""

CODE_FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "datasets", Path(unifier_tokenizers.__file__).parent)
"""Folders of the code that reads and encodes examples. If any file in these folders changes, older cache entries are
not used."""

KEY_LIBRARIES = ("numpy", "pillow", "soundfile", "torch", "torchaudio")
"""Libraries that affect encoded values. The versions of these libraries are part of each cache key."""

FIT_SAMPLES = 50
"""Maximum number of sounds from which a tokenizer's mean and standard deviation are estimated."""


def cache_folder() -> Path | None:
    """Return the folder of all cache entries, inside $UNIFIER_CACHE or the user's cache folder.

    Returns None if $UNIFIER_CACHE is "off", or if $UNIFIER_CACHE is not set and the user has no home folder.
    """
    given = os.environ.get("UNIFIER_CACHE") or user_cache()
    return None if given is None or given == "off" else Path(given) / "encoded"


def lookup(root: Path, key: str) -> Path | None:
    """Return the folder of the cache entry with the given key, or None if there is no valid entry.

    If the seal file of an entry contains a wrong hash, a message is printed and the entry is deleted.
    """
    entry = _entry_path(root, key)
    if not entry.exists():
        return None
    with suppress(OSError, InputError, ValueError):
        if (entry / SEAL_FILE).read_text() == _seal(key, entry):
            with suppress(OSError):  # A read-only cache cannot store the time of use.
                os.utime(entry)
            return entry
    print_status(f"{entry}: damaged cache entry; the entry is deleted and built again", sys.stderr)
    rmtree(entry, ignore_errors=True)
    return None


@contextmanager
def open_for_write(root: Path, key: str) -> Generator[Path]:
    """Yield a folder for new files. If the `with` block succeeds, the folder becomes the cache entry of the key.

    If two processes write an entry for one key, only the entry that is finished first is stored. Each process can still
    read its own files. Drafts of killed processes are removed.
    """
    root.mkdir(parents=True, exist_ok=True)
    remove_unlocked(root, DRAFT_PREFIX)
    draft = root / f"{DRAFT_PREFIX}{secrets.token_hex(8)}"
    draft.mkdir()
    with ExitStack() as lock:
        with suppress(OSError):  # Some file systems have no locks.
            lock.enter_context(lock_temporary(draft))
        try:
            yield draft
            (draft / SEAL_FILE).write_text(_seal(key, draft))
            with suppress(OSError):  # Another process may already have stored the entry.
                draft.rename(_entry_path(root, key))
        finally:
            rmtree(draft, ignore_errors=True)
    _evict(root, _entry_path(root, key))


@final
class EncodedCache:
    """The encoded inputs (values and positions) of all examples of a source.

    Args:
        values: Values of all examples.
        positions: Positions of all examples.
        rows: Mapping from an example's identity to its row in `values` and `positions`.
        failures: Mapping from an example's identity to the reason why the example cannot be encoded.
        is_new: True if this run encoded the examples, False if the encoded examples were loaded from the cache.
    """

    def __init__(
        self,
        values: RaggedArray,
        positions: RaggedArray,
        rows: Mapping[str, int],
        failures: Mapping[str, str],
        *,
        is_new: bool,
    ) -> None:
        self.values, self.positions, self.rows, self.failures = values, positions, rows, failures
        self.is_new = is_new

    def split(
        self,
        examples: Examples[Any],
        head: Head,
        *,
        check: Callable[[Units], None] | None = None,
        bad_examples: BadExamples = "stop",
        desc: str = "examples",
    ) -> tuple[EncodedSplit, list[str]]:
        """Return the result of `encode_split` for the given examples, with encoded inputs from the cache."""
        encoded = EncodedSplit()
        skipped: dict[int, str] = {}
        results = (
            self._find(examples, index, identity, head, check)
            for index, identity in enumerate(examples.identities() or ())
        )
        rows: list[int] = []
        for index, (row, target) in yield_readable(results, skipped, bad_examples, desc):
            rows.append(row)
            encoded.add_target(target, index)
        encoded.values, encoded.positions = self.values.select(rows), self.positions.select(rows)
        return encoded, list(skipped.values())

    def _find(
        self,
        examples: Examples[Any],
        index: int,
        identity: str,
        head: Head,
        check: Callable[[Units], None] | None,
    ) -> tuple[int, Tensor] | str:
        """Return the row and the encoded target of an example, or the reason why the example cannot be encoded."""
        if identity in self.failures:
            return self.failures[identity]
        try:
            row, target = self.rows[identity], head.encode(examples.target(index))
            units = Units(self.values[row], self.positions[row])
            if check is not None:
                check(units)
            head.check_target(units, target)
            return row, target
        except (ValueError, OSError) as error:
            return failure_reason(examples, index, error)


def load_or_encode(
    source: Source, tokenizer: Tokenizer, *, bad_examples: BadExamples = "stop", num_workers: int | None = None
) -> EncodedCache | None:
    """Load the encoded inputs of a source from the cache. If the cache has no entry, encode and store the inputs.

    Returns None if nothing can be cached: the tokenizer has no key, the source has no hash, an example has no identity,
    or the cache folder cannot be written. Raises InputError if `encode_split` would raise InputError.
    """
    splits = {name: open_split(source, name) for name in SPLITS}
    identities = {name: _identities(examples) for name, examples in splits.items()}
    distinct = {identity for split in identities.values() for identity in split}
    root, key = cache_folder(), _key(source, tokenizer, sorted(distinct)) if all(identities.values()) else None
    if root is None or key is None:
        return None
    if entry := lookup(root, key):
        with suppress(OSError):  # Another process may have evicted the entry.
            cached = _load(entry)
            pairs = zip(splits.values(), identities.values(), strict=True)
            if not any(_is_recovered(cached.failures, examples, names, tokenizer) for examples, names in pairs):
                print_status(f"{name_of(source)}: the examples are already encoded; reading them from {entry}")
                return cached
            rmtree(entry, ignore_errors=True)
    try:
        with open_for_write(root, key) as folder:
            values, positions = RaggedArray(folder / "values"), RaggedArray(folder / "positions")
            rows: dict[str, int] = {}
            failures: dict[str, str] = {}
            count = 0  # A repeated example is written twice, so the count may exceed len(rows).
            for name, examples in splits.items():
                names, skipped, desc = identities[name], dict[int, str](), f"{name_of(source)}, {name}"
                results = ordered_map(examples, partial(encode_units, tokenizer), num_workers=num_workers, desc=desc)
                for index, units in yield_readable(results, skipped, bad_examples, desc):
                    rows[names[index]] = count
                    count += 1
                    values.append(units[0])
                    positions.append(units[1])
                failures |= {names[index]: reason for index, reason in skipped.items()}
            lengths = values.lengths().tolist()
            layout = {"values": _array_layout(values), "positions": _array_layout(positions)}
            content = {"rows": rows, "failures": failures, "lengths": lengths, **layout}
            (folder / INDEX_FILE).write_text(json.dumps(content))
            cached = EncodedCache(values, positions, rows, failures, is_new=True)
    except OSError as error:
        print_status(f"{name_of(source)}: the encoded data cannot be stored in {root}: {error.strerror}", sys.stderr)
        return None
    print_status(f"{name_of(source)}: the examples are encoded, and stored for later runs in {root}")
    return cached


def fit_once(tokenizer: AudioTokenizer, source: Source, *, bad_examples: BadExamples = "stop") -> None:
    """Load tokenizer statistics from the cache, or compute statistics from at most `FIT_SAMPLES` train examples.

    The train examples are evenly spaced in the split. If bad_examples is "stop", the first example that cannot be
    encoded raises an InputError. A packed source contains the statistics.
    """
    if load_statistics(tokenizer, source):
        return
    examples, buffers = open_split(source, "train"), dict(tokenizer.named_buffers())
    identities, root = _identities(examples), cache_folder()
    shapes = [f"{name} {tuple(buffer.shape)}" for name, buffer in buffers.items()]
    key = _key(source, tokenizer, [*identities, *shapes, bad_examples]) if identities else None
    if root is not None and key is not None and (entry := lookup(root, key)):
        with suppress(OSError):  # Another process may have deleted the entry.
            for name, buffer in load_file(entry / STATISTICS_FILE).items():
                buffers[name].copy_(buffer)
            return
    encodable = Examples(
        range(len(examples)), partial(_encodable, tokenizer, examples), partial(describe_example, examples)
    )
    samples = readable_examples(encodable, bad_examples=bad_examples, max_examples=FIT_SAMPLES)
    inputs = (example.input for example in samples)
    if (first := next(inputs, None)) is None:
        raise InputError(
            f"{name_of(source)}: none of its training examples can be read: check the files of the data set"
        )
    tokenizer.fit(chain([first], inputs))
    if root is not None and key is not None:
        content = save({name: buffer.contiguous() for name, buffer in buffers.items()})
        with suppress(OSError), open_for_write(root, key) as folder:
            (folder / STATISTICS_FILE).write_bytes(content)


def _entry_path(root: Path, key: str) -> Path:
    return root / hashlib.sha256(key.encode()).hexdigest()[:32]


def _seal(key: str, folder: Path) -> str:
    """Return the hash of a key and of all files in a folder except the seal file."""
    files = {path.name: path for path in sorted(folder.iterdir()) if path.name != SEAL_FILE}
    return hashlib.sha256(f"{key} {hash_files(files)}".encode()).hexdigest()


def _evict(root: Path, newest: Path) -> None:
    """Delete the least recently used entries until the cache has at most `MAX_CACHE_BYTES`.

    The newest entry and recent drafts are never deleted.
    """
    entries: list[tuple[float, Path, int]] = []
    for folder in root.iterdir():
        with suppress(OSError):  # Another process may be deleting the folder.
            entries.append((folder.stat().st_mtime, folder, sum(file.stat().st_size for file in folder.iterdir())))
    excess = sum(size for _, _, size in entries) - MAX_CACHE_BYTES
    for used, folder, size in sorted(entries):
        is_draft = folder.name.startswith(DRAFT_PREFIX) and time.time() - used < DRAFT_SECONDS
        if excess > 0 and folder != newest and not is_draft:
            rmtree(folder, ignore_errors=True)
            excess -= size


def _is_recovered(
    failures: Collection[str], examples: Sequence[Example], identities: Sequence[str], tokenizer: Tokenizer
) -> bool:
    """Return True if an earlier failed example can be encoded now, for example because its file was repaired."""
    for index, identity in enumerate(identities):
        if identity in failures:
            with suppress(ValueError, OSError):
                tokenizer.encode(examples[index].input)
                return True
    return False


def _encodable(tokenizer: AudioTokenizer, examples: Sequence[Example], index: int) -> Example:
    """Return an example. Raises InputError with the example's name if the example cannot be read or encoded."""
    try:
        example = examples[index]
        tokenizer.encode(example.input)
    except (ValueError, OSError) as error:
        raise InputError(failure_reason(examples, index, error)) from error
    return example


def _identities(examples: Sequence[Example]) -> list[str]:
    """Return the identity of each example, or an empty list if the examples have no identities."""
    return examples.identities() or [] if isinstance(examples, Examples) else []


def _key(source: Source, tokenizer: Tokenizer, content: Sequence[str]) -> str | None:
    """Return the key of a cache entry: a JSON text with everything that determines the content of the entry.

    The key covers the data, the tokenizer's settings, the code and the library versions. Returns None if the tokenizer
    has no key, the source has no hash, or the tokenizer or the source has a class without a source file.
    """
    settings = tokenizer.encoding_key()
    if settings is None or (data := getattr(source, "sha256", None)) is None:
        return None
    owners = (tokenizer, source, getattr(source, "full", source))
    classes = {base for owner in owners for base in type(owner).__mro__}
    try:
        class_files = {
            Path(inspect.getfile(base)) for base in classes if base.__module__ not in ("builtins", "abc", "typing")
        }
    except (OSError, TypeError):
        return None
    files = sorted(class_files.union(*(folder.rglob("*.py") for folder in CODE_FOLDERS)))
    key = {
        "data": data,
        "content": hashlib.sha256("\n".join(content).encode()).hexdigest(),
        "tokenizer": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
        "settings": settings,
        "code": hash_files({str(path): path for path in files}),
        "libraries": {name: version(name) for name in KEY_LIBRARIES} | {"libsndfile": soundfile.__libsndfile_version__},
    }
    return json.dumps(key, sort_keys=True)


def _array_layout(ragged: RaggedArray) -> dict[str, Any]:
    first = ragged[0].movedim(-1, 0).numpy()
    return {"dtype": first.dtype.str, "row_shape": first.shape[1:]}


def _load(entry: Path) -> EncodedCache:
    """Open a cache entry. The arrays are memory-mapped, so values are read from disk only if needed."""
    index = json.loads((entry / INDEX_FILE).read_text())

    def load_array(name: str) -> RaggedArray:
        dtype, shape = index[name]["dtype"], (sum(index["lengths"]), *index[name]["row_shape"])
        return RaggedArray.from_array(np.memmap(entry / name, dtype, "r", shape=shape), index["lengths"])

    return EncodedCache(load_array("values"), load_array("positions"), index["rows"], index["failures"], is_new=False)
