"""A cache of folders: one run writes them, whole or not at all, and later runs read them.

The encoded inputs and statistics of a data set, cached for later runs."""

import hashlib
import inspect
import json
import os
import secrets
import sys
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer
from unifier_tokenizers.audio import AudioTokenizer

MAX_CACHE_BYTES = 20 * 2**30
"""Maximum cache size in bytes. When a new folder takes it beyond that, the least recently used ones are deleted; the
newest is always kept."""


DRAFT_PREFIX = "draft-"
"""What the name of a folder begins with that somebody still writes into, or was stopped while writing."""


DAY = 24 * 60 * 60
"""Seconds after which nobody writes into a draft any more."""


SEAL_FILE = "seal"
"""The file that is written last: a hash of the key and of all other files."""


def cache_folder() -> Path | None:
    """Where they lie: $UNIFIER_CACHE, else the user's cache; None where that says "off", or there is neither."""
    given = os.environ.get("UNIFIER_CACHE") or user_cache()
    return None if given is None or given == "off" else Path(given) / "encoded"


def lookup(root: Path, key: str) -> Path | None:
    """The folder stored under this key, or None.

    One whose checksum does not match is reported, deleted and treated as missing.
    """
    folder = _place(root, key)
    if not folder.exists():
        return None
    with suppress(OSError, InputError, ValueError):
        if (folder / SEAL_FILE).read_text() == _seal(key, folder):
            with suppress(OSError):  # where they are only to be read
                os.utime(folder)
            return folder
    print_status(f"{folder}: damaged; rebuilding it", sys.stderr)
    rmtree(folder, ignore_errors=True)
    return None


@contextmanager
def open_for_write(root: Path, key: str) -> Generator[Path]:
    """A folder to write files into, which lie under the key once this ends well.

    Of two processes that make the same one the first is found later; both may go on reading what they opened.
    """
    root.mkdir(parents=True, exist_ok=True)
    draft = root / f"{DRAFT_PREFIX}{secrets.token_hex(8)}"
    draft.mkdir()
    try:
        yield draft
        (draft / SEAL_FILE).write_text(_seal(key, draft))
        with suppress(OSError):  # another process was faster
            draft.rename(_place(root, key))
    finally:
        rmtree(draft, ignore_errors=True)
    _make_room(root, _place(root, key))


def _place(root: Path, key: str) -> Path:
    return root / hashlib.sha256(key.encode()).hexdigest()[:32]


def _seal(key: str, folder: Path) -> str:
    files = {path.name: path for path in sorted(folder.iterdir()) if path.name != SEAL_FILE}
    return hashlib.sha256(f"{key} {hash_files(files)}".encode()).hexdigest()


def _make_room(root: Path, newest: Path) -> None:
    used: list[tuple[float, Path, int]] = []
    for folder in root.iterdir():
        with suppress(OSError):  # another process makes room too
            used.append((folder.stat().st_mtime, folder, sum(file.stat().st_size for file in folder.iterdir())))
    excess = sum(size for _, _, size in used) - MAX_CACHE_BYTES
    for then, folder, size in sorted(used):
        written = folder.name.startswith(DRAFT_PREFIX) and time.time() - then < DAY
        if excess > 0 and folder != newest and not written:
            rmtree(folder, ignore_errors=True)
            excess -= size


CODE_FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "datasets", Path(unifier_tokenizers.__file__).parent)
"""Folders of what reads and encodes: whatever changes there, nothing kept before is used."""


KEY_LIBRARIES = ("numpy", "pillow", "soundfile", "torch", "torchaudio")


FIT_SAMPLES = 50
"""Sounds that say a set's mean and spread."""


STATISTICS_FILE = "buffers.safetensors"


@final
class EncodedCache:
    """The units of all examples of a set, whichever split each one is in."""

    def __init__(
        self, values: RaggedArray, positions: RaggedArray, rows: Mapping[str, int], bad: Mapping[str, str]
    ) -> None:
        """`rows` and `bad` are by an example's identity: its place in the other two, or why it cannot be encoded."""
        self.values, self.positions, self.rows, self.failures = values, positions, rows, bad

    def split(
        self, examples: Examples[Any], head: Head, *, bad_examples: BadExamples = "stop", desc: str = "examples"
    ) -> tuple[EncodedSplit, list[str]]:
        """What `encode_split` gives for these examples, no input read."""
        encoded = EncodedSplit()
        skipped: dict[int, str] = {}
        found = (self._one(examples, index, own, head) for index, own in enumerate(examples.identities() or ()))
        rows: list[int] = []
        for index, (row, target) in yield_readable(found, skipped, bad_examples, desc):
            rows.append(row)
            encoded.add_target(target, index)
        encoded.values, encoded.positions = self.values.select(rows), self.positions.select(rows)
        return encoded, list(skipped.values())

    def _one(self, examples: Examples[Any], index: int, identity: str, head: Head) -> tuple[int, Tensor] | str:
        if identity in self.failures:
            return self.failures[identity]
        try:
            return self.rows[identity], head.encode(examples.target(index))
        except (ValueError, OSError) as error:
            return failure_reason(examples, index, error)


def load_or_encode(
    source: Source, tokenizer: Tokenizer, *, bad_examples: BadExamples = "stop", num_workers: int | None = None
) -> EncodedCache | None:
    """The units of a source, as an earlier run kept them, or encoded and kept now.

    None where they cannot be kept: the tokenizer has no key, the source no hash, an example no identity, the disk no
    room. Raises InputError as `encode_split` does.
    """
    splits = {name: open_split(source, name) for name in SPLITS}
    identities = {name: _identities(examples) for name, examples in splits.items()}
    every = {one for some in identities.values() for one in some}
    root, key = cache_folder(), _key(source, tokenizer, sorted(every)) if all(identities.values()) else None
    if root is None or key is None:
        return None
    if place := lookup(root, key):
        with suppress(OSError):  # another process made room
            kept = _opened(place)
            listed = zip(splits.values(), identities.values(), strict=True)
            if not any(_mended(kept.failures, examples, own, tokenizer) for examples, own in listed):
                print_status(f"{name_of(source)}: already encoded, reading {place}")
                return kept
            rmtree(place, ignore_errors=True)
    try:
        with open_for_write(root, key) as folder:
            values, positions = RaggedArray(folder / "values"), RaggedArray(folder / "positions")
            rows: dict[str, int] = {}
            bad: dict[str, str] = {}
            count = 0  # an example that is listed twice has two places
            for name, examples in splits.items():
                own, skipped, said = identities[name], dict[int, str](), f"{name_of(source)}, {name}"
                found = ordered_map(examples, partial(encode_units, tokenizer), num_workers=num_workers, desc=said)
                for index, (each, places) in yield_readable(found, skipped, bad_examples, said):
                    rows[own[index]] = count
                    count += 1
                    values.append(each)
                    positions.append(places)
                bad |= {own[index]: why for index, why in skipped.items()}
            lengths = values.lengths().tolist()
            layout = {"values": _layout(values), "positions": _layout(positions)}
            (folder / "index.json").write_text(json.dumps({"rows": rows, "bad": bad, "lengths": lengths, **layout}))
            kept = EncodedCache(values, positions, rows, bad)
    except OSError as error:
        print_status(f"{name_of(source)}: not kept for later runs in {root}: {error.strerror}", sys.stderr)
        return None
    print_status(f"{name_of(source)}: encoded, and kept for later runs in {root}")
    return kept


def _mended(bad: Collection[str], examples: Sequence[Example], identities: Sequence[str], tokenizer: Tokenizer) -> bool:
    """Whether an example that could not be encoded can be now: it may have been a disk's fault."""
    for index, own in enumerate(identities):
        if own in bad:
            with suppress(ValueError, OSError):
                tokenizer.encode(examples[index].input)
                return True
    return False


def fit_once(tokenizer: AudioTokenizer, source: Source, *, bad_examples: BadExamples = "stop") -> None:
    """Fit a tokenizer to at most `MOST` training examples, evenly spaced; what an earlier run kept of that is read.

    Raises InputError at the first example that cannot be read or encoded, unless bad_examples is "skip".
    """
    examples, buffers = open_split(source, "train"), dict(tokenizer.named_buffers())
    own, root = _identities(examples), cache_folder()
    shapes = [f"{name} {tuple(buffer.shape)}" for name, buffer in buffers.items()]
    key = _key(source, tokenizer, [*own, *shapes, bad_examples]) if own else None
    if root is not None and key is not None and (place := lookup(root, key)):
        for name, found in load_file(place / STATISTICS_FILE).items():
            buffers[name].copy_(found)
        return
    encodable = Examples(
        range(len(examples)), partial(_encodable, tokenizer, examples), partial(describe_example, examples)
    )
    raws = (example.input for example in readable_examples(encodable, bad_examples=bad_examples, max_examples=FIT_SAMPLES))
    if (first := next(raws, None)) is None:
        raise InputError(f"{name_of(source)}: none of its training examples can be read")
    tokenizer.fit(chain([first], raws))
    if root is not None and key is not None:
        content = save({name: buffer.contiguous() for name, buffer in buffers.items()})
        with suppress(OSError), open_for_write(root, key) as folder:
            (folder / STATISTICS_FILE).write_bytes(content)


def _encodable(tokenizer: AudioTokenizer, examples: Sequence[Example], index: int) -> Example:
    """An example; raises InputError with its name where it cannot be read or encoded."""
    try:
        example = examples[index]
        tokenizer.encode(example.input)
    except (ValueError, OSError) as error:
        raise InputError(failure_reason(examples, index, error)) from error
    return example


def _identities(examples: Sequence[Example]) -> list[str]:
    """What tells each example from all others; empty where something cannot be told."""
    return examples.identities() or [] if isinstance(examples, Examples) else []


def _key(source: Source, tokenizer: Tokenizer, what: Sequence[str]) -> str | None:
    """All that `what` is found from: files, settings, code; None where one of them is not known."""
    settings = tokenizer.encoding_key()
    if settings is None or (data := getattr(source, "sha256", None)) is None:
        return None
    classes = {one for part in (tokenizer, source, getattr(source, "source", source)) for one in type(part).__mro__}
    try:
        own = {Path(inspect.getfile(one)) for one in classes if one.__module__ not in ("builtins", "abc", "typing")}
    except (OSError, TypeError):  # a class that stands in no file
        return None
    files = sorted(own.union(*(folder.rglob("*.py") for folder in CODE_FOLDERS)))
    about = {
        "data": data,
        "what": hashlib.sha256("\n".join(what).encode()).hexdigest(),
        "tokenizer": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
        "settings": settings,
        "code": hash_files({str(path): path for path in files}),
        "libraries": {name: version(name) for name in KEY_LIBRARIES} | {"libsndfile": soundfile.__libsndfile_version__},
    }
    return json.dumps(about, sort_keys=True)


def _layout(packed: RaggedArray) -> dict[str, Any]:
    first = packed[0].movedim(-1, 0).numpy()
    return {"dtype": first.dtype.str, "sides": first.shape[1:]}


def _opened(place: Path) -> EncodedCache:
    index = json.loads((place / "index.json").read_text())

    def packed(name: str) -> RaggedArray:
        dtype, sides = index[name]["dtype"], index[name]["sides"]
        return RaggedArray.from_array(
            np.memmap(place / name, dtype, "r", shape=(sum(index["lengths"]), *sides)), index["lengths"]
        )

    return EncodedCache(packed("values"), packed("positions"), index["rows"], index["bad"])
