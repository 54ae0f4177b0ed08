"""Encoding of a split: every example is encoded once. Worker processes are used only if encoding is slow."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from unifier.data.shards import Shards
from unifier.data.source import BadExamples, Example, describe_example
from unifier.data.storage import MemmapArray, RaggedArray, StoredTensors
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer, Units
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.tokens import SUPPORTED_DTYPES, units_error

CHUNK_EXAMPLES, MAX_CHUNK_BYTES = 128, 4 * 2**20
"""Maximum number of examples in one message from a worker process, and approximate maximum size of the message in
bytes."""

MIN_SECONDS_FOR_WORKERS = 4.0
"""Worker processes are used if encoding would take more than `MIN_SECONDS_FOR_WORKERS` seconds. Starting worker
processes takes about a second."""

PR_SET_PDEATHSIG = 1
"""Option of Linux's `prctl`: the signal that a process receives when its parent ends (linux/prctl.h)."""

UNSIGNED_TO_SIGNED = frozenset({torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64})
"""Data types without negative numbers. Targets without negative numbers cannot be padded, because `IGNORE_INDEX` is
negative."""

Arrays = tuple[NDArray[Any], ...]
"""NumPy arrays that a worker process sends for one example: its values, its positions and optionally its target."""

ResultT = TypeVar("ResultT")


@final
class EncodedSplit:
    """The readable examples of a split: encoded inputs (units), encoded targets, and indices in the split."""

    def __init__(
        self, units: Iterable[Units] = (), targets: Iterable[Tensor] = (), indices: Iterable[int] = ()
    ) -> None:
        self._indices = MemmapArray(np.int64)
        self.values: StoredTensors = RaggedArray()
        self.positions: StoredTensors = RaggedArray()
        self.targets: StoredTensors = RaggedArray()
        self.shards: Shards | None = None
        """The shards of a packed split, or None for a split that is stored as a whole."""
        self.scalar_targets = False
        """True if every target is a scalar."""
        self._last_length = 1
        """Length of the last target."""
        for example in zip(units, targets, indices, strict=True):
            self.add(*example)

    @staticmethod
    def from_shards(shards: Shards, *, scalar_targets: bool) -> "EncodedSplit":
        """Return a packed split, whose examples are read from shards."""
        split = EncodedSplit()
        split.values, split.positions, split.targets = map(shards.part, ("values", "positions", "targets"))
        split.shards, split.scalar_targets = shards, scalar_targets
        for start, stop in pairwise(shards.bounds.tolist()):
            split._indices.append(np.arange(start, stop))
        return split

    def add(self, units: Units, target: Tensor, index: int) -> None:
        """Append an example. `index` is the example's index in the split."""
        _append(self.values, units.values)
        _append(self.positions, units.positions)
        self.add_target(target, index)

    def add_target(self, target: Tensor, index: int) -> None:
        """Append the target of an example without its units.

        Raises InputError if only some targets are scalars. Raises InputError if targets differ in length, but their
        data type has no negative number for the padding.
        """
        if len(self) and self.scalar_targets != (target.ndim == 0):
            raise InputError("some targets are scalars, and other targets are not: encode all targets alike")
        self.scalar_targets, length = target.ndim == 0, target.shape[-1] if target.ndim else 1
        if target.dtype in UNSIGNED_TO_SIGNED and len(self) and length != self._last_length:
            raise InputError(
                f"targets of {self._last_length} and of {length} {target.dtype} cannot be padded to equal length: "
                "encode the targets as torch.int64"
            )
        self._last_length = length
        _append(self.targets, target[None] if self.scalar_targets else target)
        self._indices.append(np.array([index]))

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def indices(self) -> NDArray[np.int64]:
        """The index of each example in the split."""
        return self._indices.read()

    def units(self, row: int) -> Units:
        """Return the encoded input of the example `indices[row]`."""
        return Units(self.values[row], self.positions[row])

    def target(self, row: int) -> Tensor:
        """Return the encoded target of the example `indices[row]`: a scalar, or a tensor (..., L)."""
        return self.targets[row][0] if self.scalar_targets else self.targets[row]

    def lengths(self) -> NDArray[np.int32]:
        """Return an array (n, 2) with one row per example: the number of tokens N and the target length L.

        The target length L is 1 if the target is a distribution over labels.
        """
        lengths = np.stack([self.values.lengths(), self.targets.lengths()], axis=1)
        if len(self) and self.targets[0].is_floating_point():
            lengths[:, 1] = 1
        return lengths


def _append(tensors: StoredTensors, tensor: Tensor) -> None:
    assert isinstance(tensors, RaggedArray), "a packed split cannot be appended to"
    tensors.append(tensor)


def concat(*splits: EncodedSplit) -> EncodedSplit:
    """Concatenate several splits. Each example keeps the index of its original split.

    Raises:
        InputError: A split is packed.
    """
    if any(split.shards is not None for split in splits):
        raise InputError("refit=true joins train and val, but packed splits cannot be joined: leave out refit")
    merged = EncodedSplit()
    for split in splits:
        for row, index in enumerate(split.indices.tolist()):
            merged.add(split.units(row), split.target(row), index)
    return merged


def failure_reason(examples: Sequence[Example], index: int, error: Exception) -> str:
    """Return the example's name, followed by the reason why the example could not be encoded."""
    name = describe_example(examples, index)
    message = one_line(error)
    return message if name in message else f"{name}: {message}"


def encode_split(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    head: Head,
    *,
    check: Callable[[Units], None] | None = None,
    bad_examples: BadExamples = "stop",
    num_workers: int | None = None,
    desc: str = "examples",
) -> tuple[EncodedSplit, list[str]]:
    """Encode every example once.

    Args:
        examples: The split.
        tokenizer: Tokenizer of the inputs.
        head: Head that encodes the targets.
        check: Function that raises InputError for an encoded input that cannot be used, or None.
        bad_examples: "skip" leaves out examples that cannot be read. "stop" raises an error.
        num_workers: Number of worker processes; see `ordered_map`.
        desc: Description of the split in messages, such as "digits, train".

    Returns:
        The encoded split, and the reason for each skipped example.

    Raises:
        InputError: An example cannot be read and bad_examples is "stop", no example can be read, or the examples'
            tensors differ in data type or shape.
    """
    encoded, skipped = EncodedSplit(), dict[int, str]()
    results = encode_examples(
        examples,
        tokenizer,
        head,
        skipped,
        check=check,
        bad_examples=bad_examples,
        num_workers=num_workers,
        desc=desc,
    )
    for index, units, target in results:
        try:
            encoded.add(units, target, index)
        except InputError as error:
            raise InputError(f"{desc}: {failure_reason(examples, index, error)}") from error
    return encoded, list(skipped.values())


def encode_examples(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    head: Head,
    skipped: dict[int, str],
    *,
    check: Callable[[Units], None] | None,
    bad_examples: BadExamples,
    num_workers: int | None,
    desc: str,
) -> Iterator[tuple[int, Units, Tensor]]:
    """Yield the index, the encoded input and the encoded target of each example, as in `encode_split`.

    The reasons for skipped examples are added to `skipped`.
    """
    results = ordered_map(
        examples, partial(_encode_example, tokenizer, head, check), num_workers=num_workers, desc=desc
    )
    for index, (values, positions, target) in yield_readable(results, skipped, bad_examples, desc):
        yield index, Units(values, positions), target


def encode_units(tokenizer: Tokenizer, example: Example) -> Units:
    """Encode an example's input. Raises InputError if the tokenizer returns invalid units; see `Units`."""
    units = tokenizer.encode(example.input)
    if problem := units_error(units):
        raise InputError(f"{type(tokenizer).__name__}.{problem}")
    return units


def ordered_map(
    examples: Sequence[Example],
    encode: Callable[[Example], tuple[Tensor, ...]],
    *,
    num_workers: int | None = None,
    desc: str = "examples",
) -> Iterator[tuple[Tensor, ...] | str]:
    """Encode the examples in order. Yield the tensors of each example, or the reason why encoding failed.

    Args:
        examples: The split.
        encode: Function that encodes one example.
        num_workers: Number of worker processes. With None, the encoding time is estimated from the first examples. If
            the estimated time is long, one process per torch thread is started.
        desc: Description of the split for the progress bar.
    """
    encoding = _EncodingDataset(examples, encode)
    start, size = time.perf_counter(), 1
    for index in range(min(CHUNK_EXAMPLES, len(examples))):
        result = encoding[index]
        size += sum(array.nbytes for array in result if not isinstance(array, str))
        yield _to_tensors(result)
    if not (remaining := max(len(examples) - CHUNK_EXAMPLES, 0)):
        return
    expected = (time.perf_counter() - start) * remaining / CHUNK_EXAMPLES
    if num_workers is None:
        num_workers = torch.get_num_threads() if expected > MIN_SECONDS_FOR_WORKERS else 0
    # If TOKENIZERS_PARALLELISM is not set, Hugging Face's tokenizers print a warning for every new process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    batch_size = min(max(CHUNK_EXAMPLES * MAX_CHUNK_BYTES // size, 1), CHUNK_EXAMPLES)
    loader = DataLoader(
        encoding,
        batch_size=batch_size,
        sampler=range(CHUNK_EXAMPLES, len(examples)),
        num_workers=min(num_workers, -(-remaining // batch_size)),
        collate_fn=list,
        worker_init_fn=end_with_parent,
        # Without its own generator, the loader would draw from torch's global generator.
        # The random numbers of a run would then depend on the content of the cache.
        generator=torch.Generator(),
    )
    disable = expected < MIN_SECONDS_FOR_WORKERS or not sys.stdout.isatty()
    results = track(loader, f"reading {desc}", transient=True, disable=disable)
    yield from map(_to_tensors, chain.from_iterable(results))


def end_with_parent(_: int = 0) -> None:
    """Let Linux kill this worker process when its parent has ended.

    A worker of a killed parent would wait for space in the queue of its results, because the other workers also keep
    the queue open.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def yield_readable(
    results: Iterable[ResultT | str], skipped: dict[int, str], bad_examples: BadExamples, desc: str
) -> Iterator[tuple[int, ResultT]]:
    """Yield (index, result) for each encoded example.

    Args:
        results: The result of each example, or the reason (str) why the example could not be encoded.
        skipped: Dictionary for the index and reason of each failed example. The function adds entries if bad_examples
            is "skip".
        bad_examples: "stop" raises an error for the first failed example.
        desc: Description of the split in messages.

    Raises:
        InputError: An example failed and bad_examples is "stop", or all examples failed, or there are no examples.
    """
    index = -1
    for index, result in enumerate(results):
        if not isinstance(result, str):
            yield index, result
        elif bad_examples == "stop":
            raise InputError(f"{desc}: {result} (bad_examples=skip leaves out such examples)")
        else:
            skipped[index] = result
    if index < 0:
        raise InputError(f"{desc}: the split is empty, but at least one example is needed")
    if len(skipped) > index:
        raise InputError(f"{desc}: none of {index + 1} examples can be read; the first is {skipped[0]}")


@final
class _EncodingDataset(Dataset[Arrays | str]):
    """Map-style data set. Each item is an encoded example, or the reason why the example could not be encoded."""

    def __init__(self, examples: Sequence[Example], encode: Callable[[Example], tuple[Tensor, ...]]) -> None:
        self.examples, self.encode = examples, encode

    def __getitem__(self, index: int) -> Arrays | str:
        try:
            return tuple(tensor.numpy() for tensor in self.encode(self.examples[index]))
        except (ValueError, OSError) as error:
            return failure_reason(self.examples, index, error)


def _encode_example(
    tokenizer: Tokenizer, head: Head, check: Callable[[Units], None] | None, example: Example
) -> tuple[Tensor, ...]:
    """Encode an example: return its values, positions and target.

    Raises InputError if the target has a gradient, has a data type that cannot be stored, or does not fit the input.
    """
    units, target = encode_units(tokenizer, example), head.encode(example.target)
    if check is not None:
        check(units)
    if not isinstance(target, Tensor) or target.requires_grad:  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = "a tensor with a gradient" if isinstance(target, Tensor) else f"a {type(target).__name__}"  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{type(head).__name__}.encode gives {kind}: a tensor without a gradient is expected")
    if target.dtype not in SUPPORTED_DTYPES:
        raise InputError(
            f"{type(head).__name__}.encode gives a {target.dtype} target: return a float32 or int64 tensor instead"
        )
    head.check_target(units, target)
    return *units, target


def _to_tensors(result: Arrays | str) -> tuple[Tensor, ...] | str:
    return result if isinstance(result, str) else tuple(map(torch.from_numpy, result))
