"""Run one variant in its own process: `python -m benchmarks.runner.worker CASE VARIANT FOLDER`.

Each line of standard input is a command. The first command is "build", and all later commands are "round". The reply to
a command is one line of JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases.registry import get_case
from benchmarks.runner.case import Variant, Workload
from benchmarks.runner.device import Device, release_memory, synchronize
from unifier.training.memory import peak_memory, reset_peak_memory

Reply = dict[str, Any]


def outputs_path(folder: Path, variant: Variant) -> Path:
    """Return the path of the file that stores a variant's outputs."""
    return folder / f"{variant.label}.pt"


def build_variant(variant: Variant, device: Device, folder: Path) -> tuple[Workload, Reply]:
    """Build a variant, save its outputs, and run two warm-up rounds.

    The start-up time is the duration of the first round minus the duration of the second round.
    """
    import_module(variant.library)
    reset_peak_memory(device)
    imported = peak_memory(device)
    workload = variant.build(variant.precision, folder / "weights.pt")
    if workload.outputs is not None:
        torch.save(workload.outputs, outputs_path(folder, variant))
    # The reset comes before the first step, because a later reset would leave holes in huge pages.
    reset_peak_memory(device)
    first, second = _round_seconds(workload, device), _round_seconds(workload, device)
    release_memory(device)
    return workload, {
        "start_seconds": max(first - second, 0.0),
        "units": workload.units,
        "flops": workload.flops,
        "imported_bytes": imported,
    }


def measure_round(workload: Workload, device: Device) -> Reply:
    """Measure the duration and the peak memory of one round.

    All variants together need more memory than an accelerator has. A variant therefore releases its memory after each
    round, and allocates memory again in a round that is not measured.
    """
    if device != "cpu":
        workload.round()
    reply: Reply = {"seconds": _round_seconds(workload, device), "memory_bytes": peak_memory(device)}
    release_memory(device)
    return reply


def _round_seconds(workload: Workload, device: Device) -> float:
    synchronize(device)
    start = time.perf_counter()
    workload.round()
    synchronize(device)
    return time.perf_counter() - start


def serve(variant: Variant, device: Device, folder: Path, send: Callable[[Reply], None]) -> None:
    """Reply to each command until standard input ends."""
    try:
        assert input() == "build"
        workload, reply = build_variant(variant, device, folder)
    except ModuleNotFoundError as error:
        send({"missing": error.name})
        return
    send(reply)
    for _ in sys.stdin:
        send(measure_round(workload, device))


def main() -> None:
    """Serve the variant that is named on the command line."""
    name, label, folder = sys.argv[1:]
    case = get_case(name)
    (variant,) = (variant for variant in case.variants if variant.label == label)
    # Libraries may print to stdout. Replies use a copy of stdout, and stdout is redirected to stderr.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

        def send(reply: Reply) -> None:
            print(json.dumps(reply), file=replies, flush=True)

        serve(variant, case.device, Path(folder), send)


if __name__ == "__main__":
    main()
