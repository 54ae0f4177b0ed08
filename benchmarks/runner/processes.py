"""Run a benchmark case: one process per variant, with alternating rounds.

With alternating rounds, machine noise affects all variants equally.

On a shared machine, the first process can get slower memory than later processes. In a test with seven equal processes,
steps of the first process took 4 % longer than steps of the second process. Compared with the last process, steps of
the first process took 9 % longer. Therefore, an additional process is started first. The additional process is not
timed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import final

import torch

from benchmarks.runner.case import Case, Variant
from benchmarks.runner.device import NO_ACCELERATOR
from benchmarks.runner.timing import Timing
from benchmarks.runner.worker import Reply, outputs_path

ROOT = Path(__file__).parents[2]
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


class CaseError(Exception):
    """Error in a benchmark case, which then has no result."""


@final
class VariantProcess:
    """A process that builds one variant and runs a round on request."""

    def __init__(self, case: Case, variant: Variant, folder: Path) -> None:
        self.name = f"{case.name}: {variant.label}"
        module = "benchmarks.runner.worker"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, case.name, variant.label, str(folder)],
            cwd=ROOT,
            env=process_environment(case, variant, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "VariantProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()

    def request(self, command: str) -> Reply:
        """Send a command to the process and wait for its reply.

        Raises:
            CaseError: If the process ended, or if the library of the variant is not installed.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(command, file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise CaseError(f"{self.name}: the process ended without a reply; see the error message above")
        reply = json.loads(line)
        if "missing" in reply:
            raise CaseError(f"{self.name}: {reply['missing']} is not installed: pip install '.[bench]'")
        return reply


def process_environment(case: Case, variant: Variant, folder: Path) -> Mapping[str, str]:
    """Return the environment variables of a variant's process.

    Cases for the CPU run with all accelerators hidden. Each variant has an empty compilation cache, so start-up
    includes compilation.
    """
    cache = folder / re.sub(r"\W+", "-", f"compiled {variant.label}")
    hidden = NO_ACCELERATOR if case.device == "cpu" else {}
    return os.environ | QUIET | hidden | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}


def run_case(case: Case, rounds: int, *, compiled: bool = True) -> list[Timing]:
    """Time every variant of a case.

    Args:
        case: The case to run.
        rounds: Number of timed rounds of each variant.
        compiled: If False, leave out the compiled variants.

    Raises:
        CaseError: A library is missing, a process ends early, or a variant's outputs differ from our outputs.
    """
    variants = [variant for variant in case.variants if compiled or not variant.compiled]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        # The first process is not timed, because the first process can get slower memory.
        stack.enter_context(VariantProcess(case, case.variants[0], folder)).request("build")
        processes: list[VariantProcess] = []
        builds: list[Reply] = []
        for variant in variants:
            process = stack.enter_context(VariantProcess(case, variant, folder))
            start = time.perf_counter()
            builds.append(process.request("build") | {"compared": check_outputs(case, variant, folder)})
            print_status(f"{process.name}: ready after {time.perf_counter() - start:.0f} s")
            processes.append(process)
        measurements = run_rounds(case.name, [partial(process.request, "round") for process in processes], rounds)
    return [
        Timing(
            name=variant.name,
            role=variant.role,
            precision=variant.precision,
            seconds=[reply["seconds"] for reply in replies],
            memory_bytes=replies[-1]["memory_bytes"],
            **build,
        )
        for variant, build, replies in zip(variants, builds, measurements, strict=True)
    ]


def run_rounds(name: str, variants: Sequence[Callable[[], Reply]], rounds: int) -> list[list[Reply]]:
    """Run every variant once per round and return the replies of each variant.

    The order of the variants rotates from round to round.
    """
    replies: list[list[Reply]] = [[] for _ in variants]
    for number in range(rounds):
        start = time.perf_counter()
        for i in range(len(variants)):
            index = (i + number) % len(variants)
            replies[index].append(variants[index]())
        print_status(f"{name}: round {number + 1} of {rounds}, {time.perf_counter() - start:.0f} s")
    return replies


def check_outputs(case: Case, variant: Variant, folder: Path) -> bool:
    """Compare a variant's outputs with our outputs. Return False if the variant has no outputs.

    Raises:
        CaseError: If the variant's outputs differ from our outputs.
    """
    ours, theirs = outputs_path(folder, case.variants[0]), outputs_path(folder, variant)
    if not theirs.exists():
        return False
    mismatch = case.find_mismatch(torch.load(ours, weights_only=True), torch.load(theirs, weights_only=True))
    if mismatch:
        raise CaseError(f"{case.name}: {variant.label}: {mismatch}")
    return True


def print_status(line: str) -> None:
    """Print progress to stderr, because stdout contains the results."""
    print(line, file=sys.stderr, flush=True)
