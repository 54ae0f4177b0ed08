"""What is timed: contests, their contestants, and the work of one round."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from benchmarks.racing.device import Device
from unifier.experiment import Precision
from unifier.training.memory import configure_allocator

Role = Literal["ours", "ours compiled", "as it comes", "best", "compiled", "memory kept", "float32", "peak"]
"""What a contestant is there for:

- ours: as it comes
- ours compiled: by `Training(compile="default")`
- as it comes: a peer with its defaults, under bf16 autocast, or `in_float32`
- best: a peer with the best of its settings that we found
- compiled: on an accelerator, a peer that is compiled
- memory kept: the likeliest of the best, under our setting of the allocator
- float32: a peer with its defaults, in float32 beside all those
- peak: a bare matrix product, which says what the machine could do
"""

OURS: tuple[Role, ...] = ("ours", "ours compiled")

Compiled = Literal["model", "loss"]
"""What of a peer torch compiles: its model, or all from the batch to the loss, as `Training(compile=...)` has ours."""

CLIP = 1.0
LEARNING_RATE = 1e-3
SEED = 0


@final
@dataclass(frozen=True)
class Workload:
    """A model that is ready to work."""

    round: Callable[[], object]
    """Does the work of one round."""
    units: float
    """How much that is, in the contest's unit."""
    outputs: Tensor | None = None
    """What the model answers with the weights copied from ours, in float32; None where it cannot hold them."""
    flops: float | None = None
    """Floating-point operations of a round, padding not counted, where they are known."""


@final
@dataclass(frozen=True)
class Contestant:
    """A model in one precision, with one group of settings."""

    name: str
    role: Role
    precision: Precision
    library: str
    """The module whose import brings what it is made of."""
    build: Callable[[Precision, Path], Workload]
    """Given the precision and the file of our weights: ours writes it, the others read it."""
    compiled: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}, {self.precision}"


@final
@dataclass(frozen=True)
class Contest:
    """Equal work for all contestants, the first of which is ours."""

    name: str
    kind: Literal["train", "decode"]
    title: str
    unit: str
    contestants: tuple[Contestant, ...]
    disagreement: Callable[[Tensor, Tensor], str | None]
    """What is wrong between our outputs and a peer's."""
    device: Device = "cpu"
    """Where the contestants work."""


def ours(
    build: Callable[[Precision, Path], Workload], *precisions: Precision, compiled: bool = False
) -> tuple[Contestant, ...]:
    """Ours: the same in each precision."""
    name, role = ("unifier, compiled", "ours compiled") if compiled else ("unifier", "ours")
    return tuple(
        Contestant(name, role, precision, "benchmarks.contests.ours", build, compiled) for precision in precisions
    )


def with_memory_kept(peers: tuple[Contestant, ...], name: str) -> tuple[Contestant, ...]:
    """The peers, and the one of that name once more, as it does under our setting of the allocator."""
    (peer,) = (one for one in peers if one.name == name)
    return *peers, replace(peer, name=f"{name}, memory kept", role="memory kept", build=partial(_kept, peer.build))


def _kept(build: Callable[[Precision, Path], Workload], precision: Precision, weights: Path) -> Workload:
    configure_allocator()
    return build(precision, weights)


def in_float32(contest: Contest) -> Contest:
    """The contest where bfloat16 has no instructions of its own: everyone once, and nobody under autocast."""
    once = {(one.name, one.role): one for one in contest.contestants if one.role != "float32"}
    return replace(contest, contestants=tuple(replace(one, precision="float32") for one in once.values()))


def autocast(device: Device, precision: Precision) -> AbstractContextManager[object]:
    """Products in bfloat16, or everything in float32."""
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()
