"""The cost of a run and of each arm: parameters, examples, tokens, FLOPs, seconds, memory."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import final

from torch import Tensor, nn

from unifier.study.experiment import Experiment
from unifier.study.memory import peak_memory
from unifier.trunks.arithmetic.precision import device_here


@final
@dataclass
class Spent:
    """What an arm has used so far."""

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
class Ledger:
    """What training has used so far, each arm by itself and all together."""

    def __init__(self, arms: Mapping[str, Spent], steps: int = 0, peak_memory_bytes: int = 0) -> None:
        self.arms = arms
        self.steps = steps
        self.peak_memory_bytes = peak_memory_bytes
        self._since: float | None = None
        self.in_step = Counter[str]()
        """How many batches of each arm were counted since the last step."""

    @property
    def running(self) -> bool:
        """Whether the clock runs."""
        return self._since is not None

    def go_on(self) -> None:
        """Start the clock, unless it runs already."""
        if not self.running:
            self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock; time since it was last read is charged to no arm."""
        self._since = None

    def count(self, arm: str, columns: Tensor, flops: int) -> None:
        """Add one batch of an arm, of examples of so many columns (B,)."""
        spent = self.arms[arm]
        spent.examples += len(columns)
        spent.tokens += int(columns.sum())
        spent.flops += flops
        self.in_step[arm] += 1

    def step(self) -> None:
        """Add one step of the optimizer, by the batches counted since the last one."""
        self.steps += 1
        for arm in self.in_step:
            self.arms[arm].steps += 1
        self.in_step.clear()

    def clock(self, *arms: str) -> None:
        """Give the time since the clock was last read to these arms, the same to each."""
        assert self._since is not None, "the clock stands"
        now = time.perf_counter()
        for arm in arms:
            self.arms[arm].seconds += (now - self._since) / len(arms)
        self._since = now

    def all(self) -> Spent:
        """The arms' sum; a step that several have a batch in is one."""
        sums = {unit.name: sum(getattr(one, unit.name) for one in self.arms.values()) for unit in fields(Spent)}
        return Spent(**{**sums, "steps": self.steps})

    def read(self) -> dict[str, float]:
        """All arms' figures as of now, and the most memory in use at once."""
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak_memory(device_here()))
        return {**asdict(self.all()), "peak_memory_bytes": self.peak_memory_bytes}

    def by_arm(self) -> dict[str, dict[str, float]]:
        """Each arm's figures as of now."""
        return {arm: asdict(spent) for arm, spent in self.arms.items()}


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
