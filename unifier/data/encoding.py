"""A split encoded, each example once."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from unifier.data.source import BadExamples, Example, describe_example
from unifier.data.storage import MemmapArray, RaggedArray
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer, Units
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.tokens import SUPPORTED_DTYPES, units_error

CHUNK_EXAMPLES, MAX_CHUNK_BYTES = 128, 4 * 2**20
"""The most examples, and about the most memory, that travel between processes together."""


MIN_SECONDS_FOR_WORKERS = 4.0  # seconds; starting worker processes costs about one


UNSIGNED_TO_SIGNED = frozenset({torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64})
"""Types without negative numbers, one of which targets are padded with."""


@final
class EncodedSplit:
    """The examples of a split that could be read: their columns, their targets, and their places in the split."""

    def __init__(
        self, units: Iterable[Units] = (), targets: Iterable[Tensor] = (), indices: Iterable[int] = ()
    ) -> None:
        self._indices = MemmapArray(np.int64)
        self.values, self.positions, self.targets = RaggedArray(), RaggedArray(), RaggedArray()
        self.scalar_targets = False
        """Whether a target is one number."""
        self._last = 1
        """The length of the last target."""
        for example in zip(units, targets, indices, strict=True):
            self.add(*example)

    def add(self, units: Units, target: Tensor, index: int) -> None:
        """One more example, which is the split's number `index`."""
        self.values.append(units.values)
        self.positions.append(units.positions)
        self.add_target(target, index)

    def add_target(self, target: Tensor, index: int) -> None:
        """The target of one more, whose columns lie elsewhere.

        Raises InputError for targets of unlike length and a type that has no number to pad them with, and for one
        number beside several.
        """
        if len(self) and self.scalar_targets != (target.ndim == 0):
            raise InputError("a target of one number stands beside one of several: encode all alike")
        self.scalar_targets, length = target.ndim == 0, target.shape[-1] if target.ndim else 1
        if target.dtype in UNSIGNED_TO_SIGNED and len(self) and length != self._last:
            raise InputError(
                f"targets of {self._last} and of {length} {target.dtype} cannot be padded: encode them as torch.int64"
            )
        self._last = length
        self.targets.append(target[None] if self.scalar_targets else target)
        self._indices.append(np.array([index]))

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def indices(self) -> NDArray[np.int64]:
        """Each example's place in the split."""
        return self._indices.read()

    def units(self, index: int) -> Units:
        """The columns of the example that is `indices[index]` in the split."""
        return Units(self.values[index], self.positions[index])

    def target(self, index: int) -> Tensor:
        """What the head encoded: a scalar, or (..., L)."""
        return self.targets[index][0] if self.scalar_targets else self.targets[index]

    def lengths(self) -> NDArray[np.int32]:
        """For each example the columns N, and the length L of its target, 1 where that is a distribution: (n, 2)."""
        lengths = np.stack([self.values.lengths(), self.targets.lengths()], axis=1)
        if len(self) and self.targets[0].is_floating_point():
            lengths[:, 1] = 1
        return lengths


def concat(*splits: EncodedSplit) -> EncodedSplit:
    """Their examples one after the other, each under its place in its own split."""
    whole = EncodedSplit()
    for split in splits:
        for index, place in enumerate(split.indices.tolist()):
            whole.add(split.units(index), split.target(index), place)
    return whole


Arrays = tuple[NDArray[Any], ...]
"""Values, positions and perhaps the target of one example, as they travel between processes."""


@final
class _Encoding(Dataset[Arrays | str]):
    """Each example encoded, or why it could not be."""

    def __init__(self, examples: Sequence[Example], encode: Callable[[Example], tuple[Tensor, ...]]) -> None:
        self.examples, self.encode = examples, encode

    def __getitem__(self, index: int) -> Arrays | str:
        try:
            return tuple(tensor.numpy() for tensor in self.encode(self.examples[index]))
        except (ValueError, OSError) as error:
            return failure_reason(self.examples, index, error)


def failure_reason(examples: Sequence[Example], index: int, error: Exception) -> str:
    """Why an example could not be encoded, beginning with its place."""
    name = describe_example(examples, index)
    said = one_line(error)
    return said if name in said else f"{name}: {said}"


def encode_split(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    head: Head,
    *,
    bad_examples: BadExamples = "stop",
    num_workers: int | None = None,
    desc: str = "examples",
) -> tuple[EncodedSplit, list[str]]:
    """Encode every example once; returns also what was skipped, and why.

    An example that cannot be read stops it with an InputError that names file and line, or is skipped and said.
    `num_workers` is as in `in_order`.
    """
    encoded = EncodedSplit()
    skipped: dict[int, str] = {}
    found = ordered_map(examples, partial(_both, tokenizer, head), num_workers=num_workers, desc=desc)
    for index, (values, positions, target) in yield_readable(found, skipped, bad_examples, desc):
        try:
            encoded.add(Units(values, positions), target, index)
        except InputError as error:
            raise InputError(f"{desc}: {failure_reason(examples, index, error)}") from error
    return encoded, list(skipped.values())


def encode_units(tokenizer: Tokenizer, example: Example) -> Units:
    """What a tokenizer makes of an example; raises InputError where that is no units."""
    units = tokenizer.encode(example.input)
    if wrong := units_error(units):
        raise InputError(f"{type(tokenizer).__name__}.{wrong}")
    return units


def _both(tokenizer: Tokenizer, head: Head, example: Example) -> tuple[Tensor, ...]:
    units, target = encode_units(tokenizer, example), head.encode(example.target)
    if not isinstance(target, Tensor) or target.requires_grad:  # pyright: ignore[reportUnnecessaryIsInstance]
        said = "a tensor with a gradient" if isinstance(target, Tensor) else f"a {type(target).__name__}"  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{type(head).__name__}.encode gives {said}: a tensor without one is expected")
    if target.dtype not in SUPPORTED_DTYPES:
        raise InputError(f"{type(head).__name__}.encode gives {target.dtype}, which no data set is kept in")
    return *units, target


def ordered_map(
    examples: Sequence[Example],
    encode: Callable[[Example], tuple[Tensor, ...]],
    *,
    num_workers: int | None = None,
    desc: str = "examples",
) -> Iterator[tuple[Tensor, ...] | str]:
    """Every example encoded, or why it could not be; in worker processes where that saves time.

    `num_workers` None takes a process for each thread of torch's where the first examples say that the rest takes long;
    0 takes none.
    """
    encoding = _Encoding(examples, encode)
    began, size = time.perf_counter(), 1
    for index in range(min(CHUNK_EXAMPLES, len(examples))):
        one = encoding[index]
        size += sum(array.nbytes for array in one if not isinstance(array, str))
        yield _read(one)
    if not (left := max(len(examples) - CHUNK_EXAMPLES, 0)):
        return
    expected = (time.perf_counter() - began) * left / CHUNK_EXAMPLES
    if num_workers is None:
        num_workers = torch.get_num_threads() if expected > MIN_SECONDS_FOR_WORKERS else 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # or that library warns of every fork
    rest = DataLoader(
        encoding,
        batch_size=min(max(CHUNK_EXAMPLES * MAX_CHUNK_BYTES // size, 1), CHUNK_EXAMPLES),
        sampler=range(CHUNK_EXAMPLES, len(examples)),
        num_workers=num_workers,
        collate_fn=list,
        generator=torch.Generator(),  # or a run that has its data already would draw other random numbers
    )
    hidden = expected < MIN_SECONDS_FOR_WORKERS or not sys.stdout.isatty()
    shown = track(rest, f"reading {desc}", transient=True, disable=hidden)
    yield from map(_read, chain.from_iterable(shown))


def _read(one: Arrays | str) -> tuple[Tensor, ...] | str:
    return one if isinstance(one, str) else tuple(map(torch.from_numpy, one))


ResultT = TypeVar("ResultT")


def yield_readable(
    results: Iterable[ResultT | str], skipped: dict[int, str], bad_examples: BadExamples, desc: str
) -> Iterator[tuple[int, ResultT]]:
    """What was found, with its place; where there is a reason instead it goes to `skipped`, or stops.

    Raises InputError too where nothing was found.
    """
    index = -1
    for index, one in enumerate(results):
        if not isinstance(one, str):
            yield index, one
        elif bad_examples == "stop":
            raise InputError(f"{desc}: {one} (bad_examples=skip leaves such examples out)")
        else:
            skipped[index] = one
    if index < 0:
        raise InputError(f"{desc}: the split is empty")
    if len(skipped) > index:
        raise InputError(f"{desc}: none of {index + 1} examples can be read; the first is {skipped[0]}")
