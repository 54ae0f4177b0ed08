"""What a run cost: parameters, examples, tokens, floating-point operations, seconds, memory."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unifier.data.encoding import Encoded
from unifier.data.loading import Batch, collate
from unifier.study.experiment import Experiment
from unifier.study.memory import forget_peak_memory, peak_memory


@final
@dataclass
class Ledger:
    """What training has used so far."""

    steps: int = 0
    examples: int = 0
    tokens: int = 0
    """Columns the trunk read, padding not counted."""
    flops: int = 0
    """Floating-point operations of products and convolutions, forward and backward, padding not counted."""
    seconds: float = 0.0
    peak_memory_bytes: int = 0

    def __post_init__(self) -> None:
        self._since = time.perf_counter()

    def start(self) -> None:
        """Start the clock, and the measure of memory."""
        self._since = time.perf_counter() - self.seconds
        forget_peak_memory()

    def count(self, batch: Batch, flops: int) -> None:
        """Add one step."""
        self.steps += 1
        self.examples += len(batch.mask)
        self.tokens += int(batch.mask.sum())
        self.flops += flops
        self.seconds = time.perf_counter() - self._since

    def read(self) -> dict[str, float]:
        """All figures as of now."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory())
        return asdict(self)


def count_parameters(experiment: Experiment) -> dict[str, int]:
    """Parameters of tokenizers, trunk and heads; one that two parts share counts for the first of them."""
    parts: Mapping[str, list[nn.Module]] = {
        "tokenizer": [arm.tokenizer for arm in experiment.arms.values()],
        "trunk": [experiment.trunk],
        "head": [arm.head for arm in experiment.arms.values()],
    }
    seen: set[Tensor] = set()
    counts: dict[str, int] = {}
    for part, modules in parts.items():
        own = {parameter for module in modules for parameter in module.parameters()} - seen
        counts[part] = sum(parameter.numel() for parameter in own)
        seen |= own
    return {**counts, "total": sum(counts.values())}


Cost = Callable[[ArrayLike, ArrayLike], NDArray[np.float64]]
"""Operations, forward and backward, of examples of so many columns N and targets of so many tokens L."""


def flops_of_example(loss: Callable[[Batch], Tensor], split: Encoded) -> Cost:
    """How many operations an example costs.

    Counts a few examples of the split one by one, and solves for what a transformer's cost is: a polynomial of degree 2
    in N and L. It is exact for every layer that treats columns alike or in pairs.
    """
    rows = {pair: row for row, pair in enumerate(split.lengths())}
    terms = _terms(*np.array(list(rows)).T)
    largest = terms.max(0)
    chosen = _independent(terms / largest)
    with torch.random.fork_rng(devices=[]):
        counts = [_count(loss, collate(split, [row])) for row in np.array(list(rows.values()))[chosen].tolist()]
    coefficients = np.linalg.lstsq(terms[chosen] / largest, np.array(counts), rcond=None)[0] / largest
    return lambda n, length: _terms(n, length) @ coefficients


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


def _count(loss: Callable[[Batch], Tensor], batch: Batch) -> int:
    # torch counts none of what its fused attention does on a CPU; by the plain products every device counts alike.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.enable_grad():
        loss(batch).backward()
    return counter.get_total_flops()
