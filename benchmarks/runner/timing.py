"""Measure times and compute the speed and memory ratios between variants."""

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
"""Mapping from a ratio to the roles of the peers that unifier is compared with."""


@final
@dataclass(frozen=True, kw_only=True)
class Timing:
    """The measurements of one variant."""

    name: str
    role: Role
    precision: Precision
    seconds: Sequence[float]
    """The duration of each round, in seconds."""
    units: float
    """The number of processed pictures, clips, sentences or tokens per round."""
    memory_bytes: int
    """The peak memory of the process since the first round, in bytes."""
    imported_bytes: int
    """The peak memory of the process before the model was built, in bytes."""
    start_seconds: float
    """The duration of the first round minus the duration of the second round, in seconds."""
    flops: float | None
    """Floating-point operations per round, or None if unknown."""
    compared: bool
    """True if the variant's outputs were compared with our outputs, with equal weights."""

    @property
    def work_bytes(self) -> int:
        """The peak memory of the process minus the memory of imports, in bytes."""
        return self.memory_bytes - self.imported_bytes

    @property
    def seconds_per_unit(self) -> float:
        """The median duration of a round, in seconds, divided by `units`."""
        return median(self.seconds) / self.units


def median_seconds(functions: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median seconds of each function, which run in turn."""
    return [median(seconds) for seconds in round_seconds(functions)]


def round_seconds(functions: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[list[float]]:
    """Return the seconds of each round of each function.

    The functions run in turn. The first call of each function is a warm-up and is not counted.
    """
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds + 1):
        for function, measured in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            measured.append(time.perf_counter() - start)
    return [measured[1:] for measured in seconds]


def compute_ratios(name: str, kind: str, timings: Sequence[Timing]) -> dict[str, float]:
    """Compute speed and memory ratios between unifier and the fastest peers, and the MFU.

    Peers with default settings are compared with the default settings of unifier. Peers with any other role are
    compared with our fastest variant. Compared variants have equal precision, with one exception. The ratio
    `vs_float32` compares peers in float32 with our fastest variant in any precision.

    MFU (model FLOPs utilization, Chowdhery et al. 2022, appendix B) is the speed of our model divided by the speed of a
    matrix product. If unifier has variants in bf16 and float32, the keys of float32 end in `_float32`.

    Args:
        name: Name of the case, the first part of each key.
        kind: "train" or "decode", the second part of the key of a speed ratio.
        timings: Measurements of all variants of the case.

    Returns:
        Mapping from key to ratio. A speed ratio is the time of a peer divided by our time. A memory ratio is our memory
        divided by the smallest memory of a peer. The ratio `work_memory` excludes the memory of imports, and is absent
        on an accelerator.
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
    # A dict stores the last value of each key, so the fastest timing must come last.
    slowest_first = sorted((timing for timing in timings if timing.role in roles), key=lambda t: -t.seconds_per_unit)
    return {timing.precision: timing for timing in slowest_first}


def _fastest(timings: Sequence[Timing]) -> Timing:
    return min(timings, key=lambda timing: timing.seconds_per_unit)
