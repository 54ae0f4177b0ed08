"""Batches of a training run and of an evaluation, made from encoded splits."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Literal, NamedTuple, Self, TypeVar, final, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unifier.data.encoding import EncodedSplit
from unifier.data.storage import Crop
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import NO_POSITION
from unifier_tokenizers.tokens import has_no_padding, is_batch_constant

Lengths = NDArray[np.int32]
"""Number of tokens N and target length L of each example of a split (n, 2)."""

CostFn = Callable[[ArrayLike, ArrayLike], NDArray[np.float64]]
"""Function from the N and L of examples to the FLOPs of their forward and backward passes."""

BudgetUnit = Literal["tokens", "flops", "steps", "epochs"]
"""Units of a budget: tokens without padding, operations, batches, passes over a split."""

Item = TypeVar("Item")

BUCKET_BATCHES = 100
"""Approximate number of batches whose shuffled examples are sorted by length together."""

LIST_ROWS = 1 << 16
"""Number of lengths that are converted to Python numbers at a time, to save memory."""

MIN_SHARE = 1e-9
"""Smallest share of a budget that a temperature gives to a task. The largest share is 1."""


class _Parts(NamedTuple):
    values: Tensor
    """(B, ..., N)."""
    positions: Tensor
    """(B, A, N) int64."""
    mask: Tensor
    """(B, N) bool, True on tokens that are not padding."""
    target: Tensor
    """(B,) or (B, ..., L), padded with `IGNORE_INDEX`."""
    example_indices: Tensor
    """(B,) int64: index of each example in its split, under which predictions are stored."""


@final
class Batch(_Parts):
    """Examples of one task, padded to the longest. Without `example_indices` the examples are numbered from 0."""

    __slots__ = ()

    def __new__(
        cls, values: Tensor, positions: Tensor, mask: Tensor, target: Tensor, example_indices: Tensor | None = None
    ) -> Self:
        if example_indices is None:
            example_indices = torch.arange(len(mask), device=mask.device)
        return super().__new__(cls, values, positions, mask, target, example_indices)

    def lengths(self) -> tuple[Tensor, Tensor]:
        """Return the number of tokens N (B,) and the target length L (B,) of each example, without padding, on the CPU.

        L is 1 for a label, and for a distribution such as tags.
        """
        num_tokens = self.mask.sum(1).cpu()
        if self.target.ndim == 1 or self.target.is_floating_point():
            return num_tokens, torch.ones_like(num_tokens)
        target = self.target.reshape(len(num_tokens), -1, self.target.shape[-1])[:, 0]
        return num_tokens, (target != IGNORE_INDEX).sum(1).cpu()

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device. The copy to "cuda" is asynchronous.

        A mask without padding and constant positions become expanded views, so that code on the device can see these
        properties without reading values.
        """
        # On other devices the pinned memory may be freed before it is copied (pytorch issue 189690).
        pinned = device.type == "cuda"
        parts = (part.pin_memory() if pinned else part for part in self)
        moved = Batch(*(part.to(device, non_blocking=pinned) for part in parts))
        mask, positions = moved.mask, moved.positions
        return moved._replace(
            mask=mask[:1, :1].expand_as(mask) if has_no_padding(self.mask) else mask,
            positions=positions[:1].expand_as(positions) if is_batch_constant(self.positions) else positions,
        )


class Augmentation(ABC):
    """Random change of training batches, made after encoding and before embedding.

    Subclasses implement `__call__`. They override the other methods only if they shorten, lengthen or crop examples.
    The data loader uses these methods to plan batches and to read no more of an example than training needs.
    """

    @abstractmethod
    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return a changed batch whose targets are correct for its values.

        All random numbers come from `generator`. Tokens may be dropped and examples may be mixed: the target of mixed
        labels is a distribution over C labels, (B, C, 1) float.
        """

    def max_length(self) -> int | None:
        """Return the largest number of tokens N that an example keeps, or None if no example is shortened."""
        return None

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        """Return the average factors by which the split's token counts N and target lengths L change."""
        return 1.0, 1.0

    def crop(self, lengths: Tensor, generator: torch.Generator) -> Crop | None:
        """Draw the window of each example that `__call__` needs, or return None if it needs whole examples.

        The data loader calls this before it collates a batch. `__call__` is then given only the windows.

        Args:
            lengths: Token counts (B,) of the whole examples, int64.
            generator: Source of the random numbers. `__call__` draws from the same generator afterwards.
        """
        return None


TestTimeAugmentation = Callable[[Batch], Iterable[Batch]]
"""Function from an evaluation batch to batches of several views, each with some or all of the examples.

The predictions of an example are averaged over its views, so they must be tensors, such as probabilities.
"""


def collate(split: EncodedSplit, indices: Sequence[int] | NDArray[np.int64], crop: Crop | None = None) -> Batch:
    """Return the batch of the examples at `indices`, or of a crop of each."""
    values, mask = split.values.padded(indices, 0, crop)
    positions, _ = split.positions.padded(indices, NO_POSITION, crop)
    target, _ = split.targets.padded(indices, IGNORE_INDEX)
    example_indices = torch.from_numpy(split.indices[indices])
    return Batch(values, positions, mask, target[:, 0] if split.scalar_targets else target, example_indices)


def trained_lengths(split: EncodedSplit, augment: Augmentation | None) -> Lengths:
    """Return N and L of each example, with N limited to the largest number of tokens that the augmentation keeps."""
    lengths = split.lengths()
    max_length = None if augment is None else augment.max_length()
    if max_length is not None:
        lengths[:, 0] = lengths[:, 0].clip(max=max_length)
    return lengths


def planned_lengths(split: EncodedSplit, augment: Augmentation | None) -> Lengths:
    """Return `trained_lengths` times the average growth of the augmentation."""
    lengths = trained_lengths(split, augment)
    if augment is None:
        return lengths
    return np.ceil(lengths * augment.expected_growth(split)).astype(lengths.dtype)


def batch_by_tokens(order: NDArray[np.int64], lengths: Lengths, max_tokens: int) -> list[NDArray[np.int64]]:
    """Split examples into consecutive batches.

    Args:
        order: Rows of the examples.
        lengths: N and L by row.
        max_tokens: Upper bound of the tokens of a batch and of its target tokens, both with padding. A longer example
            is a batch by itself.

    Returns:
        The rows of each batch.
    """
    starts: list[int] = []
    longest = start = position = 0
    for rows in np.array_split(order, len(order) // LIST_ROWS + 1):
        for width in lengths[rows].max(1).tolist():
            longest = max(longest, width)
            if position == 0 or longest * (position - start + 1) > max_tokens:
                starts.append(position)
                start, longest = position, width
            position += 1
    return np.split(order, starts[1:])


def sort_by_length(lengths: Lengths) -> NDArray[np.int64]:
    """Return an order of examples in which neighbors have similar N and similar L.

    Examples are sorted by N // 2, and by L in alternately ascending and descending order, so that L never jumps. On
    Multi30k this pads both sides by 5 to 8 %. Sorting by N and then L would pad L by 20 %.
    """
    n, length = lengths.T
    return np.lexsort([np.where(n // 2 % 2, length, -length), n // 2])


def epoch_batches(lengths: Lengths, max_tokens: int, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of one epoch in random order, each of examples of similar length."""
    order = torch.randperm(len(lengths), generator=generator).numpy()
    bucket = max(int(BUCKET_BATCHES * max_tokens / lengths.max(1).mean()), 1)
    for start in range(0, len(order), bucket):
        rows = order[start : start + bucket]
        order[start : start + bucket] = rows[sort_by_length(lengths[rows])]
    batches = batch_by_tokens(order, lengths, max_tokens)
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[i]


def endless_epochs(lengths: Lengths, max_tokens: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of epochs without end. They depend on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from epoch_batches(lengths, max_tokens, generator)


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, each computed by a thread while the previous one is in use."""
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as thread:
        future = thread.submit(next, items, None)
        while (item := future.result()) is not None:
            future = thread.submit(next, items, None)
            yield item


@final
class TrainDataLoader:
    """The batches of a training run on all tasks, as pairs (task, batch).

    The next batch is of the task that has used the smallest part of its share so far, in the unit of the budget. Shares
    are equal by default. A finite temperature T makes them proportional to the number of examples to the power 1 / T
    (Arivazhagan et al. 2019, section 4.2). The batches depend on the seed only.
    """

    def __init__(
        self,
        splits: Mapping[str, EncodedSplit],
        *,
        max_tokens: int,
        seed: int,
        budget: Mapping[BudgetUnit, float],
        costs: Mapping[str, CostFn] | None = None,
        temperature: float = math.inf,
        augment: Mapping[str, Augmentation] | None = None,
        grad_accumulation: int = 1,
    ) -> None:
        """Plan the run.

        Args:
            splits: The train split of each task.
            max_tokens: Upper bound of a batch; see `batch_by_tokens`.
            seed: Seed of the order of examples and of the augmentations.
            budget: Limits for all tasks together. The run ends at the first limit; without a limit it never ends.
            costs: Cost function of each task, for a budget in FLOPs or seconds.
            temperature: The temperature T of the shares.
            augment: Augmentation of each task, if any. The budget counts `planned_lengths`.
            grad_accumulation: Batches per optimizer step. The number of batches is a multiple of it.
        """
        self.splits = splits
        self.augment = augment or {}
        self.grad_accumulation = grad_accumulation
        self.lengths = {task: planned_lengths(split, self.augment.get(task)) for task, split in splits.items()}
        self.max_tokens, self.seed, self.budget = max_tokens, seed, budget
        self.costs = costs or {}
        largest = max(map(len, splits.values()))
        self.shares = {
            task: max((len(split) / largest) ** (1 / temperature), MIN_SHARE) for task, split in splits.items()
        }
        self.batches_done = 0
        """Number of batches to skip. A resumed run sets it to the batches already trained on."""
        self.wait_seconds = 0.0
        """Time that training has waited for batches."""
        self.num_tokens = self.num_padded_tokens = 0
        """Tokens and target tokens in batches so far, without and with padding."""
        self.num_batches = sum(1 for _ in self._plan()) if budget else None
        """Number of batches of the complete run, or None without a budget."""

    def _plan(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield the task and the rows of each batch."""
        streams = {task: endless_epochs(lengths, self.max_tokens, self.seed) for task, lengths in self.lengths.items()}
        used: dict[str, dict[BudgetUnit, float]] = {task: dict.fromkeys(get_args(BudgetUnit), 0) for task in streams}
        num_examples = dict.fromkeys(streams, 0)
        # A plan in seconds could not be reproduced, so that such a budget is shared by FLOPs.
        unit: BudgetUnit = next(iter(self.budget)) if self.budget else "flops" if self.costs else "tokens"
        for number in count():
            is_spent = any(sum(task[name] for task in used.values()) >= limit for name, limit in self.budget.items())
            if is_spent and number % self.grad_accumulation == 0:
                return
            task = min(used, key=lambda name: used[name][unit] / self.shares[name])
            rows = next(streams[task])
            used[task]["tokens"] += int(self.lengths[task][rows, 0].sum())
            used[task]["steps"] += 1
            num_examples[task] += len(rows)
            used[task]["epochs"] = num_examples[task] / len(self.lengths[task])
            if "flops" in {unit, *self.budget}:
                used[task]["flops"] += float(self.costs[task](*self.lengths[task][rows].T).sum())
            yield task, rows

    def __len__(self) -> int:
        if self.num_batches is None:  # Lightning expects a TypeError from a loader without end.
            raise TypeError("a run without a budget in steps, tokens or operations has no length")
        return self.num_batches

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        start = time.perf_counter()
        for task, rows, batch in prefetch(self._batches()):
            lengths = self.lengths[task][rows, : 1 if self.splits[task].scalar_targets else 2]
            self.num_tokens += int(lengths.sum())
            self.num_padded_tokens += len(rows) * int(lengths.max(0).sum())
            self.wait_seconds += time.perf_counter() - start
            yield task, batch
            start = time.perf_counter()

    def _batches(self) -> Iterator[tuple[str, NDArray[np.int64], Batch]]:
        for step, (task, rows) in enumerate(self._plan()):
            if step >= self.batches_done:
                yield task, rows, self._batch(task, rows, step)

    def _batch(self, task: str, rows: NDArray[np.int64], step: int) -> Batch:
        split, augment = self.splits[task], self.augment.get(task)
        if augment is None:
            return collate(split, rows)
        # A seed per step makes a resumed run draw the same numbers.
        seed = np.random.SeedSequence((self.seed, step)).generate_state(1).item()
        generator = torch.Generator().manual_seed(seed)
        crop = augment.crop(torch.from_numpy(split.values.lengths(rows)).long(), generator)
        return augment(collate(split, rows, crop), generator)


@final
class EvalDataLoader:
    """The batches of one evaluation, as pairs (task, batch): every example of each task's split once, longest first."""

    def __init__(self, splits: Mapping[str, EncodedSplit], *, max_tokens: int) -> None:
        self.splits = splits
        self.batches: list[tuple[str, NDArray[np.int64]]] = []
        """Task and rows of each batch."""
        for task, split in splits.items():
            lengths = split.lengths()
            order = np.lexsort([-lengths[:, 1], -lengths[:, 0]])
            self.batches += [(task, rows) for rows in batch_by_tokens(order, lengths, max_tokens)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        for task, rows in self.batches:
            yield task, collate(self.splits[task], rows)
