"""Packed data sets: encoded shards with an index, in a folder or at a URL."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cached_property, lru_cache
from pickle import UnpicklingError
from tempfile import NamedTemporaryFile
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from unifier.data.dataset import Examples
from unifier.data.encoding import EncodedSplit, encode_units
from unifier.data.inputs import AudioReader, ImageReader, InputReader, MidiReader, TextReader
from unifier.data.shard_folder import INDEX_NAME, PackFile, PackStore, check_room
from unifier.data.shards import Shards
from unifier.data.source import SPLITS, Example, ScoreRange, SplitName
from unifier.files import parse_json
from unifier.heads.head import Head
from unifier_tokenizers import Audio, InputError, Tokenizer, Vocabulary
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.text import MarkedText

PACK_FORMAT = 1
"""Version of the format of the index and the shards."""

ATTRIBUTES = ("labels", "score_range", "license", "dropped", "copies", "seconds")
"""Optional attributes of a source that are stored in the index."""

PACKED_READERS: Mapping[str, type[InputReader]] = {
    kind.__name__: kind for kind in (ImageReader, AudioReader, TextReader, MidiReader)
}

NUM_VERIFIED = 16
"""Number of validation examples that are encoded again, to check that the pack fits the tokenizer and the head."""


class StoredArray(NamedTuple):
    """A NumPy array in a file of raw examples, stored as a tensor."""

    tensor: Tensor


SAFE_CLASSES: list[Any] = [Audio, MarkedText, StoredArray]
"""Classes of raw inputs that `torch.load` may create, in addition to its own safe types."""


def to_stored(value: Any) -> Any:
    """Convert the arrays in a raw input or target to tensors, because `torch.load` reads no arrays safely."""
    if isinstance(value, np.ndarray):
        return StoredArray(torch.from_numpy(np.ascontiguousarray(value)))
    return value.item() if isinstance(value, np.generic) else _map(to_stored, value)


def from_stored(value: Any) -> Any:
    """Convert a result of `to_stored` back."""
    return value.tensor.numpy() if isinstance(value, StoredArray) else _map(from_stored, value)


def _map(convert: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: convert(part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(convert, value))
    return type(value)(map(convert, value)) if type(value) in (list, tuple) else value


def load_safely(content: bytes) -> Any:
    """Read what `torch.save` has written, without executing code. Raises UnpicklingError for other classes."""
    with torch.serialization.safe_globals(SAFE_CLASSES):
        return torch.load(io.BytesIO(content), weights_only=True)


def describe_reader(reader: object) -> dict[str, Any] | None:
    """Return the class and the settings of a source's attribute `reader` for the index, or None for other readers."""
    name = type(reader).__name__
    return {"class": name, **asdict(reader)} if PACKED_READERS.get(name) is type(reader) else None  # pyright: ignore[reportArgumentType]


@final
class PackedSource:
    """A packed data set as a source.

    The training examples are encoded, so their raw inputs cannot be read, except for the first example. The examples of
    val and test are also stored raw, because scores and reports need their targets and inputs.

    Args:
        address: The folder or the URL of the packed data set.

    Raises:
        InputError: The index is missing or broken, or there is no room for a shard.
    """

    name: str
    labels: tuple[str, ...]
    score_range: ScoreRange | None
    reader: InputReader

    def __init__(self, address: str) -> None:
        self._store = PackStore(address)
        content = self._store.read(INDEX_NAME)
        kinds: dict[str, type] = {"name": str, "splits": dict, "files": list, "attributes": dict, "window": int}
        self._index = parse_json(self._store.locate(INDEX_NAME), content, **kinds)
        if self._index.get("format") != PACK_FORMAT:
            raise InputError(
                f"{self._store.locate(INDEX_NAME)}: format {self._index.get('format')}, but {PACK_FORMAT} is expected: "
                "pack the data with this version of unifier"
            )
        self.name = self._index["name"]
        self.sha256 = hashlib.sha256(content).hexdigest()
        """The hash of the index, which contains the hashes of all other files."""
        self.skipped: Mapping[str, int] = self._index["skipped"]
        """The number of examples of each split that could not be encoded."""
        self.modality: Literal["text", "image", "audio"] = self._index["modality"]
        for name, value in self._index["attributes"].items():
            setattr(self, name, _READ_ATTRIBUTES.get(name, lambda stored: stored)(value))
        self._files = {name: PackFile(name, size, digest) for name, size, digest in self._index["files"]}
        if not self._store.is_local:
            check_room(self._store.address, max(file.size for file in self._files.values()))

    @property
    def data(self) -> str | None:
        """The setting `data` with which the data were packed, or None for the default."""
        return self._index["settings"].get("data")

    @property
    def origin(self) -> str:
        """The recipe and the settings with which the data were packed."""
        settings = self._index["settings"]
        return " ".join([self._index["recipe"], *(f"{name}={value}" for name, value in settings.items())])

    @cached_property
    def fitted(self) -> Mapping[str, Vocabulary | float]:
        """The vocabularies and numbers that the experiment has learned from the data."""
        values: dict[str, Vocabulary | float] = dict(self._index["numbers"])
        for name in self._index["vocabularies"]:
            with NamedTemporaryFile(suffix=".json") as file:
                file.write(self._read(f"{name}.vocabulary.json"))
                file.flush()
                values[name] = Vocabulary.load(file.name)
        return values

    def load_statistics(self, tokenizer: Tokenizer) -> None:
        """Copy the statistics of the training inputs into the buffers of a tokenizer."""
        buffers = dict(tokenizer.named_buffers())
        for name, stored in load(self._read("statistics.safetensors")).items():
            if name in buffers and buffers[name].shape == stored.shape:
                buffers[name].copy_(stored)

    def split(self, name: SplitName) -> Examples[int]:
        """Return the examples of one split. Reading the input of a train example raises InputError."""
        raw = RawSplit(self, name)
        return Examples(range(self._shards(name).lengths.shape[0]), raw.read, raw.locate, raw.target)

    def encoded(self, tokenizer: Tokenizer, head: Head) -> dict[SplitName, EncodedSplit]:
        """Return the encoded splits.

        Raises:
            InputError: The data were packed for another tokenizer or head, or are prepared in another way.
        """
        splits: dict[SplitName, EncodedSplit] = {
            name: EncodedSplit.from_shards(self._shards(name), scalar_targets=self._index["scalar_targets"])
            for name in SPLITS
        }
        val, examples = splits["val"], self.split("val")
        count = min(self._index["splits"]["val"]["counts"][0], NUM_VERIFIED)
        for row in range(count):
            units, target = encode_units(tokenizer, examples[row]), head.encode(examples[row].target)
            for part, new, stored in (
                ("values", units.values, val.values[row]),
                ("positions", units.positions, val.positions[row]),
                ("target", target, val.target(row)),
            ):
                if not _agree(new, stored):
                    raise InputError(
                        f"{self._store.address}: packed by `{self.origin}` for another tokenizer, head or data; "
                        f"the {part} of {examples.example_id(row)} differ: give the settings of the pack, or pack again"
                    )
        return splits

    @lru_cache(maxsize=2)  # noqa: B019  A run has few sources, which exist until its end.
    def raw_inputs(self, split: SplitName, shard: int) -> Sequence[Any]:
        """Return the raw inputs of a shard of val or test."""
        file = self._files[f"{split}-{shard:05}.inputs.pt"]
        return from_stored(self._load(file.name, self._store.path(file).read_bytes()))

    @lru_cache(maxsize=3)  # noqa: B019
    def raw_targets(self, split: SplitName) -> tuple[Sequence[Any], Sequence[str]]:
        """Return the raw targets of val or test, and the names of the examples in messages."""
        stored = self._load(f"{split}.targets.pt", self._read(f"{split}.targets.pt"))
        return from_stored(stored["targets"]), stored["names"]

    @cached_property
    def first_example(self) -> Example:
        """The first train example."""
        return Example(*from_stored(self._load("first.pt", self._read("first.pt"))))

    def locate(self, split: SplitName, row: int) -> tuple[int, int, str]:
        """Return the shard of a row, the row in the shard, and the path or URL of the shard."""
        shards = self._shards(split)
        shard = int(shards.locate(np.array(row)))
        return shard, int(row - shards.bounds[shard]), self._store.locate(shards.files[shard].name)

    def _shards(self, name: SplitName) -> Shards:
        counts = self._index["splits"][name]["counts"]
        files = [self._files[f"{name}-{k:05}.safetensors"] for k in range(len(counts))]
        lengths = np.frombuffer(self._read(f"{name}.lengths"), np.dtype("<i4")).reshape(-1, 2)
        return Shards(self._store, files, counts, lengths, self._index["window"])

    @lru_cache(maxsize=8)  # noqa: B019
    def _read(self, name: str) -> bytes:
        if name not in self._files:
            raise InputError(f"{self._store.locate(INDEX_NAME)}: broken (it lacks {name}); pack the data again")
        return self._store.read(name, self._files[name])

    def _load(self, name: str, content: bytes) -> Any:
        try:
            return load_safely(content)
        except (UnpicklingError, RuntimeError) as error:
            raise InputError(f"{self._store.locate(name)} cannot be read: {one_line(error)}") from error


@final
class RawSplit:
    """The raw examples of a split of a packed data set."""

    def __init__(self, source: PackedSource, split: SplitName) -> None:
        self._source = source
        self._split: SplitName = split

    def read(self, row: int) -> Example:
        """Return an example. Raises InputError for a train example other than the first."""
        if self._split == "train":
            return self._first(row)
        shard, place, _ = self._source.locate(self._split, row)
        return Example(self._source.raw_inputs(self._split, shard)[place], self.target(row))

    def target(self, row: int) -> Any:
        """Return the raw target of an example."""
        return self._first(row).target if self._split == "train" else self._source.raw_targets(self._split)[0][row]

    def locate(self, row: int) -> str:
        """Return the name of an example in messages."""
        if self._split != "train":
            return self._source.raw_targets(self._split)[1][row]
        _, place, shard = self._source.locate("train", row)
        return f"{shard}, example {place + 1}"

    def _first(self, row: int) -> Example:
        if row:
            raise InputError(
                f"{self.locate(row)}: packed training examples are encoded, but this experiment reads raw "
                "examples: give the data themselves"
            )
        return self._source.first_example


def load_statistics(tokenizer: Tokenizer, source: object) -> bool:
    """Load the statistics of a packed source into a tokenizer. Return False if the source is not packed."""
    if isinstance(source, PackedSource):
        source.load_statistics(tokenizer)
        return True
    return False


def _agree(new: Tensor, stored: Tensor) -> bool:
    """Return True if two tensors are equal, apart from rounding errors of another machine."""
    if (new.dtype, new.shape) != (stored.dtype, stored.shape):
        return False
    return torch.allclose(new, stored, 1e-3, 1e-3, equal_nan=True) if new.is_floating_point() else new.equal(stored)


def _read_reader(stored: Mapping[str, Any]) -> InputReader:
    kind = PACKED_READERS[stored["class"]]
    return kind(**{field.name: stored[field.name] for field in fields(kind)})  # pyright: ignore[reportArgumentType]


_READ_ATTRIBUTES: Mapping[str, Any] = {
    "labels": tuple,
    "score_range": lambda stored: ScoreRange(**stored),
    "reader": _read_reader,
}
"""Functions that convert the JSON content of some attributes."""
