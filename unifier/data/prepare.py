"""Preparation of a task's data: encode the splits or load them from the cache, and check the splits."""

import hashlib
import io
import pickle
import sys
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.random import RandomState
from torch import Tensor

from unifier.data.cache import load_or_encode
from unifier.data.dataloader import Objective
from unifier.data.dataset import Examples, Subset, open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.packed import PackedSource
from unifier.data.source import (
    SPLITS,
    UNREADABLE_MARK,
    BadExamples,
    Example,
    Source,
    SplitName,
    name_of,
    target_of,
)
from unifier.files import print_status
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer

NUM_CHECKED = 32
"""Number of examples per split that are read a second time, to check that the targets are unchanged."""

MAX_COMPARED: Mapping[SplitName, int] = {"train": 20_000, "val": 2_000, "test": 2_000}
"""Maximum number of inputs that are read from each split, to find inputs of val and test that are also in train."""

COMPARE_SECONDS: Mapping[SplitName, float] = {"train": 0.4, "val": 0.2, "test": 0.2}
"""Time limit, in seconds, for reading the compared inputs of each split."""


@final
@dataclass(frozen=True)
class EncodedTask:
    """The encoded splits of a task, and the description of its data for result.json."""

    splits: Mapping[SplitName, EncodedSplit]
    data: Mapping[str, Any]


def prepare_task(
    source: Source,
    tokenizer: Tokenizer,
    head: Head,
    objective: Objective | None = None,
    *,
    bad_examples: BadExamples,
    num_workers: int | None,
) -> EncodedTask:
    """Encode a task's three splits, or load their inputs from the cache.

    Args:
        source: The data set.
        tokenizer: Tokenizer of the inputs.
        head: Head that encodes the targets.
        objective: The objective, which may refuse examples, or None.
        bad_examples: "skip" leaves out examples that cannot be encoded. "stop" raises an error.
        num_workers: Number of worker processes; see `ordered_map`.

    Raises:
        InputError: An example cannot be encoded, the tensors of two splits differ in data type or shape, or the source
            returns different examples when a split is opened again.
    """
    if isinstance(source, PackedSource):
        return EncodedTask(source.encoded(tokenizer, head), describe_data(source, source.skipped))
    if isinstance(source, Subset) and isinstance(source.full, PackedSource):
        raise InputError(f"{name_of(source)}: a share of packed data cannot be trained on; pack the share")
    splits: dict[SplitName, EncodedSplit] = {}
    skipped: dict[str, int] = {}
    check = None if objective is None else objective.check
    cached = load_or_encode(source, tokenizer, bad_examples=bad_examples, num_workers=num_workers)
    for split in SPLITS:
        examples, desc = open_split(source, split), f"{name_of(source)}, {split}"
        if cached is not None and isinstance(examples, Examples):
            splits[split], reasons = cached.split(examples, head, check=check, bad_examples=bad_examples, desc=desc)
        else:
            splits[split], reasons = encode_split(
                examples,
                tokenizer,
                head,
                check=check,
                bad_examples=bad_examples,
                num_workers=num_workers,
                desc=desc,
            )
            _check_repeatable(source, head, split, splits[split])
        check_same_layout(desc, splits[split], splits["train"])
        skipped[split] = len(reasons)
        if reasons:
            print_status(f"{desc}: {len(reasons)} examples skipped; the first is {reasons[0]}", sys.stderr)
    if objective is None and not isinstance(source, Subset):  # A small share may lack a rare class.
        train = splits["train"]
        try:
            head.check_trained(train.target(row) for row in range(len(train)))
        except InputError as error:
            raise InputError(f"{name_of(source)}: {error}") from error
    data = describe_data(source, skipped)
    if copies := data.get("copies"):
        message = f"{copies} examples of val and test are copies of train examples, so the scores are too high"
        print_status(f"{name_of(source)}: {message}", sys.stderr)
    # A source with `copies` has already compared its files. Cached inputs were searched before.
    elif getattr(source, "copies", None) is None and (cached is None or cached.is_new):
        warn_of_overlap(source)
    return EncodedTask(splits, data)


def warn_of_overlap(source: Source) -> None:
    """Print a warning to standard error if inputs of val or test are also in train.

    Inputs are compared by a hash of their content. At most 20,000 inputs of train, 2,000 of val and 2,000 of test are
    read. The inputs are evenly spaced, and reading stops after `COMPARE_SECONDS`. Some inputs of larger splits are
    therefore not compared. Inputs that cannot be read or pickled are left out.
    """
    hashes = {split: _input_hashes(open_split(source, split), split) for split in SPLITS}
    train = set(hashes["train"])
    counts = {split: sum(digest in train for digest in hashes[split]) for split in SPLITS[1:]}
    if any(counts.values()):
        shares = " and ".join(f"{count:,} of {len(hashes[split]):,} in {split}" for split, count in counts.items())
        message = f"some of the compared inputs are also in train: {shares}; scores on such examples are too high"
        print_status(f"{name_of(source)}: {message}", sys.stderr)


def _input_hashes(examples: Sequence[Example], split: SplitName) -> list[bytes]:
    """Return the hashes of a split's inputs, up to the limits `MAX_COMPARED` and `COMPARE_SECONDS`.

    Inputs that cannot be read or pickled are left out.
    """
    deadline = time.perf_counter() + COMPARE_SECONDS[split]
    rows = np.arange(0, len(examples), max(-(-len(examples) // MAX_COMPARED[split]), 1))
    hashes: list[bytes] = []
    # With a random order, the inputs that are read before the time limit represent the whole split.
    for row in RandomState(0).permutation(rows):
        try:
            hashes.append(hashlib.blake2b(_pickle(examples[int(row)].input, None), digest_size=16).digest())
        except (ValueError, OSError, TypeError, AttributeError, pickle.PicklingError):
            continue
        if time.perf_counter() > deadline:
            break
    return hashes


def check_same_layout(desc: str, encoded: EncodedSplit, train: EncodedSplit) -> None:
    """Raise InputError if the tensors of a split have a different data type or shape than the tensors of train."""
    for part in ("values", "positions", "targets"):
        layout, expected = (getattr(split, part).layout for split in (encoded, train))
        if layout != expected:
            raise InputError(
                f"{desc}: its {part} are {layout}, but the {part} of train are {expected}: encode all splits alike"
            )


def _check_repeatable(source: Source, head: Head, split: SplitName, encoded: EncodedSplit) -> None:
    """Raise InputError if a source returns different examples when a split is opened again.

    If the examples changed, a prediction would be compared with the target of another example.
    """
    reopened = open_split(source, split)
    for row in range(0, len(encoded), max(len(encoded) // NUM_CHECKED, 1)):
        index, target = int(encoded.indices[row]), encoded.target(row)
        if index < len(reopened):
            again = head.encode(target_of(reopened, index))
            # NaN is not equal to NaN. Therefore, two NaN targets are treated as equal here.
            if target.shape == again.shape and bool(((target == again) | (target != target)).all()):
                continue
        raise InputError(
            f'{name_of(source)}: split("{split}") returns other examples at the second call: draw the examples once, '
            "or draw them with a fixed seed"
        )


def describe_data(source: Source, skipped: Mapping[str, int]) -> dict[str, Any]:
    """Return a source's name, hash and split sizes, and the number of skipped examples of each split.

    The optional entry `dropped` contains the numbers of examples that the source left out. The optional entry `copies`
    contains the number of val and test examples that are also in train. The optional entry `license` contains the
    license of the data.
    """
    sizes = {split: len(open_split(source, split)) for split in SPLITS}
    notes = {name: value for name in ("dropped", "copies", "license") if (value := getattr(source, name, None))}
    return {
        "name": name_of(source),
        "sha256": sha256_of(source),
        **sizes,
        "skipped": dict(skipped),
        **notes,
    }


def sha256_of(source: Source) -> str:
    """Return a source's `sha256`. If the source has no `sha256`, compute a hash of all its examples."""
    digest = getattr(source, "sha256", None)
    if digest is not None:
        return str(digest)
    hashed = hashlib.sha256()
    for split in SPLITS:
        examples = open_split(source, split)
        for i in range(len(examples)):
            try:
                hashed.update(_pickle(*examples[i]))
            except (ValueError, OSError):  # The example cannot be read and was skipped.
                hashed.update(UNREADABLE_MARK.encode())
    return hashed.hexdigest()


def _pickle(raw: Any, target: Any) -> bytes:
    """Return an example as bytes. Equal examples have equal bytes in every process.

    The bytes of a plain pickle depend on the iteration order of sets and on the memory layout of tensors.
    """
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump((raw, sorted(target) if isinstance(target, Set) else target))
    return file.getvalue()


@final
class _Pickler(pickle.Pickler):
    """Pickler that writes a tensor as three parts: the data type, the shape and the bytes of the values."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        content = obj.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return tuple, ((str(obj.dtype), tuple(obj.shape), content),)
