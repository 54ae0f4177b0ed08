"""From seconds to ratios."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

from benchmarks.racing.contest import OURS, Role
from unifier.experiment import Precision

ROUNDS = 5


def in_turn(works: Sequence[Callable[[], object]]) -> list[float]:
    """The seconds of each, the median of rounds in which they take turns, after one that is not counted."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS + 1):
        for work, own in zip(works, found, strict=True):
            start = time.perf_counter()
            work()
            own.append(time.perf_counter() - start)
    return [median(own[1:]) for own in found]


@final
@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one contestant took."""

    name: str
    role: Role
    precision: Precision
    seconds: Sequence[float]
    """Of each round."""
    units: float
    """Done in a round."""
    memory_bytes: int
    """The most that its process held at once, from the first round on."""
    imported_bytes: int
    """What it held before the model was built."""
    start_seconds: float
    """By how much the first round was slower than the second: compilation, mostly."""
    flops: float | None
    """Floating-point operations of a round, where they are known."""
    compared: bool
    """Whether its outputs are ours, on the same weights."""

    @property
    def work_bytes(self) -> int:
        """Of its memory, what the model and its work take."""
        return self.memory_bytes - self.imported_bytes

    @property
    def each(self) -> float:
        """Seconds a unit, in the median round."""
        return median(self.seconds) / self.units


RIVALS: dict[str, tuple[Role, ...]] = {
    "vs_as_it_comes": ("as it comes",),
    "vs_best": ("as it comes", "best", "compiled"),
    "vs_compiled": ("compiled",),
    "vs_memory_kept": ("memory kept",),
}
"""Whose fastest ours is measured against; the best of a peer may be what it comes with."""


def ratios(name: str, kind: str, timings: Sequence[Timing]) -> dict[str, float]:
    """Ours against the fastest peer in the same precision: its seconds / ours, so that above 1 ours is faster.

    Peers as they come race with ours as it comes, all others with ours at its fastest; so do peers in float32, in
    `vs_float32`, whatever the precision of ours. Memory is ours / the least of a peer's, so that below
    1 ours needs less: that of the process, and that of the work alone, without what it takes to import the libraries,
    which on an accelerator is nothing.
    MFU (model FLOPs utilisation, Chowdhery et al. 2022, appendix B) is the share of a bare matrix product's speed.
    Memory and MFU are of the contest's main precision, bf16 where ours has it, and end in `_float32` for the other.
    """
    ours, as_it_comes = fastest_by_precision(timings, *OURS), fastest_by_precision(timings, "ours")
    found: dict[str, float] = {}
    for key, roles in RIVALS.items():
        if peers := [one for one in timings if one.role in roles and one.precision in ours]:
            rival = fastest(peers)
            own = as_it_comes if key == "vs_as_it_comes" else ours
            found[f"{name}/{kind}/{key}"] = rival.each / own[rival.precision].each
    if peers := [one for one in timings if one.role == "float32"]:
        found[f"{name}/{kind}/vs_float32"] = fastest(peers).each / fastest([*ours.values()]).each
    for precision, own in ours.items():
        suffix = "_float32" if precision == "float32" and "bf16" in ours else ""
        alike = [one for one in timings if one.precision == precision]
        if peers := [one for one in alike if one.role not in (*OURS, "peak")]:
            found[f"{name}/memory{suffix}"] = own.memory_bytes / min(one.memory_bytes for one in peers)
            if own.imported_bytes:
                found[f"{name}/work_memory{suffix}"] = own.work_bytes / min(one.work_bytes for one in peers)
        if own.flops and (peaks := [one for one in alike if one.role == "peak"]):
            found[f"{name}/mfu{suffix}"] = own.flops / median(own.seconds) * fastest(peaks).each
    return found


def fastest_by_precision(timings: Sequence[Timing], *roles: Role) -> dict[Precision, Timing]:
    """The fastest in these roles, which comes last and stays."""
    found = sorted((one for one in timings if one.role in roles), key=lambda one: -one.each)
    return {one.precision: one for one in found}


def fastest(timings: Sequence[Timing]) -> Timing:
    """The one that needs the fewest seconds a unit."""
    return min(timings, key=lambda one: one.each)
