"""Benchmark cases, the variants they compare, and the work of one round."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from benchmarks.runner.device import Device
from unifier.experiment import Precision
from unifier.training.memory import configure_allocator

Role = Literal["ours", "ours compiled", "default", "tuned", "compiled", "our allocator", "float32", "peak"]
"""The part of a variant in the comparison:

- ours: unifier with its default settings
- ours compiled: unifier with `Training(compile="default")`
- default: a peer with its default settings, under bf16 autocast, or in float32 without fast bf16
- tuned: a peer with the fastest of its other settings that we found
- compiled: a compiled peer, in the cases for an accelerator
- our allocator: the most promising tuned peer, with our allocator setting
- float32: a peer with its default settings in float32, beside its bf16 variants
- peak: a bare matrix product, which measures the speed that the machine can reach
"""

OURS: tuple[Role, ...] = ("ours", "ours compiled")

Compiled = Literal["model", "loss"]
"""The part of a peer that torch compiles: the model, or everything from the batch to the loss.

`Training(compile=...)` compiles ours from the batch to the loss.
"""

GRAD_CLIP = 1.0
LEARNING_RATE = 1e-3
SEED = 0


@final
@dataclass(frozen=True)
class Workload:
    """A model and its batches, ready to run."""

    round: Callable[[], object]
    """Runs one round."""
    units: float
    """The amount of work in a round, in the unit of the case."""
    outputs: Tensor | None = None
    """The model's outputs in float32 with a copy of our weights; None if the model cannot hold them."""
    flops: float | None = None
    """Floating-point operations of a round without padding, if they are known."""


BuildFn = Callable[[Precision, Path], Workload]
"""Builds a workload from the precision and the file of our weights. Ours writes the file and peers read it."""


@final
@dataclass(frozen=True)
class Variant:
    """A model of one library with one precision and one group of settings."""

    name: str
    role: Role
    precision: Precision
    library: str
    """The module to import before memory is measured."""
    build: BuildFn
    compiled: bool = False

    @property
    def label(self) -> str:
        """The name and the precision, unique in a case."""
        return f"{self.name}, {self.precision}"


@final
@dataclass(frozen=True)
class Case:
    """The same work for several variants. The first variant is ours."""

    name: str
    kind: Literal["train", "decode"]
    title: str
    unit: str
    variants: tuple[Variant, ...]
    find_mismatch: Callable[[Tensor, Tensor], str | None]
    """Compares our outputs with a peer's and describes the mismatch, or returns None if they agree."""
    device: Device = "cpu"
    """The device that every variant runs on."""


def our_variants(build: BuildFn, *precisions: Precision, compiled: bool = False) -> tuple[Variant, ...]:
    """Return unifier's variants, one for each precision."""
    name, role = ("unifier, compiled", "ours compiled") if compiled else ("unifier", "ours")
    return tuple(Variant(name, role, precision, "benchmarks.cases.ours", build, compiled) for precision in precisions)


def with_our_allocator(peers: tuple[Variant, ...], name: str) -> tuple[Variant, ...]:
    """Add a copy of the peer called `name` that runs with our allocator setting."""
    (peer,) = (peer for peer in peers if peer.name == name)
    build = partial(_build_with_our_allocator, peer.build)
    return *peers, replace(peer, name=f"{name}, our allocator", role="our allocator", build=build)


def _build_with_our_allocator(build: BuildFn, precision: Precision, weights: Path) -> Workload:
    configure_allocator()
    return build(precision, weights)


def in_float32(case: Case) -> Case:
    """Return the case for a processor without bfloat16 instructions: each variant once, in float32."""
    unique = {(variant.name, variant.role): variant for variant in case.variants if variant.role != "float32"}
    return replace(case, variants=tuple(replace(variant, precision="float32") for variant in unique.values()))


def autocast(device: Device, precision: Precision) -> AbstractContextManager[object]:
    """Return a context that computes matrix products in bfloat16 if the precision is bf16."""
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()
