"""From encoded splits to the batches of a training run."""

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


class _Parts(NamedTuple):
    values: Tensor
    """(B, ..., N)."""
    positions: Tensor
    """(B, A, N) int64."""
    mask: Tensor
    """(B, N) bool, True on real columns."""
    target: Tensor
    """(B,) or (B, ..., L), padded with `IGNORED`."""
    example_indices: Tensor
    """(B,) int64: each example's place in its split, by which what is said of it is kept."""


@final
class Batch(_Parts):
    """Examples of one task, padded to the longest of them; those that are of no split have their places in the batch."""

    __slots__ = ()

    def __new__(
        cls, values: Tensor, positions: Tensor, mask: Tensor, target: Tensor, example_indices: Tensor | None = None
    ) -> Self:
        own = torch.arange(len(mask), device=mask.device) if example_indices is None else example_indices
        return super().__new__(cls, values, positions, mask, target, own)

    def lengths(self) -> tuple[Tensor, Tensor]:
        """For each example the columns N (B,), and the length L (B,) of its target, padding not counted; on the CPU.

        L is 1 of a label, and of tags or another distribution, which is no text.
        """
        columns = self.mask.sum(1).cpu()
        if self.target.ndim == 1 or self.target.is_floating_point():
            return columns, torch.ones_like(columns)
        return columns, (self.target.reshape(len(columns), -1, self.target.shape[-1])[:, 0] != IGNORE_INDEX).sum(
            1
        ).cpu()

    def to(self, device: torch.device) -> "Batch":
        """The same on a device; what is known of it here is known there. "cuda" is not waited for."""
        pinned = device.type == "cuda"  # elsewhere it may be gone before it was read (pytorch issue 189690)
        parts = (part.pin_memory() if pinned else part for part in self)
        sent = Batch(*(part.to(device, non_blocking=pinned) for part in parts))
        mask, positions = sent.mask, sent.positions
        return sent._replace(
            mask=mask[:1, :1].expand_as(mask) if has_no_padding(self.mask) else mask,
            positions=positions[:1].expand_as(positions) if is_batch_constant(self.positions) else positions,
        )


class Augmentation(ABC):
    """Random change of training batches, made after encoding and before embedding.

    Subclasses implement `__call__`. They override the other methods only if they shorten, lengthen or crop examples:
    the data loader uses these methods to plan batches and to read no more of an example than training needs.
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
"""Shows the examples of an evaluation batch in several ways, each example in one or more of the batches it gives.

An example's predictions are averaged, so they must be tensors, such as probabilities.
"""


def collate(split: EncodedSplit, indices: Sequence[int] | NDArray[np.int64], crop: Crop | None = None) -> Batch:
    """The batch of a split's examples, or of a piece of each."""
    values, mask = split.values.padded(indices, 0, crop)
    positions, _ = split.positions.padded(indices, NO_POSITION, crop)
    target, _ = split.targets.padded(indices, IGNORE_INDEX)
    places = torch.from_numpy(split.indices[indices])
    return Batch(values, positions, mask, target[:, 0] if split.scalar_targets else target, places)


Lengths = NDArray[np.int32]
"""(n, 2): N and L of each example of a split."""


def trained_lengths(split: EncodedSplit, augment: Augmentation | None) -> Lengths:
    """N and L of each example as training reads it: what is always left out is not counted."""
    lengths = split.lengths()
    max_length = None if augment is None else augment.max_length()
    if max_length is not None:
        lengths[:, 0] = lengths[:, 0].clip(max=max_length)
    return lengths


def planned_lengths(split: EncodedSplit, augment: Augmentation | None) -> Lengths:
    """The same as they will be on average, where training makes more or fewer of them."""
    lengths = trained_lengths(split, augment)
    if augment is None:
        return lengths
    return np.ceil(lengths * augment.expected_growth(split)).astype(lengths.dtype)


def batch_by_tokens(order: NDArray[np.int64], lengths: Lengths, max_tokens: int) -> list[NDArray[np.int64]]:
    """Cut examples in the order given into batches of at most `columns` columns and targets, padding included.

    An example that is longer by itself is a batch of one.
    """
    starts: list[int] = []
    longest = start = place = 0
    for some in np.array_split(
        order, len(order) // PERMUTATION_BLOCK + 1
    ):  # never many of Python's own numbers at once
        for width in lengths[some].max(1).tolist():
            longest = max(longest, width)
            if place == 0 or longest * (place - start + 1) > max_tokens:
                starts.append(place)
                start, longest = place, width
            place += 1
    return np.split(order, starts[1:])


PERMUTATION_BLOCK = 1 << 16


MIN_BATCHES = 1e-9
"""The least share of a budget that a temperature gives, beside the largest."""


BUCKET_BATCHES = 100
"""How many batches' worth of shuffled examples are sorted by length together."""


def sort_by_length(lengths: Lengths) -> NDArray[np.int64]:
    """An order of examples that brings alike N and alike L together.

    N counts in twos, and where it steps up L turns from rising to falling or back, so that it never jumps. On Multi30k
    both sides are then padded by 5 to 8 %; sorting by N and then L pads L by 20 %.
    """
    n, length = lengths.T
    return np.lexsort([np.where(n // 2 % 2, length, -length), n // 2])


def epoch_batches(lengths: Lengths, max_tokens: int, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    """One pass over a split in random order, examples of like length side by side so that little is padded."""
    order = torch.randperm(len(lengths), generator=generator).numpy()
    bucket = max(int(BUCKET_BATCHES * max_tokens / lengths.max(1).mean()), 1)
    for start in range(0, len(order), bucket):
        some = order[start : start + bucket]
        order[start : start + bucket] = some[sort_by_length(lengths[some])]
    batches = batch_by_tokens(order, lengths, max_tokens)
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[i]


def endless_epochs(lengths: Lengths, max_tokens: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Passes over a split without end; the seed alone decides them."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from epoch_batches(lengths, max_tokens, generator)


CostFn = Callable[[ArrayLike, ArrayLike], NDArray[np.float64]]
"""Operations, forward and backward, of examples of so many columns N and targets of so many tokens L."""


BudgetUnit = Literal["tokens", "flops", "steps", "epochs"]
"""What a plan of batches can count: columns that are no padding, operations, batches, passes over a split."""


Item = TypeVar("Item")


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """The items, each made by a thread while the one before it is in use."""
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


@final
class TrainDataLoader:
    """The batches of a whole training run, in order: which task's turn it is, and which of its examples.

    The turn is the task's that has had the least of its share, in the unit of the budget. Shares are equal, or at a
    finite temperature T as the numbers of examples to the power 1 / T (Arivazhagan et al. 2019, section 4.2): T = 1 is
    in proportion. The seed decides all.
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
        """`budget` is what all tasks together may use, whatever unit is reached first; an empty one has no end.

        `costs` says what an task's examples cost, for a budget in operations or seconds; `augment` what is done to its
        batches, which the budget counts as `lengths_planned` has them. There are a multiple of `together` batches: a
        step takes so many.
        """
        self.splits = splits
        self.augment = augment or {}
        self.together = grad_accumulation
        self.lengths = {task: planned_lengths(split, self.augment.get(task)) for task, split in splits.items()}
        self.columns, self.seed, self.budget = max_tokens, seed, budget
        self.costs = costs or {}
        largest = max(map(len, splits.values()))
        self.shares = {
            task: max((len(split) / largest) ** (1 / temperature), MIN_BATCHES) for task, split in splits.items()
        }
        self.batches_done = 0
        """Batches already trained on, which iterating leaves out: a resumed run sets it."""
        self.wait_seconds = 0.0
        """Time in which training waited for a batch."""
        self.num_tokens = self.num_padded_tokens = 0
        """Columns and target tokens put into batches so far, without padding and with it."""
        self.num_batches = sum(1 for _ in self._plan()) if budget else None

    def _plan(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        streams = {task: endless_epochs(lengths, self.columns, self.seed) for task, lengths in self.lengths.items()}
        had: dict[str, dict[BudgetUnit, float]] = {task: dict.fromkeys(get_args(BudgetUnit), 0) for task in streams}
        examples = dict.fromkeys(streams, 0)
        # seconds are nobody's to repeat: tasks have like shares of them by their operations
        counted: BudgetUnit = next(iter(self.budget)) if self.budget else "flops" if self.costs else "tokens"
        for number in count():
            ended = any(sum(own[unit] for own in had.values()) >= most for unit, most in self.budget.items())
            if ended and number % self.together == 0:
                return
            task = min(had, key=lambda name: had[name][counted] / self.shares[name])
            rows = next(streams[task])
            had[task]["tokens"] += int(self.lengths[task][rows, 0].sum())
            had[task]["steps"] += 1
            examples[task] += len(rows)
            had[task]["epochs"] = examples[task] / len(self.lengths[task])
            if "flops" in {counted, *self.budget}:
                had[task]["flops"] += float(self.costs[task](*self.lengths[task][rows].T).sum())
            yield task, rows

    def __len__(self) -> int:
        if self.num_batches is None:  # as Lightning asks of what has no end
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
        own = np.random.SeedSequence((self.seed, step)).generate_state(1).item()  # so that a resumed run draws the same
        generator = torch.Generator().manual_seed(own)
        crop = augment.crop(torch.from_numpy(split.values.lengths(rows)).long(), generator)
        return augment(collate(split, rows, crop), generator)


@final
class EvalDataLoader:
    """Every example of each task's split once, longest first."""

    def __init__(self, splits: Mapping[str, EncodedSplit], *, max_tokens: int) -> None:
        self.splits = splits
        self.batches: list[tuple[str, NDArray[np.int64]]] = []
        for task, split in splits.items():
            lengths = split.lengths()
            order = np.lexsort([-lengths[:, 1], -lengths[:, 0]])
            self.batches += [(task, rows) for rows in batch_by_tokens(order, lengths, max_tokens)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        for task, rows in self.batches:
            yield task, collate(self.splits[task], rows)
