"""One contestant in a process of its own: `python -m benchmarks.racing.worker CONTEST CONTESTANT FOLDER`.

It does what each line of its input asks, "build" first and then "round", and answers with a line of JSON.
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

from benchmarks.contests.by_name import find
from benchmarks.racing.contest import Contestant, Workload
from benchmarks.racing.device import Device, finish, give_back
from unifier.training.memory import peak_memory, reset_peak_memory

Answer = dict[str, Any]


def outputs_file(folder: Path, contestant: Contestant) -> Path:
    """Where a contestant leaves its outputs."""
    return folder / f"{contestant.label}.pt"


def seconds(workload: Workload, device: Device) -> float:
    """How long a round takes, until its last operation is done."""
    finish(device)
    began = time.perf_counter()
    workload.round()
    finish(device)
    return time.perf_counter() - began


def measured(workload: Workload, device: Device) -> Answer:
    """A round's seconds and memory.

    An accelerator's memory does not hold what all contestants would keep, so that each gives its own back after a
    round, and fetches it again in one that is not measured.
    """
    if device != "cpu":
        workload.round()
    answer: Answer = {"seconds": seconds(workload, device), "memory_bytes": peak_memory(device)}
    give_back(device)
    return answer


def build(contestant: Contestant, device: Device, folder: Path) -> tuple[Workload, Answer]:
    """Build it, leave its outputs, and warm it up by two rounds: what the first takes longer is its start."""
    import_module(contestant.library)
    reset_peak_memory(device)
    imported = peak_memory(device)
    workload = contestant.build(contestant.precision, folder / "weights.pt")
    if workload.outputs is not None:
        torch.save(workload.outputs, outputs_file(folder, contestant))
    reset_peak_memory(device)  # before the first step, as in a run: later it would leave holes in huge pages
    first, second = seconds(workload, device), seconds(workload, device)
    give_back(device)
    return workload, {
        "start_seconds": max(first - second, 0.0),
        "units": workload.units,
        "flops": workload.flops,
        "imported_bytes": imported,
    }


def serve(contestant: Contestant, device: Device, folder: Path, say: Callable[[Answer], None]) -> None:
    """Answer until there is nothing more to read."""
    try:
        assert input() == "build"
        workload, answer = build(contestant, device, folder)
    except ModuleNotFoundError as error:
        say({"missing": error.name})
        return
    say(answer)
    for _ in sys.stdin:
        say(measured(workload, device))


def main() -> None:
    name, label, folder = sys.argv[1:]
    contest = find(name)
    (contestant,) = (one for one in contest.contestants if one.label == label)
    # What libraries print must not come between the answers.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

        def say(answer: Answer) -> None:
            print(json.dumps(answer), file=answers, flush=True)

        serve(contestant, contest.device, Path(folder), say)


if __name__ == "__main__":
    main()
