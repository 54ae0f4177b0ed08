"""A split, each example encoded once."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from unifier.data.mapped import Mapped
from unifier.data.packed import Packed
from unifier.data.source import BadExamples, Example, where
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer, Units

CHUNK = 128
WORTH_WORKERS = 4.0  # seconds; starting worker processes costs about one


@final
class Encoded:
    """The examples of a split that could be read: their columns, their targets, and their places in the split."""

    def __init__(
        self, units: Iterable[Units] = (), targets: Iterable[Tensor] = (), indices: Iterable[int] = ()
    ) -> None:
        self._indices = Mapped(np.int64)
        self.values, self.positions, self.targets = Packed(), Packed(), Packed()
        self.scalar = False
        """Whether a target is one number."""
        for example in zip(units, targets, indices, strict=True):
            self.add(*example)

    def add(self, units: Units, target: Tensor, index: int) -> None:
        """One more example, which is the split's number `index`."""
        self.values.append(units.values)
        self.positions.append(units.positions)
        self.scalar = target.ndim == 0
        self.targets.append(target[None] if self.scalar else target)
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
        return self.targets[index][0] if self.scalar else self.targets[index]

    def lengths(self) -> NDArray[np.int32]:
        """For each example the columns N, and the length L of its target: (n, 2)."""
        return np.stack([self.values.lengths(), self.targets.lengths()], axis=1)


Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Values, positions and target of one example, as they travel between processes."""


@final
class _Chunks(Dataset[list[Arrays | str]]):
    """Examples by the chunk, each one encoded, or said why it could not be."""

    def __init__(self, examples: Sequence[Example], tokenizer: Tokenizer, head: Head) -> None:
        self.examples, self.tokenizer, self.head = examples, tokenizer, head

    def __len__(self) -> int:
        return -(-len(self.examples) // CHUNK)

    def __getitem__(self, chunk: int) -> list[Arrays | str]:
        return [self._one(i) for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, len(self.examples)))]

    def _one(self, index: int) -> Arrays | str:
        try:
            raw, target = self.examples[index]
            values, positions = self.tokenizer.encode(raw)
            return values.numpy(), positions.numpy(), self.head.encode(target).numpy()
        except (ValueError, OSError) as error:
            name = where(self.examples, index)
            return str(error) if name in str(error) else f"{name}: {error}"


def encode_split(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    head: Head,
    *,
    bad_examples: BadExamples = "stop",
    workers: int | None = None,
    said: str = "examples",
) -> tuple[Encoded, list[str]]:
    """Encode every example once, in worker processes where that saves time; returns also what was skipped, and why.

    An example that cannot be read stops it with an InputError that names file and line, or is skipped and said.
    `workers` None takes one process a core where the first chunk says the rest takes long; 0 takes none.
    """
    if not len(examples):
        raise InputError(f"{said}: the split is empty")
    chunks = _Chunks(examples, tokenizer, head)
    began = time.perf_counter()
    first = chunks[0]
    expected = (time.perf_counter() - began) * (len(chunks) - 1)
    if workers is None:
        workers = (os.cpu_count() or 1) if expected > WORTH_WORKERS else 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # or that library warns of every fork
    rest = DataLoader(Subset(chunks, range(1, len(chunks))), batch_size=None, num_workers=workers, collate_fn=_as_it_is)
    hidden = expected < WORTH_WORKERS or not sys.stdout.isatty()
    shown = track(chain([first], rest), f"reading {said}", total=len(chunks), transient=True, disable=hidden)
    encoded = Encoded()
    skipped: list[str] = []
    for index, one in enumerate(chain.from_iterable(shown)):
        if not isinstance(one, str):
            values, positions, target = map(torch.from_numpy, one)
            encoded.add(Units(values, positions), target, index)
        elif bad_examples == "stop":
            raise InputError(f"{said}: {one} (bad_examples=skip leaves such examples out)")
        else:
            skipped.append(one)
    if not len(encoded):
        raise InputError(f"{said}: none of {len(examples)} examples can be read; the first is {skipped[0]}")
    return encoded, skipped


def _as_it_is(chunk: list[Arrays | str]) -> list[Arrays | str]:
    return chunk
