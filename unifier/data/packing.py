"""Packing of a data set: encode all splits, and write shards with an index into a folder or to a URL."""

import hashlib
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pickle import UnpicklingError
from typing import Any, NamedTuple, final

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from unifier.data.dataloader import Objective
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, encode_examples
from unifier.data.packed import (
    ATTRIBUTES,
    PACK_FORMAT,
    PackedSource,
    describe_reader,
    load_safely,
    to_stored,
)
from unifier.data.prepare import check_same_layout, warn_of_overlap
from unifier.data.shard_folder import INDEX_NAME, remote_folder
from unifier.data.source import SPLITS, BadExamples, Source, SplitName, describe_example, name_of
from unifier.data.storage import RaggedArray
from unifier.files import print_status, seal_json
from unifier.heads.head import Head
from unifier_tokenizers import InputError, PatchTokenizer, PixelTokenizer, Tokenizer, Vocabulary
from unifier_tokenizers.audio import AudioTokenizer


class PackOptions(NamedTuple):
    """Settings of a packed data set."""

    shard_mb: float = 128.0
    """Approximate size of a shard in megabytes."""
    window: int = 8
    """Number of shards among which training shuffles examples. A larger window needs more local disk space."""
    bad_examples: BadExamples = "stop"
    num_workers: int | None = None


DEFAULT_OPTIONS = PackOptions()


class PackOrigin(NamedTuple):
    """The experiment with which data are packed."""

    recipe: str
    settings: Mapping[str, Any]
    fitted: Mapping[str, Vocabulary | float]
    """The values that the experiment has learned from the data."""


def pack(
    source: Source,
    tokenizer: Tokenizer,
    head: Head,
    objective: Objective | None,
    address: str,
    origin: PackOrigin,
    options: PackOptions = DEFAULT_OPTIONS,
) -> str:
    """Encode a data set into a folder or to a URL, and return a line that describes the result.

    The index is written last, so an interrupted pack cannot be mistaken for a complete one.

    Args:
        source: The data set.
        tokenizer: Tokenizer of the inputs.
        head: Head that encodes the targets.
        objective: The objective, which may refuse examples, or None.
        address: The folder or URL, which must be empty or contain an interrupted pack.
        origin: The experiment.
        options: The size of a shard, and the number of shards among which examples are shuffled.

    Raises:
        InputError: An example cannot be encoded, or the folder cannot be written.
    """
    if not 0 < options.shard_mb < float("inf") or options.window < 1:
        raise InputError(
            f"shard_mb={options.shard_mb:g}, window={options.window}: give a size above 0, and at least one shard"
        )
    if isinstance(source, PackedSource):
        raise InputError(f"{name_of(source)} is packed already: give the data themselves")
    if head.memory:
        raise InputError(f"memory={head.memory}: a head with a memory reads whole sequences, which cannot be packed")
    reader = getattr(source, "reader", None)
    if reader is not None and describe_reader(reader) is None:
        raise InputError(f"{name_of(source)}: inputs of a {type(reader).__name__} cannot be packed")
    writer = _Writer(address, source, tokenizer, head, objective, options)
    targets = writer.write("train")
    if objective is None:
        head.check_trained(targets)
    for _ in targets:  # `check_trained` may stop early.
        pass
    for split in SPLITS[1:]:
        for _ in writer.write(split):
            pass
    warn_of_overlap(source)
    return writer.finish(origin)


@final
class _Writer:
    def __init__(
        self,
        address: str,
        source: Source,
        tokenizer: Tokenizer,
        head: Head,
        objective: Objective | None,
        options: PackOptions,
    ) -> None:
        self.write_file, self.address = remote_folder(address), address
        self.source, self.tokenizer, self.head, self.options = source, tokenizer, head, options
        self.check = None if objective is None else objective.check
        self.files: list[tuple[str, int, str]] = []
        self.counts: dict[SplitName, list[int]] = {split: [] for split in SPLITS}
        self.skipped: dict[SplitName, int] = {}
        self.first: EncodedSplit | None = None
        """The first shard of train, with whose layout all others must agree."""

    def write(self, split: SplitName) -> Iterator[Tensor]:
        """Write the shards of a split. Yield the encoded target of each example."""
        examples, desc = open_split(self.source, split), f"{name_of(self.source)}, {split}"
        skipped = dict[int, str]()
        shard, inputs = EncodedSplit(), list[Any]()
        lengths, targets, names, size = list[bytes](), list[Any](), list[str](), 0
        results = encode_examples(
            examples,
            self.tokenizer,
            self.head,
            skipped,
            check=self.check,
            bad_examples=self.options.bad_examples,
            num_workers=self.options.num_workers,
            desc=desc,
        )
        for index, units, target in results:
            raw_size = 0
            if split != "train":
                example = examples[index]
                inputs.append(to_stored(example.input))
                targets.append(to_stored(example.target))
                names.append(describe_example(examples, index))
                raw_size = _size(inputs[-1])
            elif self.first is None and not len(shard):
                self._add("first.pt", _save_raw(tuple(map(to_stored, examples[index]))))
            shard.add(units, target, index)
            size += max(units.values.nbytes + units.positions.nbytes + target.nbytes, raw_size)
            if size >= self.options.shard_mb * 1e6:
                lengths.append(self._flush(split, shard, inputs, desc))
                shard, size = EncodedSplit(), 0
                inputs.clear()
            yield target
        if len(shard):
            lengths.append(self._flush(split, shard, inputs, desc))
        self._add(f"{split}.lengths", b"".join(lengths))
        if split != "train":
            self._add(f"{split}.targets.pt", _save_raw({"targets": targets, "names": names}))
        self.skipped[split] = len(skipped)
        if skipped:
            print_status(
                f"{desc}: {len(skipped)} examples skipped; the first is {next(iter(skipped.values()))}", sys.stderr
            )

    def finish(self, origin: PackOrigin) -> str:
        """Write the statistics, the vocabularies and the index."""
        buffers = {name: buffer.contiguous() for name, buffer in self.tokenizer.named_buffers()}
        self._add("statistics.safetensors", save(buffers))
        vocabularies = {name: value for name, value in origin.fitted.items() if isinstance(value, Vocabulary)}
        for name, vocabulary in vocabularies.items():
            self._add(f"{name}.vocabulary.json", vocabulary.codec.to_str().encode())
        attributes = {
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name in ATTRIBUTES
            if (value := getattr(self.source, name, None)) is not None
        }
        if (reader := describe_reader(getattr(self.source, "reader", None))) is not None:
            attributes["reader"] = reader
        kinds = {"image": PatchTokenizer | PixelTokenizer, "audio": AudioTokenizer}
        content = {
            "format": PACK_FORMAT,
            "name": name_of(self.source),
            "data_sha256": getattr(self.source, "sha256", None),
            "recipe": origin.recipe,
            "settings": origin.settings,
            "modality": next((kind for kind, classes in kinds.items() if isinstance(self.tokenizer, classes)), "text"),
            "attributes": attributes,
            "window": self.options.window,
            "scalar_targets": self.first is not None and self.first.scalar_targets,
            "skipped": self.skipped,
            "splits": {split: {"counts": counts} for split, counts in self.counts.items()},
            "numbers": {name: value for name, value in origin.fitted.items() if name not in vocabularies},
            "vocabularies": list(vocabularies),
            "files": self.files,
        }
        self.write_file(INDEX_NAME, seal_json(content))
        sizes = [size for name, size, _ in self.files if name.endswith(".safetensors") and name.startswith(SPLITS)]
        examples = ", ".join(f"{split} {sum(counts):,}" for split, counts in self.counts.items())
        return f"{self.address}: {examples} examples in {len(sizes)} shards of {sum(sizes) / 1e6:,.1f} MB together"

    def _flush(self, split: SplitName, shard: EncodedSplit, inputs: list[Any], desc: str) -> bytes:
        """Write a shard and its raw inputs. Return the lengths of its examples."""
        self.first = self.first or shard
        check_same_layout(desc, shard, self.first)
        number = len(self.counts[split])
        parts = {name: getattr(shard, name) for name in ("values", "positions", "targets")}
        tensors = {name: part.rows.contiguous() for name, part in parts.items() if isinstance(part, RaggedArray)}
        self._add(f"{split}-{number:05}.safetensors", save(tensors))
        if inputs:
            self._add(f"{split}-{number:05}.inputs.pt", _save_raw(inputs))
        self.counts[split].append(len(shard))
        return np.stack([shard.values.lengths(), shard.targets.lengths()], 1).astype("<i4").tobytes()

    def _add(self, name: str, content: bytes) -> None:
        self.write_file(name, content)
        self.files.append((name, len(content), hashlib.sha256(content).hexdigest()))


def _save_raw(value: Any) -> bytes:
    """Return a value as bytes. Raises InputError if the value cannot be read again without executing code."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        load_safely(file.getvalue())
    except (UnpicklingError, AttributeError, TypeError) as error:
        raise InputError(
            "raw inputs or targets of this class cannot be packed: give texts, numbers, arrays or sounds"
        ) from error
    return file.getvalue()


def _size(value: Any) -> int:
    """Return the approximate number of bytes of a raw input."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else len(value) if isinstance(value, str) else 8
