"""A contest: every contestant in its own process, one round of each in turn, so that all meet the same machine.

The memory that is free when a race begins can be slower than the rest, and whoever is built first would have it: of
seven equal processes on a shared machine, the first took 4 % longer a step than the second and 9 % longer than the
last. So one that does not race is built before them all, and holds it.
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

from benchmarks.racing.contest import Contest, Contestant
from benchmarks.racing.device import HIDDEN
from benchmarks.racing.timing import Timing
from benchmarks.racing.worker import Answer, outputs_file

ROOT = Path(__file__).parents[2]
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


def environment(contest: Contest, contestant: Contestant, folder: Path) -> Mapping[str, str]:
    """That of a contestant's process: a race on the processor sees no accelerator, and each compiles anew, so that the
    seconds of the start mean the same each time."""
    compiled = folder / re.sub(r"\W+", "-", f"compiled {contestant.label}")
    hidden = HIDDEN if contest.device == "cpu" else {}
    return os.environ | QUIET | hidden | {"TORCHINDUCTOR_CACHE_DIR": str(compiled)}


class FailedError(Exception):
    """Why a contest has no result."""


@final
class Runner:
    """A contestant in its process, which computes only while it is asked."""

    def __init__(self, contest: Contest, contestant: Contestant, folder: Path) -> None:
        self.contestant = contestant
        self.name = f"{contest.name}: {contestant.label}"
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.racing.worker",
            contest.name,
            contestant.label,
            str(folder),
        ]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(contest, contestant, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, what: str) -> Answer:
        """Have it do one thing, and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(what, file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise FailedError(f"{self.name}: its process ended without an answer; what it said last stands above")
        answer = json.loads(line)
        if "missing" in answer:
            raise FailedError(f"{self.name}: {answer['missing']} is not installed: pip install '.[bench]'")
        return answer


def race(contest: Contest, rounds: int, *, compiled: bool = True) -> list[Timing]:
    """Time every contestant; raises FailedError where one is missing, breaks, or disagrees with ours."""
    entered = [contestant for contestant in contest.contestants if compiled or not contestant.compiled]
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        running.enter_context(Runner(contest, contest.contestants[0], folder)).ask("build")  # holds the first memory
        runners: list[Runner] = []
        built: list[Answer] = []
        for contestant in entered:
            runner = running.enter_context(Runner(contest, contestant, folder))
            began = time.perf_counter()
            built.append(runner.ask("build") | {"compared": compared(contest, contestant, folder)})
            tell(f"{runner.name}: ready after {time.perf_counter() - began:.0f} s")
            runners.append(runner)
        answers = take_turns(contest.name, [partial(runner.ask, "round") for runner in runners], rounds)
    return [
        Timing(
            name=contestant.name,
            role=contestant.role,
            precision=contestant.precision,
            seconds=[answer["seconds"] for answer in own],
            memory_bytes=own[-1]["memory_bytes"],
            **ready,
        )
        for contestant, ready, own in zip(entered, built, answers, strict=True)
    ]


def take_turns(name: str, runners: Sequence[Callable[[], Answer]], rounds: int) -> list[list[Answer]]:
    """What each runner answers, round by round; each round begins with another runner."""
    answers: list[list[Answer]] = [[] for _ in runners]
    for number in range(rounds):
        began = time.perf_counter()
        for i in range(len(runners)):
            place = (i + number) % len(runners)
            answers[place].append(runners[place]())
        tell(f"{name}: round {number + 1} of {rounds}, {time.perf_counter() - began:.0f} s")
    return answers


def compared(contest: Contest, contestant: Contestant, folder: Path) -> bool:
    """Whether a contestant's outputs were compared with ours; raises FailedError where they differ."""
    ours, theirs = outputs_file(folder, contest.contestants[0]), outputs_file(folder, contestant)
    if not theirs.exists():
        return False
    wrong = contest.disagreement(torch.load(ours, weights_only=True), torch.load(theirs, weights_only=True))
    if wrong:
        raise FailedError(f"{contest.name}: {contestant.label}: {wrong}")
    return True


def tell(line: str) -> None:
    """Progress, apart from results."""
    print(line, file=sys.stderr, flush=True)
