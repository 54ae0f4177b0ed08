"""The cost of a run and of each of its tasks: parameters, examples, tokens, FLOPs, seconds and memory.

FLOPs are counted on a few examples. A polynomial in the example lengths is fitted to the counted FLOPs, and predicts
the FLOPs of all other examples.
"""

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

from unifier.data.dataloader import (
    Augmentation,
    Batch,
    CostFn,
    Lengths,
    Objective,
    apply_objective,
    collate,
    trained_lengths,
)
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Experiment
from unifier.nn.lora import LowRankUpdate
from unifier.nn.precision import default_device
from unifier.training.memory import peak_memory

MAX_COUNTED_LENGTH = 1024
"""Maximum number of tokens of an input or target when FLOPs are counted. Attention stores N x N weights."""

BLOCK_EXAMPLES = 1 << 16
"""Number of examples in a block of `distinct_lengths`. Blocks limit the use of memory."""


@final
@dataclass
class Cost:
    """Resources that a task has used so far."""

    steps: int = 0
    """Number of optimizer steps in which the task had a batch."""
    examples: int = 0
    tokens: int = 0
    """Number of tokens of the examples, without padding and without the second forward pass of R-Drop."""
    flops: int = 0
    """Floating-point operations of matrix products and convolutions, forward and backward, without padding."""
    seconds: float = 0.0
    """Training time, without validations."""


@final
class CostTracker:
    """Accumulated cost of each task."""

    def __init__(self, tasks: Mapping[str, Cost], steps: int = 0, peak_memory_bytes: int = 0) -> None:
        """Create the tracker. For a resumed run, pass the costs so far."""
        self.tasks = tasks
        self.steps = steps
        self.peak_memory_bytes = peak_memory_bytes
        self._last_time: float | None = None
        self.in_step = Counter[str]()
        """Number of batches of each task since the last optimizer step."""

    @property
    def running(self) -> bool:
        """The state of the clock: True if the clock is running."""
        return self._last_time is not None

    def start(self) -> None:
        """Start the clock, unless the clock is running."""
        if not self.running:
            self._last_time = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock. The time since the last call of `clock` is not added to any task."""
        self._last_time = None

    def count(self, task: str, lengths: Tensor, flops: int) -> None:
        """Add one batch to the cost of a task.

        Args:
            task: The task of the batch.
            lengths: Number of tokens of each example (B,).
            flops: Floating-point operations of the whole batch.
        """
        cost = self.tasks[task]
        cost.examples += len(lengths)
        cost.tokens += int(lengths.sum())
        cost.flops += flops
        self.in_step[task] += 1

    def step(self) -> None:
        """Add one optimizer step to the run, and to each task with a batch in the step."""
        self.steps += 1
        for task in self.in_step:
            self.tasks[task].steps += 1
        self.in_step.clear()

    def clock(self, *tasks: str) -> None:
        """Divide the time since the last call of `clock` equally among the given tasks."""
        assert self._last_time is not None, "the clock is not running"
        now = time.perf_counter()
        for task in tasks:
            self.tasks[task].seconds += (now - self._last_time) / len(tasks)
        self._last_time = now

    def total(self) -> Cost:
        """Return the sum of the costs of all tasks. A step with batches of several tasks is counted once."""
        sums = {unit.name: sum(getattr(cost, unit.name) for cost in self.tasks.values()) for unit in fields(Cost)}
        return Cost(**{**sums, "steps": self.steps})

    def as_dict(self) -> dict[str, float]:
        """Return the total cost and the peak memory."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory(default_device()))
        return {**asdict(self.total()), "peak_memory_bytes": self.peak_memory_bytes}

    def by_task(self) -> dict[str, dict[str, float]]:
        """Return the cost of each task."""
        return {task: asdict(cost) for task, cost in self.tasks.items()}


def count_parameters(experiment: Experiment) -> dict[str, int]:
    """Count the parameters of tokenizers, trunk and heads. Each shared parameter is counted only once.

    Low-rank updates are not parameters of the finished model, because they are merged into its weights. The entry
    "trained" counts the parameters that training changes, with the low-rank updates.
    """
    parts: Mapping[str, list[nn.Module]] = {
        "tokenizer": [task.tokenizer for task in experiment.tasks.values()],
        "trunk": [experiment.trunk],
        "head": [task.head for task in experiment.tasks.values()],
    }
    updates = {
        parameter
        for module in experiment.trunk.modules()
        if isinstance(module, LowRankUpdate)
        for parameter in module.parameters()
    }
    seen = set[Tensor](updates)
    counts: dict[str, int] = {}
    for part, modules in parts.items():
        parameters = {parameter for module in modules for parameter in module.parameters()} - seen
        counts[part] = sum(parameter.numel() for parameter in parameters)
        seen |= parameters
    trained = sum(parameter.numel() for parameter in seen if parameter.requires_grad)
    return {**counts, "total": sum(counts.values()), "trained": trained}


def flops_of_example(
    loss: Callable[[Batch], Tensor],
    split: EncodedSplit,
    augmentation: Augmentation | None = None,
    objective: Objective | None = None,
    *,
    max_length: int = MAX_COUNTED_LENGTH,
) -> CostFn:
    """Return a function that maps the lengths N and L of an example to its FLOPs.

    The function is a polynomial of degree 2 in N and L, fitted to the FLOPs of a few examples. The polynomial is exact
    for layers with a constant cost per token or per pair of tokens. FLOPs are counted on the first `max_length` tokens
    of an example. If a head requires complete examples, FLOPs are counted on complete examples.

    Args:
        loss: A function that returns the loss of a batch.
        split: The training split.
        augmentation: The augmentation, which may change the lengths of training examples.
        objective: The objective, which defines the targets and may drop tokens.
        max_length: The maximum number of tokens of an example for FLOP counting.
    """
    lengths = trained_lengths(split, augmentation)
    per_token = bool((split.values.lengths() == split.targets.lengths()).all())  # Each token has its own target.
    if per_token:
        lengths[:, 1] = lengths[:, 0]
    pairs, rows = distinct_lengths(np.minimum(lengths, max_length))
    if (pairs.max(0) < split.lengths().max(0)).any():
        # A polynomial of degree 2 requires three values of N and three values of L.
        divisors = np.array([(n, length) for n in (1, 2, 4) for length in (1, 2, 4) if n == length or not per_token])
        parts = (pairs // divisors[:, None]).clip(min=1).reshape(-1, 2)
        with suppress(Exception):  # An error on complete examples is raised by the last line.
            return _fit_cost(loss, split, objective, parts, np.tile(rows, len(divisors)), per_token=per_token)
        pairs, rows = distinct_lengths(lengths)
    return _fit_cost(loss, split, objective, pairs, rows, per_token=per_token)


def distinct_lengths(lengths: Lengths, block: int = BLOCK_EXAMPLES) -> tuple[Lengths, NDArray[np.intp]]:
    """Return the distinct rows of `lengths` in sorted order, and the index of the first example with each row.

    Rows are processed in blocks of `block` rows to save memory.
    """
    distinct, indices = lengths[:0], np.empty(0, np.intp)
    for start in range(0, len(lengths), block):
        part = lengths[start : start + block]
        indices = np.concatenate([indices, np.arange(start, start + len(part))])
        distinct, first = np.unique(np.concatenate([distinct, part]), axis=0, return_index=True)
        indices = indices[first]
    return distinct, indices


def _fit_cost(
    loss: Callable[[Batch], Tensor],
    split: EncodedSplit,
    objective: Objective | None,
    pairs: Lengths,
    rows: NDArray[np.intp],
    *,
    per_token: bool,
) -> CostFn:
    """Fit the polynomial to the FLOPs of a few examples, truncated to the lengths in `pairs`.

    Args:
        loss: A function that returns the loss of a batch.
        split: The training split.
        objective: The objective, which is applied to the truncated examples.
        pairs: The lengths N and L of K candidates (K, 2).
        rows: The index of each candidate's example in the split (K,).
        per_token: True if each token has its own target.
    """
    chosen = _independent_rows(_terms(*pairs.T) / _terms(*pairs.T).max(0))
    batches = [
        _cut(collate(split, [row]), *pairs[k].tolist(), per_token=per_token)
        for k, row in zip(chosen, rows[chosen], strict=True)
    ]
    if objective is not None:
        batches = [apply_objective(objective, batch, 0) for batch in batches]
    with torch.random.fork_rng(devices=[]):
        counts = [_count_flops(loss, batch) for batch in batches]
    terms = np.concatenate([_terms(*batch.lengths()) for batch in batches])
    largest = terms.max(0)
    coefficients = np.linalg.lstsq(terms / largest, np.array(counts), rcond=None)[0] / largest
    return lambda n, length: _terms(n, length) @ coefficients


def _cut(batch: Batch, num_tokens: int, target_length: int, *, per_token: bool) -> Batch:
    """Truncate a batch and its text target. An image is truncated at the end of a row of patches."""
    values, positions, mask, target, indices = batch
    if num_tokens < mask.shape[1]:
        num_tokens = int((positions[0, 0, :num_tokens] != positions[0, 0, num_tokens]).sum()) or num_tokens
    if target.ndim > 1 and (per_token or not target.is_floating_point()):
        target = target[..., : num_tokens if per_token else target_length]
    return Batch(values[..., :num_tokens], positions[..., :num_tokens], mask[:, :num_tokens], target, indices)


def _independent_rows(rows: np.ndarray) -> list[int]:
    """Select linearly independent rows. Each new row is the farthest from the span of the selected rows."""
    rest, chosen = rows.copy(), list[int]()
    while (distances := np.linalg.norm(rest, axis=1)).max() > 1e-9 and len(chosen) < rows.shape[1]:
        chosen.append(int(distances.argmax()))
        direction = rest[chosen[-1]] / distances.max()
        rest -= np.outer(rest @ direction, direction)
    return chosen


def _terms(n: ArrayLike, length: ArrayLike) -> NDArray[np.float64]:
    n, length = np.asarray(n, np.float64), np.asarray(length, np.float64)
    return np.stack([np.ones_like(n), n, n * n, length, length * length, n * length], axis=-1)


@contextmanager
def without_fused_rnn() -> Generator[None]:
    """Compute recurrent layers as plain matrix products, because torch cannot count the kernels of oneDNN and cuDNN."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
            yield


def _count_flops(loss: Callable[[Batch], Tensor], batch: Batch) -> int:
    # On a CPU, torch does not count the FLOPs of fused attention. Plain matrix products have the same FLOPs on all
    # devices.
    with (
        sdpa_kernel(SDPBackend.MATH),
        without_fused_rnn(),
        FlopCounterMode(display=False) as counter,
        torch.enable_grad(),
    ):
        loss(batch).backward()
    return counter.get_total_flops()
