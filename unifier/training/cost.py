"""The FLOPs of an example: some are counted, and a polynomial goes through the counts.

The cost of a run and of each task: parameters, examples, tokens, FLOPs, seconds, memory."""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unifier.data.dataloader import PERMUTATION_BLOCK, Augmentation, Batch, CostFn, Lengths, collate, trained_lengths
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Experiment
from unifier.nn.precision import default_device
from unifier.training.memory import peak_memory

MAX_COUNTED_LENGTH = 1024
"""The most columns N, and tokens of a target, that are counted at once: attention keeps N x N weights."""


def flops_of_example(loss: Callable[[Batch], Tensor], split: EncodedSplit, augment: Augmentation | None = None) -> CostFn:
    """How many operations an example costs.

    Counts a few examples of the split one by one, and solves for what a transformer's cost is: a polynomial of degree 2
    in N and L. It is exact for every layer that treats columns alike or in pairs. Where examples are longer than
    `LONGEST`, or than what `augment` leaves of them, the beginnings of some are counted in their place; but not where
    the loss of a beginning fails, as of a head that reads all columns by one map: examples are as long then as in
    training.
    """
    read = trained_lengths(split, augment)
    by_column = bool((split.values.lengths() == split.targets.lengths()).all())  # a target of each column's own
    if by_column:
        read[:, 1] = read[:, 0]
    pairs, rows = distinct_lengths(np.minimum(read, MAX_COUNTED_LENGTH))
    if (pairs.max(0) < split.lengths().max(0)).any():  # three lengths of each tell a polynomial of degree 2
        shares = np.array([(n, length) for n in (1, 2, 4) for length in (1, 2, 4) if n == length or not by_column])
        parts = (pairs // shares[:, None]).clip(min=1).reshape(-1, 2)
        with suppress(Exception):  # whatever a stranger's loss raises: what is amiss with it whole is raised below
            return _cost(loss, split, parts, np.tile(rows, len(shares)), by_column=by_column)
        pairs, rows = distinct_lengths(read)
    return _cost(loss, split, pairs, rows, by_column=by_column)


def _cost(
    loss: Callable[[Batch], Tensor], split: EncodedSplit, pairs: Lengths, rows: NDArray[np.intp], *, by_column: bool
) -> CostFn:
    """The polynomial that goes through the counts of a few rows' beginnings, each of N and L as its pair says."""
    chosen = _independent(_terms(*pairs.T) / _terms(*pairs.T).max(0))
    batches = [
        _beginning(collate(split, [row]), *pairs[k].tolist(), by_column=by_column)
        for k, row in zip(chosen, rows[chosen], strict=True)
    ]
    with torch.random.fork_rng(devices=[]):
        counts = [_count(loss, batch) for batch in batches]
    terms = np.concatenate([_terms(*batch.lengths()) for batch in batches])
    largest = terms.max(0)
    coefficients = np.linalg.lstsq(terms / largest, np.array(counts), rcond=None)[0] / largest
    return lambda n, length: _terms(n, length) @ coefficients


def distinct_lengths(lengths: Lengths) -> tuple[Lengths, NDArray[np.intp]]:
    """The rows that are unlike each other, sorted, and where each first stands: little memory, since in blocks."""
    found, places = lengths[:0], np.empty(0, np.intp)
    for start in range(0, len(lengths), PERMUTATION_BLOCK):
        some = lengths[start : start + PERMUTATION_BLOCK]
        places = np.concatenate([places, np.arange(start, start + len(some))])
        found, first = np.unique(np.concatenate([found, some]), axis=0, return_index=True)
        places = places[first]
    return found, places


def _beginning(batch: Batch, columns: int, tokens: int, *, by_column: bool) -> Batch:
    """An example's first columns, none of a picture's row in part, and the first tokens of a target that is a text, or
    those columns' part of one `by_column`."""
    values, positions, mask, target, places = batch
    if columns < mask.shape[1]:
        columns = int((positions[0, 0, :columns] != positions[0, 0, columns]).sum()) or columns
    if target.ndim > 1 and (by_column or not target.is_floating_point()):
        target = target[..., : columns if by_column else tokens]
    return Batch(values[..., :columns], positions[..., :columns], mask[:, :columns], target, places)


def _independent(rows: np.ndarray) -> list[int]:
    """The fewest rows that all the others are sums of, each the one that lies furthest from those before it."""
    rest, chosen = rows.copy(), list[int]()
    while (far := np.linalg.norm(rest, axis=1)).max() > 1e-9 and len(chosen) < rows.shape[1]:
        chosen.append(int(far.argmax()))
        direction = rest[chosen[-1]] / far.max()
        rest -= np.outer(rest @ direction, direction)
    return chosen


def _terms(n: ArrayLike, length: ArrayLike) -> NDArray[np.float64]:
    n, length = np.asarray(n, np.float64), np.asarray(length, np.float64)
    return np.stack([np.ones_like(n), n, n * n, length, length * length, n * length], axis=-1)


@contextmanager
def unprepacked_memory() -> Generator[None]:
    """Layers of memory by their products, which torch counts, not by a processor's or an accelerator's own kernel."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")  # which is of no use here
        with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
            yield


def _count(loss: Callable[[Batch], Tensor], batch: Batch) -> int:
    # torch counts none of what its fused attention does on a CPU; by the plain products every device counts alike.
    with (
        sdpa_kernel(SDPBackend.MATH),
        unprepacked_memory(),
        FlopCounterMode(display=False) as counter,
        torch.enable_grad(),
    ):
        loss(batch).backward()
    return counter.get_total_flops()


@final
@dataclass
class Cost:
    """What an task has used so far."""

    steps: int = 0
    """Those that it had a batch in."""
    examples: int = 0
    tokens: int = 0
    """Columns of examples, without padding. R-Drop's second pass over a batch is not counted."""
    flops: int = 0
    """Floating-point operations of products and convolutions, forward and backward, padding not counted."""
    seconds: float = 0.0
    """Training time, without validations."""


@final
class CostTracker:
    """What training has used so far, each task by itself and all together."""

    def __init__(self, tasks: Mapping[str, Cost], steps: int = 0, peak_memory_bytes: int = 0) -> None:
        self.tasks = tasks
        self.steps = steps
        self.peak_memory_bytes = peak_memory_bytes
        self._since: float | None = None
        self.in_step = Counter[str]()
        """How many batches of each task were counted since the last step."""

    @property
    def running(self) -> bool:
        """Whether the clock runs."""
        return self._since is not None

    def start(self) -> None:
        """Start the clock, unless it runs already."""
        if not self.running:
            self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock; time since it was last read is charged to no task."""
        self._since = None

    def count(self, task: str, columns: Tensor, flops: int) -> None:
        """Add one batch of an task, of examples of so many columns (B,)."""
        spent = self.tasks[task]
        spent.examples += len(columns)
        spent.tokens += int(columns.sum())
        spent.flops += flops
        self.in_step[task] += 1

    def step(self) -> None:
        """Add one step of the optimizer, by the batches counted since the last one."""
        self.steps += 1
        for task in self.in_step:
            self.tasks[task].steps += 1
        self.in_step.clear()

    def clock(self, *tasks: str) -> None:
        """Give the time since the clock was last read to these tasks, the same to each."""
        assert self._since is not None, "the clock stands"
        now = time.perf_counter()
        for task in tasks:
            self.tasks[task].seconds += (now - self._since) / len(tasks)
        self._since = now

    def total(self) -> Cost:
        """The tasks' sum; a step that several have a batch in is one."""
        sums = {unit.name: sum(getattr(one, unit.name) for one in self.tasks.values()) for unit in fields(Cost)}
        return Cost(**{**sums, "steps": self.steps})

    def as_dict(self) -> dict[str, float]:
        """All tasks' figures as of now, and the most memory in use at once."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory(default_device()))
        return {**asdict(self.total()), "peak_memory_bytes": self.peak_memory_bytes}

    def by_task(self) -> dict[str, dict[str, float]]:
        """Each task's figures as of now."""
        return {task: asdict(spent) for task, spent in self.tasks.items()}


def count_parameters(experiment: Experiment) -> dict[str, int]:
    """Parameters of tokenizers, trunk and heads; one that two parts share counts for the first of them."""
    parts: Mapping[str, list[nn.Module]] = {
        "tokenizer": [task.tokenizer for task in experiment.tasks.values()],
        "trunk": [experiment.trunk],
        "head": [task.head for task in experiment.tasks.values()],
    }
    seen: set[Tensor] = set()
    counts: dict[str, int] = {}
    for part, modules in parts.items():
        own = {parameter for module in modules for parameter in module.parameters()} - seen
        counts[part] = sum(parameter.numel() for parameter in own)
        seen |= own
    return {**counts, "total": sum(counts.values())}
