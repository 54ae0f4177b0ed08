"""Kill one of two processes that train a model, and trials of a Ray cluster, and compare the ends of the runs."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from benchmarks.chaos.campaign import Outcome
from benchmarks.chaos.kills import COMPARISON, find_difference, read_folder
from benchmarks.chaos.victim import MAX_SECONDS, WAIT_SECONDS, count_orphans

NUM_KILLS = 40
"""Number of kills of a campaign that is not shortened."""

SIGNALS = {signal.SIGKILL: 0.7, signal.SIGTERM: 0.3}
"""Share of each signal."""

STEPS, FIRST_CHECKPOINT = 12, 6
"""The steps of a run, and the step after which the first checkpoint is written."""

KILL = "UNIFIER_CHAOS_KILL"
"""The variable with the file of a kill: the rank (or "any"), the training pass and the signal, separated by spaces.

The process that reaches the pass deletes the file and sends the signal to itself.
"""

HOOK = f'''
import os
from itertools import count
from pathlib import Path

PASSES = count(1)

def die(trunk, _):
    file = Path(os.environ.get("{KILL}", "/none"))
    if not trunk.training or not file.exists():
        return
    rank, number, sent = file.read_text().split()
    if rank in ("any", os.environ.get("LOCAL_RANK", "0")) and next(PASSES) == int(number):
        file.unlink()
        os.kill(os.getpid(), int(sent))
'''

FILE = HOOK + COMPARISON.replace(
    "    return Experiment(Transformer(8, 1, 2, 8), {name: task}, training)",
    "    trunk = Transformer(8, 1, 2, 8)\n    trunk.register_forward_pre_hook(die)\n"
    "    return Experiment(trunk, {name: task}, training)",
).replace("steps: int = 4", f"steps: int = {STEPS}")

COMMANDS = {
    "two processes": ["small.py:fine", "--devices", "2"],
    "ray": ["small.py:small", "--ray"],
}


class Kill(NamedTuple):
    """A kill of a process."""

    command: str
    rank: str
    number: int
    """The training pass in which the process is killed."""
    sent: int


def run(seed: int, seconds: float, folder: Path) -> Outcome:
    """Kill commands until `NUM_KILLS` kills are made or the time is over, and repeat them until they end."""
    end, generator = time.monotonic() + seconds, random.Random(seed)
    whole = dict[str, Any]()
    tried, wrong = 0, list[str]()
    while tried < NUM_KILLS and time.monotonic() < end:
        kill = draw_kill(generator, tried)
        if kill.command not in whole:
            whole[kill.command], fault = start(kill.command, folder / kill.command, None)
            if fault:
                return Outcome(tried, [f"{kill.command}, undisturbed: {fault}"])
        fault = try_kill(kill, folder / "case", whole[kill.command])
        tried += 1
        if fault:
            wrong.append(f"{json.dumps(kill)}: {fault}")
            if kept := os.environ.get("CHAOS_KEEP"):
                (folder / "case").rename(Path(kept) / f"process-{tried}")
        rmtree(folder / "case", ignore_errors=True)
    return Outcome(tried, wrong)


def draw_kill(generator: random.Random, number: int) -> Kill:
    """Draw a kill, in a random pass or in the pass after a checkpoint. The commands alternate."""
    command = list(COMMANDS)[number % len(COMMANDS)]
    rank = generator.choice("01") if command == "two processes" else "any"
    passes = generator.choice([FIRST_CHECKPOINT + 1, generator.randint(1, STEPS)])
    (sent,) = generator.choices(list(SIGNALS), list(SIGNALS.values()))
    return Kill(command, rank, passes, int(sent))


def try_kill(kill: Kill, folder: Path, whole: Mapping[str, Any]) -> str:
    """Kill a command once, repeat the command if it does not continue by itself, and return the fault or ""."""
    content, fault = start(kill.command, folder, kill)
    if kill.command == "two processes" and not fault:
        if (folder / "kill").exists():
            return "no process was killed"
        content, fault = start(kill.command, folder, None)
    if (folder / "kill").exists():
        return "no process was killed"
    difference = "" if fault else find_difference(whole, content)
    return fault or (f"other content than an undisturbed run: {difference}" if difference else "")


def start(command: str, folder: Path, kill: Kill | None) -> tuple[dict[str, Any], str]:
    """Run a command in a new session. Return what it has written, and a fault or ""."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    (folder / "small.py").write_text(FILE)
    if kill is not None:
        (folder / "kill").write_text(f"{kill.rank} {kill.number} {kill.sent}")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "UNIFIER_CACHE": "off",
        KILL: str(folder / "kill"),
    }
    arguments = [*COMMANDS[command], "--name", "job", "--resume", "auto", "--track", "off", "--out", "runs"]
    program = subprocess.Popen(
        [sys.executable, "-m", "unifier", "run", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        errors = program.communicate(timeout=MAX_SECONDS)[1]
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        return {}, f"no end after {MAX_SECONDS:.0f} s"
    if orphans := count_orphans(program.pid, WAIT_SECONDS):
        os.killpg(program.pid, signal.SIGKILL)
        return {}, f"{orphans} processes did not end"
    must_fail = kill is not None and command == "two processes"
    if must_fail == (program.returncode == 0):
        return {}, f"exit status {program.returncode}: {errors.strip()[-300:]}"
    return read_folder(folder), ""
