"""Data loaders: batches for training and for evaluation, made from encoded splits."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from typing import Literal, NamedTuple, Self, TypeVar, final, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unifier.data.encoding import EncodedSplit
from unifier.data.shards import Shards
from unifier.data.storage import Crop
from unifier.data.streams import eval_streams, train_streams
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import NO_POSITION, InputError, Tokenizer, Tokens, Units
from unifier_tokenizers.configurable import Configurable
from unifier_tokenizers.tokens import has_no_padding, is_batch_constant

Lengths = NDArray[np.int32]
"""Array (n, 2) with one row per example: the number of tokens N and the target length L."""

CostFn = Callable[[ArrayLike, ArrayLike], NDArray[np.float64]]
"""Function that returns the FLOPs of forward and backward passes, given the token counts N and target lengths L."""

BudgetUnit = Literal["tokens", "flops", "steps", "epochs"]
"""Units of a training budget: tokens without padding, floating-point operations, batches, or passes over a split."""

Item = TypeVar("Item")

BUCKET_BATCHES = 100
"""Approximate number of batches in a group of examples. Shuffled examples are split into groups, and each group is
sorted by length."""

LIST_ROWS = 1 << 16
"""Number of lengths that are converted to Python numbers at a time. A small number limits the use of memory."""

MIN_SHARE = 1e-9
"""Lower bound of a task's share of the budget, relative to the share of the task with the most examples."""


class _Parts(NamedTuple):
    values: Tensor
    """Values of the tokens, (B, ..., N)."""
    positions: Tensor
    """Positions of the tokens, (B, A, N) int64."""
    mask: Tensor
    """Mask (B, N) bool, True for tokens that are not padding."""
    target: Tensor
    """Targets (B,) or (B, ..., L), padded with `IGNORE_INDEX`."""
    example_indices: Tensor
    """Index of each example in its split, (B,) int64."""


@final
class Batch(_Parts):
    """Examples of one task, padded to the longest example. By default, `example_indices` are 0, 1, 2, ..."""

    __slots__ = ()

    def __new__(
        cls, values: Tensor, positions: Tensor, mask: Tensor, target: Tensor, example_indices: Tensor | None = None
    ) -> Self:
        if example_indices is None:
            example_indices = torch.arange(len(mask), device=mask.device)
        return super().__new__(cls, values, positions, mask, target, example_indices)

    def lengths(self) -> tuple[Tensor, Tensor]:
        """Return the number of tokens N (B,) and the target length L (B,) of each example, without padding.

        Both tensors are on the CPU. The target length L is 1 if the target is a label or a distribution over labels,
        such as tags.
        """
        num_tokens = self.mask.sum(1).cpu()
        if self.target.ndim == 1 or self.target.is_floating_point():
            return num_tokens, torch.ones_like(num_tokens)
        target = self.target.reshape(len(num_tokens), -1, self.target.shape[-1])[:, 0]
        return num_tokens, (target != IGNORE_INDEX).sum(1).cpu()

    def embed(self, tokenizer: Tokenizer) -> Tokens:
        """Embed the examples as Tokens (B, D, N), the input of the trunk."""
        return Tokens(tokenizer.embed(self.values, self.positions), self.mask, self.positions)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device. The copy to "cuda" is asynchronous.

        A mask without padding becomes an expanded view. Positions become an expanded view if they are equal in all
        examples. The strides of an expanded view show that its entries are equal. No value has to be read from the
        device.
        """
        # On devices other than CUDA, pinned memory may be freed before its content is copied (pytorch issue 189690).
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

    Subclasses implement `__call__`. A subclass that shortens, lengthens or crops examples also overrides `max_length`,
    `expected_growth` or `crop`. The data loader calls `max_length` and `expected_growth` to plan batches, and `crop` to
    read only the necessary tokens.
    """

    @abstractmethod
    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return a changed batch. The targets must match the changed values.

        All random numbers come from `generator`. Tokens may be dropped, and examples may be mixed. If labels are mixed,
        the target is a distribution over the C labels, (B, C, 1) float.
        """

    def max_length(self) -> int | None:
        """Return the largest number of tokens N that an example can have after augmentation, or None for no limit."""
        return None

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        """Return the average factors by which augmentation changes the token counts N and target lengths L of a split.

        Data loaders multiply the lengths of the examples by the average factors to plan batches.
        """
        return 1.0, 1.0

    def crop(self, lengths: Tensor, generator: torch.Generator) -> Crop | None:
        """Draw the window of each example that `__call__` needs, or return None if `__call__` needs complete examples.

        The data loader calls `crop` before it collates a batch, and passes only the windows to `__call__`.

        Args:
            lengths: Token counts (B,) of the complete examples, int64.
            generator: Source of the random numbers. `__call__` draws further numbers from this generator.
        """
        return None


class Objective(Configurable, ABC):
    """Definition of the targets that a head predicts from the input itself, such as hidden tokens or the next token.

    An objective changes the batches of training, validation and test, after augmentation and before embedding. In
    training, the random numbers depend on the seed, the step and the example index. In validation and test, the random
    numbers depend only on the example index.
    """

    marked_text: bool = False
    """See `Head.marked_text`."""

    @abstractmethod
    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        """Return a batch with new targets. Tokens may be replaced or dropped.

        The result for an example must not depend on the other examples of the batch, except for padding.

        Args:
            batch: The examples.
            generators: One random generator per example.
        """

    def evaluation(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        """Return a batch of validation and test with new targets. The default implementation is that of training.

        Args:
            batch: See `__call__`.
            generators: See `__call__`.
        """
        return self(batch, generators)

    def check(self, units: Units) -> None:
        """Raise InputError if an encoded example cannot be used. The default implementation accepts every example.

        The setting `bad_examples` determines whether the error stops the run, or the example is left out.
        """

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        """Return the token counts N and target lengths L (n, 2) of examples after the objective.

        Args:
            lengths: The lengths (n, 2) before the objective. L is the length of the target that the head encodes.
        """
        return lengths


class TestTimeAugmentation(Configurable, ABC):
    """Views of the examples in validation, test and inference. The predictions of all views are averaged.

    Predictions must be tensors, such as probabilities.
    """

    @abstractmethod
    def __call__(self, batch: Batch) -> Iterable[Batch]:
        """Yield the views of a batch. A view contains some or all examples of the batch."""


def collate(split: EncodedSplit, indices: Sequence[int] | NDArray[np.int64], crop: Crop | None = None) -> Batch:
    """Return a batch of the examples at `indices`. If `crop` is given, each example is reduced to its crop."""
    values, mask = split.values.padded(indices, 0, crop)
    positions, _ = split.positions.padded(indices, NO_POSITION, crop)
    target, _ = split.targets.padded(indices, IGNORE_INDEX)
    example_indices = torch.from_numpy(split.indices[indices])
    return Batch(values, positions, mask, target[:, 0] if split.scalar_targets else target, example_indices)


def trained_lengths(split: EncodedSplit, augment: Augmentation | None) -> Lengths:
    """Return the token count N and target length L of each example. The augmentation's `max_length` limits N."""
    lengths = split.lengths()
    max_length = None if augment is None else augment.max_length()
    if max_length is not None:
        lengths[:, 0] = lengths[:, 0].clip(max=max_length)
    return lengths


def planned_lengths(split: EncodedSplit, augment: Augmentation | None, objective: Objective | None = None) -> Lengths:
    """Return the expected token count and target length of each example after augmentation and objective."""
    lengths = trained_lengths(split, augment)
    if augment is not None:
        lengths = np.ceil(lengths * augment.expected_growth(split)).astype(lengths.dtype)
    return lengths if objective is None else objective.planned_lengths(lengths)


def apply_objective(objective: Objective, batch: Batch, *seeds: int) -> Batch:
    """Apply an objective with one random generator per example.

    Args:
        objective: The objective.
        batch: The examples.
        seeds: In training, numbers on which the random numbers depend, in addition to the example index. Without
            seeds, the batch is one of validation and test.
    """
    change = objective if seeds else objective.evaluation
    states = [np.random.SeedSequence((*seeds, index)).generate_state(1) for index in batch.example_indices.tolist()]
    return change(batch, [torch.Generator().manual_seed(state.item()) for state in states])


def batch_by_tokens(order: NDArray[np.int64], lengths: Lengths, max_tokens: int) -> list[NDArray[np.int64]]:
    """Split a list of examples into consecutive batches.

    Args:
        order: Row indices of the examples in `lengths`, in training order.
        lengths: Token count N and target length L of each example, (n, 2).
        max_tokens: Maximum number of tokens in a batch, including padding. `max_tokens` also limits the number of
            target tokens in a batch. An example with more than `max_tokens` tokens forms a batch by itself.

    Returns:
        The row indices of each batch.
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


def rows_per_batch(lengths: Lengths, max_tokens: int) -> int:
    """Return the number of examples of the largest length in a batch of at most `max_tokens` tokens, at least 1."""
    return max(max_tokens // int(lengths.max()), 1)


def sort_by_length(lengths: Lengths) -> NDArray[np.int64]:
    """Return sorted example indices: neighbors have similar token counts N and similar target lengths L.

    Examples are sorted by N // 2. Examples with equal N // 2 are sorted by L. The order of L is ascending if N // 2 is
    odd, and descending if N // 2 is even. Neighbors therefore always have similar L. On Multi30k, 5 to 8 percent of all
    tokens and target tokens are padding. A plain sort by N and L would add 20 percent of padding to the targets.
    """
    n, length = lengths.T
    return np.lexsort([np.where(n // 2 % 2, length, -length), n // 2])


def epoch_batches(lengths: Lengths, max_tokens: int, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of one epoch in random order. The examples of a batch have similar lengths."""
    order = torch.randperm(len(lengths), generator=generator).numpy()
    bucket = max(int(BUCKET_BATCHES * max_tokens / lengths.max(1).mean()), 1)
    for start in range(0, len(order), bucket):
        rows = order[start : start + bucket]
        order[start : start + bucket] = rows[sort_by_length(lengths[rows])]
    batches = batch_by_tokens(order, lengths, max_tokens)
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[i]


def endless_epochs(
    lengths: Lengths, max_tokens: int, seed: int, shards: Shards | None = None, *, announce: bool = False
) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of endless epochs. Equal seeds produce equal batches.

    Args:
        lengths: See `batch_by_tokens`.
        max_tokens: See `batch_by_tokens`.
        seed: The random seed.
        shards: The shards of a packed split. Each batch has examples of one window of shards.
        announce: True if the batches are read, so the shards of the next window are copied in advance.
    """
    generator = torch.Generator().manual_seed(seed)
    while shards is None:
        yield from epoch_batches(lengths, max_tokens, generator)
    for window, following in pairwise(shards.windows(seed)):
        if announce:
            shards.announce(window, following)
        rows = shards.rows(window)
        for batch in epoch_batches(lengths[rows], max_tokens, generator):
            yield rows[batch]


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items. While the caller uses an item, a thread computes the next item."""
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as thread:
        future = thread.submit(next, items, None)
        while (item := future.result()) is not None:
            future = thread.submit(next, items, None)
            yield item


@final
class TrainDataLoader:
    """The batches of a training run on all tasks, as pairs (task, batch).

    Each task has a share of the budget. The next batch comes from the task that has used the smallest fraction of its
    share. By default, all shares are equal. With a finite temperature T, a task with n examples has a share
    proportional to n ** (1 / T) (Arivazhagan et al. 2019, section 4.2). Equal seeds produce equal batches.
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
        objectives: Mapping[str, Objective] | None = None,
        streams: Collection[str] = (),
        grad_accumulation: int = 1,
    ) -> None:
        """Plan the batches of the run.

        Args:
            splits: The train split of each task.
            max_tokens: Upper bound of the number of tokens in a batch; see `batch_by_tokens`.
            seed: Random seed for the order of the examples and for the augmentations.
            budget: Limits for all tasks together. The run ends when any limit is reached. A run without limits never
                ends.
            costs: Cost function of each task, needed for a budget in FLOPs or seconds.
            temperature: Temperature T, which divides the budget among the tasks. Infinity means equal shares.
            augment: Mapping from a task to its augmentation. A budget in tokens counts the expected number of tokens
                after augmentation.
            objectives: Mapping from a task to its objective.
            streams: The tasks whose batches continue the sequences of the batch before; see `train_streams`.
            grad_accumulation: Number of batches per optimizer step. The total number of batches is a multiple of
                `grad_accumulation`.
        """
        self.splits = splits
        self.augment, self.objectives = augment or {}, objectives or {}
        self.stream_tasks, self.grad_accumulation = streams, grad_accumulation
        self.lengths = {
            task: planned_lengths(split, self.augment.get(task), self.objectives.get(task))
            for task, split in splits.items()
        }
        self.max_tokens, self.seed, self.budget = max_tokens, seed, budget
        self.costs = costs or {}
        largest = max(map(len, splits.values()))
        self.shares = {
            task: max((len(split) / largest) ** (1 / temperature), MIN_SHARE) for task, split in splits.items()
        }
        self.batches_done = 0
        """Number of batches to skip. A resumed run skips the batches that it has already trained on."""
        self.wait_seconds = 0.0
        """Time in seconds that training has waited for batches."""
        self.num_tokens = self.num_padded_tokens = 0
        """Number of tokens in all batches so far, without padding and with padding. Target tokens are included."""
        self.num_batches = sum(1 for _ in self._plan()) if budget else None
        """Number of batches of the complete run, or None if the run has no budget."""

    def _plan(self, *, announce: bool = False) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield the task and the row indices of each batch. For `announce`, see `endless_epochs`."""
        batches = {task: self._epochs(task, announce=announce) for task in self.splits}
        used: dict[str, dict[BudgetUnit, float]] = {task: dict.fromkeys(get_args(BudgetUnit), 0) for task in batches}
        num_examples = dict.fromkeys(batches, 0)
        # Computing times differ between runs. A budget in seconds is therefore divided among the tasks by FLOPs.
        unit: BudgetUnit = next(iter(self.budget)) if self.budget else "flops" if self.costs else "tokens"
        for number in count():
            is_spent = any(sum(task[name] for task in used.values()) >= limit for name, limit in self.budget.items())
            if is_spent and number % self.grad_accumulation == 0:
                return
            task = min(used, key=lambda name: used[name][unit] / self.shares[name])
            rows = next(batches[task])
            used[task]["tokens"] += int(self.lengths[task][rows, 0].sum())
            used[task]["steps"] += 1
            num_examples[task] += len(rows)
            used[task]["epochs"] = num_examples[task] / len(self.lengths[task])
            if "flops" in {unit, *self.budget}:
                used[task]["flops"] += float(self.costs[task](*self.lengths[task][rows].T).sum())
            yield task, rows

    def _epochs(self, task: str, *, announce: bool) -> Iterator[NDArray[np.int64]]:
        lengths, split = self.lengths[task], self.splits[task]
        if task not in self.stream_tasks:
            return endless_epochs(lengths, self.max_tokens, self.seed, split.shards, announce=announce)
        if split.shards is not None:
            raise InputError(f'task "{task}": a head with a memory reads whole sequences, but the data are packed')
        return train_streams(split, rows_per_batch(lengths, self.max_tokens), self.seed)

    def __len__(self) -> int:
        if self.num_batches is None:  # Lightning expects a TypeError from a loader that never ends.
            raise TypeError("a run without a budget in steps, epochs, tokens or FLOPs has no length")
        return self.num_batches

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        start = time.perf_counter()
        for task, rows, batch in prefetch(self._batches()):
            is_scalar = self.splits[task].scalar_targets and task not in self.objectives
            lengths = self.lengths[task][rows, : 1 if is_scalar else 2]
            self.num_tokens += int(lengths.sum())
            self.num_padded_tokens += len(rows) * int(lengths.max(0).sum())
            self.wait_seconds += time.perf_counter() - start
            yield task, batch
            start = time.perf_counter()

    def _batches(self) -> Iterator[tuple[str, NDArray[np.int64], Batch]]:
        for step, (task, rows) in enumerate(self._plan(announce=True)):
            if step >= self.batches_done:
                batch, objective = self._augmented(task, rows, step), self.objectives.get(task)
                yield task, rows, batch if objective is None else apply_objective(objective, batch, self.seed, step)

    def _augmented(self, task: str, rows: NDArray[np.int64], step: int) -> Batch:
        split, augment = self.splits[task], self.augment.get(task)
        if augment is None:
            return collate(split, rows)
        # Each step has its own seed, so resumed and uninterrupted runs draw equal numbers.
        seed = np.random.SeedSequence((self.seed, step)).generate_state(1).item()
        generator = torch.Generator().manual_seed(seed)
        crop = augment.crop(torch.from_numpy(split.values.lengths(rows)).long(), generator)
        return augment(collate(split, rows, crop), generator)


@final
class EvalDataLoader:
    """The batches of one evaluation, as pairs (task, batch).

    Every example of each task's split occurs once. The longest examples of a task, or of a packed split's shard, come
    first, except for tasks in `streams`, whose sequences lie in rows (see `eval_streams`).

    Of several processes, process r of n has the batches r, r + n, r + 2 n, ... A process without such a batch repeats
    the first batch.
    """

    def __init__(
        self,
        splits: Mapping[str, EncodedSplit],
        *,
        max_tokens: int,
        objectives: Mapping[str, Objective] | None = None,
        streams: Collection[str] = (),
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        self.splits, self.objectives = splits, objectives or {}
        self.batches: list[tuple[str, NDArray[np.int64]]] = []
        """Task and row indices of each batch."""
        for task, split in splits.items():
            lengths = split.lengths()
            if task in streams:
                rows = rows_per_batch(planned_lengths(split, None, self.objectives.get(task)), max_tokens)
                self.batches += [(task, batch) for batch in eval_streams(split, rows)]
                continue
            shards = split.shards
            parts = (
                [np.arange(len(lengths))] if shards is None else [shards.rows([k]) for k in range(len(shards.files))]
            )
            for part in parts:
                order = part[np.lexsort([-lengths[part, 1], -lengths[part, 0]])]
                self.batches += [(task, rows) for rows in batch_by_tokens(order, lengths, max_tokens)]
        self.batches = self.batches[rank::num_processes] or self.batches[:1]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        for task, rows in self.batches:
            batch, objective = collate(self.splits[task], rows), self.objectives.get(task)
            yield task, batch if objective is None else apply_objective(objective, batch)
