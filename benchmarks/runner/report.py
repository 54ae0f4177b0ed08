"""Build the content of results.json and results-cuda.json: the measurements and the machine."""

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.runner.case import Case
from benchmarks.runner.device import Device
from benchmarks.runner.timing import Timing, compute_ratios
from unifier.training.result import processor, source_commit

PEERS = ("timm", "transformers", "x-transformers")
FILES: dict[Device, str] = {"cpu": "results.json", "cuda": "results-cuda.json"}
"""The results file of each device."""

Results = Mapping[str, Any]
"""A dictionary with the keys `machine`, `ratios` and `cases`."""


def describe_machine(device: Device) -> dict[str, Any]:
    """Return the hardware and the library versions that affect results on the device."""
    accelerator = {} if device == "cpu" else {"accelerator": torch.get_device_module(device).get_device_name()}
    return accelerator | {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: importlib.metadata.version(name) for name in PEERS},
    }


def build_results(measured: Sequence[tuple[Case, Sequence[Timing]]], previous: Results | None = None) -> Results:
    """Return the results of all cases of one device.

    Args:
        measured: The cases of this run and the timings of their variants.
        previous: Earlier results. If `machine` is unchanged, a case that was not run again keeps its earlier result.
    """
    machine = describe_machine(measured[0][0].device)
    retained: Results = previous if previous and previous["machine"] == machine else {"ratios": {}, "cases": {}}
    cases = {
        case.name: {
            "title": case.title,
            "unit": case.unit,
            "commit": source_commit(),
            "variants": [*map(_variant_record, timings)],
        }
        for case, timings in measured
    }
    ratios = {key: ratio for key, ratio in retained["ratios"].items() if key.partition("/")[0] not in cases}
    for case, timings in measured:
        ratios |= {key: round(ratio, 3) for key, ratio in compute_ratios(case.name, case.kind, timings).items()}
    return {"machine": machine, "ratios": ratios, "cases": retained["cases"] | cases}


def _variant_record(timing: Timing) -> dict[str, Any]:
    return {
        "name": timing.name,
        "role": timing.role,
        "precision": timing.precision,
        "per_second": round(1 / timing.seconds_per_unit, 2),
        "rounds": len(timing.seconds),
        "units": timing.units,
        "seconds": {
            "median": round(median(timing.seconds), 4),
            "min": round(min(timing.seconds), 4),
            "max": round(max(timing.seconds), 4),
        },
        "memory_bytes": timing.memory_bytes,
        "imported_bytes": timing.imported_bytes,
        "start_seconds": round(timing.start_seconds, 1),
        "flops": timing.flops,
        "compared": timing.compared,
    }
