"""Measure seconds and compute the ratios between variants."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

from benchmarks.runner.case import OURS, Role
from unifier.experiment import Precision

ROUNDS = 5

RIVAL_ROLES: dict[str, tuple[Role, ...]] = {
    "vs_default": ("default",),
    "vs_tuned": ("default", "tuned", "compiled"),
    "vs_compiled": ("compiled",),
    "vs_our_allocator": ("our allocator",),
}
"""The roles whose fastest variant ours is compared with. A peer's default settings may be its best."""


@final
@dataclass(frozen=True, kw_only=True)
class Timing:
    """The measurements of one variant."""

    name: str
    role: Role
    precision: Precision
    seconds: Sequence[float]
    """Seconds of each round."""
    units: float
    """The amount of work in a round."""
    memory_bytes: int
    """The peak memory of the process, from the first round on."""
    imported_bytes: int
    """The peak memory of the process before the model was built."""
    start_seconds: float
    """The extra seconds of the first round over the second, mostly compilation."""
    flops: float | None
    """Floating-point operations of a round, if they are known."""
    compared: bool
    """True if the outputs were compared with ours on equal weights."""

    @property
    def work_bytes(self) -> int:
        """The memory of the model and its work, without the imports."""
        return self.memory_bytes - self.imported_bytes

    @property
    def seconds_per_unit(self) -> float:
        """The seconds per unit of work in the median round."""
        return median(self.seconds) / self.units


def median_seconds(functions: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median seconds of each function over rounds that take turns, after one round to warm up."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(ROUNDS + 1):
        for function, measured in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            measured.append(time.perf_counter() - start)
    return [median(measured[1:]) for measured in seconds]


def compute_ratios(name: str, kind: str, timings: Sequence[Timing]) -> dict[str, float]:
    """Compare ours with the fastest peer of the same precision.

    Peers with default settings are compared with ours at its default, all others with our fastest variant. The ratio
    `vs_float32` compares peers in float32 with our fastest variant in any precision.

    MFU (model FLOPs utilization, Chowdhery et al. 2022, appendix B) is our share of the speed of a matrix product.
    Memory and MFU belong to our main precision, which is bf16 if we have it. Keys of float32 then end in `_float32`.

    Args:
        name: Name of the case, the first part of each key.
        kind: "train" or "decode", the second part of each speed's key.
        timings: Measurements of all variants of the case.

    Returns:
        Ratios by key. A speed ratio is a peer's seconds divided by ours: above 1, ours is faster. A memory ratio is our
        memory divided by the smallest memory of a peer: below 1, ours needs less. `work_memory` leaves out the memory
        of imports. It is absent on an accelerator, where imports take no memory.
    """
    ours, our_default = _fastest_by_precision(timings, *OURS), _fastest_by_precision(timings, "ours")
    ratios: dict[str, float] = {}
    for key, roles in RIVAL_ROLES.items():
        if peers := [timing for timing in timings if timing.role in roles and timing.precision in ours]:
            rival = _fastest(peers)
            reference = our_default if key == "vs_default" else ours
            ratios[f"{name}/{kind}/{key}"] = rival.seconds_per_unit / reference[rival.precision].seconds_per_unit
    if peers := [timing for timing in timings if timing.role == "float32"]:
        fastest_ours = _fastest([*ours.values()])
        ratios[f"{name}/{kind}/vs_float32"] = _fastest(peers).seconds_per_unit / fastest_ours.seconds_per_unit
    for precision, best in ours.items():
        suffix = "_float32" if precision == "float32" and "bf16" in ours else ""
        same_precision = [timing for timing in timings if timing.precision == precision]
        if peers := [timing for timing in same_precision if timing.role not in (*OURS, "peak")]:
            ratios[f"{name}/memory{suffix}"] = best.memory_bytes / min(peer.memory_bytes for peer in peers)
            if best.imported_bytes:
                ratios[f"{name}/work_memory{suffix}"] = best.work_bytes / min(peer.work_bytes for peer in peers)
        if best.flops and (peaks := [timing for timing in same_precision if timing.role == "peak"]):
            ratios[f"{name}/mfu{suffix}"] = best.flops / median(best.seconds) * _fastest(peaks).seconds_per_unit
    return ratios


def _fastest_by_precision(timings: Sequence[Timing], *roles: Role) -> dict[Precision, Timing]:
    # The dict keeps the last timing of each precision, and the fastest comes last.
    slowest_first = sorted((timing for timing in timings if timing.role in roles), key=lambda t: -t.seconds_per_unit)
    return {timing.precision: timing for timing in slowest_first}


def _fastest(timings: Sequence[Timing]) -> Timing:
    return min(timings, key=lambda timing: timing.seconds_per_unit)
