"""results.json, and results-cuda.json beside it: what was measured, and on what."""

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.racing.contest import Contest
from benchmarks.racing.device import Device
from benchmarks.racing.timing import Timing, ratios
from unifier.training.result import processor, source_commit

PEERS = ("timm", "transformers", "x-transformers")
FILES: dict[Device, str] = {"cpu": "results.json", "cuda": "results-cuda.json"}
"""One for each device, since they may have been measured on unlike machines."""

Results = Mapping[str, Any]
"""`machine`, `ratios` of all contests, and `contests` by name."""


def machine(device: Device) -> dict[str, Any]:
    """What the figures of contests there hold for."""
    accelerator = {} if device == "cpu" else {"accelerator": torch.get_device_module(device).get_device_name()}
    return accelerator | {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: importlib.metadata.version(name) for name in PEERS},
    }


def entry(timing: Timing) -> dict[str, Any]:
    """One contestant's line."""
    return {
        "name": timing.name,
        "role": timing.role,
        "precision": timing.precision,
        "per_second": round(1 / timing.each, 2),
        "rounds": len(timing.seconds),
        "units": timing.units,
        "seconds": {
            "median": round(median(timing.seconds), 4),
            "least": round(min(timing.seconds), 4),
            "most": round(max(timing.seconds), 4),
        },
        "memory_bytes": timing.memory_bytes,
        "imported_bytes": timing.imported_bytes,
        "start_seconds": round(timing.start_seconds, 1),
        "flops": timing.flops,
        "compared": timing.compared,
    }


def results(found: Sequence[tuple[Contest, Sequence[Timing]]], before: Results | None = None) -> Results:
    """All that is written of the contests of one device.

    Those that were not run now stay as they were `before`, if that was on this machine.
    """
    here = machine(found[0][0].device)
    kept: Results = before if before and before["machine"] == here else {"ratios": {}, "contests": {}}
    own = {
        contest.name: {
            "title": contest.title,
            "unit": contest.unit,
            "commit": source_commit(),
            "contestants": [*map(entry, timings)],
        }
        for contest, timings in found
    }
    shares = {key: share for key, share in kept["ratios"].items() if key.partition("/")[0] not in own}
    for contest, timings in found:
        shares |= {key: round(share, 3) for key, share in ratios(contest.name, contest.kind, timings).items()}
    return {"machine": here, "ratios": shares, "contests": kept["contests"] | own}
