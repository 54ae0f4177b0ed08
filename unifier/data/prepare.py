"""An experiment's data, encoded once for all runs that read it."""

import hashlib
import io
import pickle
import sys
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from unifier.data.cache import load_or_encode
from unifier.data.dataset import Examples, open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.source import (
    SPLITS,
    UNREADABLE_MARK,
    BadExamples,
    Source,
    SplitName,
    name_of,
    score_range_of,
    target_of,
)
from unifier.files import print_status
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer


@final
@dataclass(frozen=True)
class EncodedTask:
    """An task's splits, encoded, and what result.json says of its data."""

    splits: Mapping[SplitName, EncodedSplit]
    data: Mapping[str, Any]


def prepare_task(
    source: Source, tokenizer: Tokenizer, head: Head, *, bad_examples: BadExamples, num_workers: int | None
) -> EncodedTask:
    """Encode a task's three splits, or load them from the cache.

    Raises InputError for an example that cannot be encoded and for splits that are laid out differently.
    """
    splits: dict[SplitName, EncodedSplit] = {}
    skipped: dict[str, int] = {}
    kept = load_or_encode(source, tokenizer, bad_examples=bad_examples, num_workers=num_workers)
    for split in SPLITS:
        examples, said = open_split(source, split), f"{name_of(source)}, {split}"
        if kept is not None and isinstance(examples, Examples):
            splits[split], bad = kept.split(examples, head, bad_examples=bad_examples, desc=said)
        else:
            splits[split], bad = encode_split(
                examples, tokenizer, head, bad_examples=bad_examples, num_workers=num_workers, desc=said
            )
            _check_again(source, head, split, splits[split])
        _check_alike(said, splits[split], splits["train"])
        skipped[split] = len(bad)
        if bad:
            print_status(f"{said}: {len(bad)} examples skipped, such as {bad[0]}", sys.stderr)
    data = describe_data(source, skipped)
    if copies := data.get("copies"):
        said = f"{copies} examples of val and test are also in train, byte for byte"
        print_status(f"{name_of(source)}: {said}", sys.stderr)
    return EncodedTask(splits, data)


def _check_alike(said: str, encoded: EncodedSplit, trained_on: EncodedSplit) -> None:
    """Raise InputError where the examples of a split are not laid out as those of training are."""
    for part in ("values", "positions", "targets"):
        own, other = (getattr(split, part).layout for split in (encoded, trained_on))
        if own != other:
            raise InputError(f"{said}: its {part} are {own}, and those to train on {other}: encode all alike")


NUM_CHECKED = 32
"""Examples that tell whether a split is the same again."""


def _check_again(source: Source, head: Head, split: SplitName, encoded: EncodedSplit) -> None:
    """Raise InputError where a source draws a split anew each time: its examples would be scored by others' targets."""
    again = open_split(source, split)
    for row in range(0, len(encoded), max(len(encoded) // NUM_CHECKED, 1)):
        place, own = int(encoded.indices[row]), encoded.target(row)
        if place < len(again):
            other = head.encode(target_of(again, place))
            if own.shape == other.shape and bool(((own == other) | (own != own)).all()):  # NaN is unlike itself
                continue
        raise InputError(
            f'{name_of(source)}: split("{split}") gives other examples when it is asked again; draw them once, or '
            "by a seed of their own"
        )


def describe_data(source: Source, skipped: Mapping[str, int]) -> dict[str, Any]:
    """A source's name, hash, split sizes and scale, and how many examples of each split could not be read.

    And, where there are any, how many were left out (`dropped`), or are held out and trained on too (`copies`).
    """
    sizes = {split: len(open_split(source, split)) for split in SPLITS}
    score_range = score_range_of(source)
    noted = {name: found for name in ("dropped", "copies") if (found := getattr(source, name, None))}
    return {
        "name": name_of(source),
        "sha256": sha256_of(source),
        **sizes,
        "skipped": dict(skipped),
        "score_range": score_range and asdict(score_range),
        **noted,
    }


def sha256_of(source: Source) -> str:
    """A source's own hash, or that of its examples where it has none."""
    known = getattr(source, "sha256", None)
    if known is not None:
        return str(known)
    hashed = hashlib.sha256()
    for split in SPLITS:
        examples = open_split(source, split)
        for i in range(len(examples)):
            try:
                hashed.update(_pickled(*examples[i]))
            except (ValueError, OSError):  # one that was skipped
                hashed.update(UNREADABLE_MARK.encode())
    return hashed.hexdigest()


def _pickled(raw: Any, target: Any) -> bytes:
    """An example in bytes that are the same in every process: a set's order is not, nor where torch keeps a tensor."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump((raw, sorted(target) if isinstance(target, Set) else target))
    return file.getvalue()


@final
class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        content = obj.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return tuple, ((str(obj.dtype), tuple(obj.shape), content),)
