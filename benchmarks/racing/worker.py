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

import torch

from benchmarks.contests.by_name import find
from benchmarks.racing.contest import Contestant, Workload
from unifier.study.memory import forget_peak_memory, peak_memory

Answer = dict[str, float | str | bool | None]


def outputs_file(folder: Path, contestant: Contestant) -> Path:
    """Where a contestant leaves its outputs."""
    return folder / f"{contestant.label}.pt"


def seconds(work: Callable[[], None]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def build(contestant: Contestant, folder: Path) -> tuple[Workload, Answer]:
    """Build it, leave its outputs, and warm it up by two rounds: what the first takes longer is its start."""
    import_module(contestant.library)
    forget_peak_memory("cpu")
    imported = peak_memory("cpu")
    workload = contestant.build(folder / "weights.pt")
    if workload.outputs is not None:
        torch.save(workload.outputs, outputs_file(folder, contestant))
    first, second = seconds(workload.round), seconds(workload.round)
    forget_peak_memory("cpu")
    return workload, {
        "start_seconds": max(first - second, 0.0),
        "units": workload.units,
        "flops": workload.flops,
        "imported_bytes": imported,
    }


def serve(contestant: Contestant, folder: Path, say: Callable[[Answer], None]) -> None:
    """Answer until there is nothing more to read."""
    try:
        assert input() == "build"
        workload, answer = build(contestant, folder)
    except ModuleNotFoundError as error:
        say({"missing": error.name})
        return
    say(answer)
    for _ in sys.stdin:
        say({"seconds": seconds(workload.round), "memory_bytes": peak_memory("cpu")})


def main() -> None:
    contest, label, folder = sys.argv[1:]
    # What libraries print must not come between the answers.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        (contestant,) = (one for one in find(contest).contestants if one.label == label)
        serve(contestant, Path(folder), lambda answer: print(json.dumps(answer), file=answers, flush=True))


if __name__ == "__main__":
    main()
