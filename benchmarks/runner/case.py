"""Benchmark cases, their variants, and the workload of a variant."""

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
"""The role of a variant in the comparison:

- ours: unifier with its default settings
- ours compiled: unifier with `Training(compile="default")`
- default: a peer with its default settings, in bf16 autocast if the device has fast bf16, else in float32
- tuned: a peer with settings that were chosen for speed
- compiled: a peer with `torch.compile`, only on a GPU
- our allocator: a tuned peer with our settings of the memory allocator
- float32: a peer with its default settings in float32
- peak: a matrix product without a model, which measures the maximum speed of the machine
"""

OURS: tuple[Role, ...] = ("ours", "ours compiled")

Compiled = Literal["model", "loss"]
"""The part of a peer that torch compiles: the model alone, or the model and the loss.

`Training(compile=...)` compiles the model and the loss of unifier.
"""

GRAD_CLIP = 1.0
LEARNING_RATE = 1e-3
SEED = 0


@final
@dataclass(frozen=True)
class Workload:
    """A model with its batches, ready to be timed."""

    round: Callable[[], object]
    """Function that runs one round."""
    units: float
    """The number of processed pictures, clips, sentences or tokens per round."""
    outputs: Tensor | None = None
    """The model's outputs in float32 with a copy of our weights. None if our weights do not fit the model."""
    flops: float | None = None
    """Floating-point operations per round, without padding, or None if unknown."""


BuildFn = Callable[[Precision, Path], Workload]
"""Function from the precision and the file of our weights to a workload. Only our variant writes the file."""


@final
@dataclass(frozen=True)
class Variant:
    """A model of one library with one precision and one group of settings."""

    name: str
    role: Role
    precision: Precision
    library: str
    """The module that is imported before memory is measured."""
    build: BuildFn
    compiled: bool = False

    @property
    def label(self) -> str:
        """The name and the precision of the variant, as a label that is unique in a case."""
        return f"{self.name}, {self.precision}"


@final
@dataclass(frozen=True)
class Case:
    """Several variants that perform equal work. The first variant is unifier."""

    name: str
    kind: Literal["train", "decode"]
    title: str
    unit: str
    variants: tuple[Variant, ...]
    find_mismatch: Callable[[Tensor, Tensor], str | None]
    """Function from our outputs and a peer's outputs to a description of the mismatch, or to None."""
    device: Device = "cpu"
    """The device that every variant runs on."""


def our_variants(build: BuildFn, *precisions: Precision, compiled: bool = False) -> tuple[Variant, ...]:
    """Create one variant of unifier per precision."""
    name, role = ("unifier, compiled", "ours compiled") if compiled else ("unifier", "ours")
    return tuple(Variant(name, role, precision, "benchmarks.cases.ours", build, compiled) for precision in precisions)


def with_our_allocator(peers: tuple[Variant, ...], name: str) -> tuple[Variant, ...]:
    """Return all peers and a copy of the peer called `name` that uses our allocator settings."""
    (peer,) = (peer for peer in peers if peer.name == name)
    build = partial(_build_with_our_allocator, peer.build)
    return *peers, replace(peer, name=f"{name}, our allocator", role="our allocator", build=build)


def _build_with_our_allocator(build: BuildFn, precision: Precision, weights: Path) -> Workload:
    configure_allocator()
    return build(precision, weights)


def in_float32(case: Case) -> Case:
    """Return a copy of the case for a CPU without bfloat16 instructions. All variants compute in float32."""
    unique = {(variant.name, variant.role): variant for variant in case.variants if variant.role != "float32"}
    return replace(case, variants=tuple(replace(variant, precision="float32") for variant in unique.values()))


def autocast(device: Device, precision: Precision) -> AbstractContextManager[object]:
    """Return a context that computes matrix products in bfloat16 if `precision` is "bf16"."""
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()
