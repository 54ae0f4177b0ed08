"""Kill small runs, comparisons and downloads at random moments, resume them, and compare them with undisturbed ones."""

import csv
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import torch

from benchmarks.chaos.campaign import Outcome

NUM_KILLS = 100
"""Number of kills of a campaign that is not shortened."""

SIGNALS = {signal.SIGKILL: 0.7, signal.SIGTERM: 0.15, signal.SIGINT: 0.15}
"""Share of each signal."""

SECOND_KILL, FRESH, BY_TIME = 0.3, 0.08, 0.4
"""Probability of a second kill, of a new Python process, and of a moment that is drawn from the seconds of a command.

A new Python process also imports unifier. Other moments are drawn from the writes of a command."""

TINY = ["dim=16", "depth=1", "heads=2", "ffn_dim=32", "num_validations=3", "precision=float32"]

COMMANDS = {
    "pictures": ["run", "pictures", *TINY, "tokens=60000", "num_workers=0"],
    "sounds": ["run", "genres", *TINY, "data=sounds", "steps=9", "num_workers=2"],
    "translation": ["run", "translation", *TINY, "data=pairs.tsv", "steps=9", "batch_tokens=256", "num_workers=0"],
    "comparison": ["run", "small.py:small"],
    "download": ["download"],
}
"""The arguments of each command that is killed."""

WEIGHTS = {"pictures": 3, "sounds": 2, "translation": 1, "comparison": 3, "download": 1}
"""Relative number of cases of each command."""

COMPARISON = '''
from unifier import ClassificationHead, Comparison, Experiment, Task, Training, Transformer
from unifier.datasets import Digits
from unifier_tokenizers import PatchTokenizer

class Few:
    labels = Digits.labels

    def __init__(self, name):
        self.name = name

    def split(self, name):
        return list(Digits().split(name))[:40]

def study(name, patch, steps):
    task = Task(Few(name), PatchTokenizer(8, patch=patch, channels=1), ClassificationHead(Digits.labels, 8))
    training = Training(steps=steps, batch_tokens=128, num_validations=2, num_workers=0)
    return Experiment(Transformer(8, 1, 2, 8), {name: task}, training)

def fine(*, steps: int = 4) -> Experiment:
    return study("fine", 2, steps)

def coarse(*, steps: int = 4) -> Experiment:
    return study("coarse", 4, steps)

def small() -> Comparison:
    """Compare two experiments, alone and together, and one transfer."""
    modes = ("solo", "joint", "transfer")
    return Comparison(
        "small",
        [fine, coarse],
        modes=modes,
        transfers=[(fine, coarse)],
        trainable=("all",),
        controls=(),
        budget_unit="steps",
    )
'''

FILE = random.Random(0).randbytes(300_000)
"""The downloaded file."""

CHANGING = {"seconds", "peak_memory_bytes", "speed", "folder", "study", "started_in", "sha256"}
"""Keys of result files whose values differ between two runs, because of times and of names of folders."""


class Case(NamedTuple):
    """A command that is killed."""

    command: str
    kills: list[dict[str, Any]]
    """The kills of the command and of the commands that resume it: the signal, and the event or the seconds."""


def run(seed: int, seconds: float, folder: Path) -> Outcome:
    """Kill commands until `NUM_KILLS` kills are made or the time is over, and compare the ends of resumed commands."""
    end, generator = time.monotonic() + seconds, random.Random(seed)
    tried, wrong = 0, list[str]()
    with serve_file() as url, Victim(folder / "shared", url) as victim:
        whole = {name: victim.measure(name, folder / "whole") for name in COMMANDS}
        while tried < NUM_KILLS and time.monotonic() < end:
            case = draw_case(generator, whole)
            kills, faults = victim.try_case(case, folder / "case", whole[case.command])
            tried += kills
            wrong += [f"{case.command}, {json.dumps(case.kills)}: {fault}" for fault in faults]
            if faults and (kept := os.environ.get("CHAOS_KEEP")):
                (folder / "case").rename(Path(kept) / f"{case.command}-{tried}")
            rmtree(folder / "case", ignore_errors=True)
    return Outcome(tried, wrong)


class Whole(NamedTuple):
    """An undisturbed command."""

    events: int
    seconds: float
    fresh_seconds: float
    content: dict[str, Any]
    """What the command has written, see `read_folder`."""


def draw_case(generator: random.Random, whole: Mapping[str, Whole]) -> Case:
    """Draw a command, and the moments and signals of its kills."""
    (name,) = generator.choices(list(WEIGHTS), list(WEIGHTS.values()))
    kills = list[dict[str, Any]]()
    while not kills or generator.random() < SECOND_KILL:
        (number,) = generator.choices(list(SIGNALS), list(SIGNALS.values()))
        kill: dict[str, Any] = {"signal": int(number)}
        if name != "download" and generator.random() < FRESH:
            kill |= {"fresh": True, "seconds": generator.uniform(0, whole[name].fresh_seconds)}
        elif generator.random() < BY_TIME:
            kill |= {"seconds": generator.uniform(0, whole[name].seconds)}
        else:
            kill |= {"event": generator.randint(1, whole[name].events)}
        kills.append(kill)
    return Case(name, kills)


class Victim:
    """The process that runs and kills commands (see `benchmarks.chaos.victim`)."""

    def __init__(self, shared: Path, url: str) -> None:
        """Start the process. `shared` is a folder for caches of other libraries, and `url` is the file to download."""
        shared.mkdir()
        self.url = url
        self.environment = {
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MPLCONFIGDIR": str(shared),
            "HOME": str(shared),
            "no_proxy": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }

    def __enter__(self) -> "Victim":
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chaos.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("the process that runs the commands did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def measure(self, name: str, parent: Path) -> Whole:
        """Run a command without a kill, and then in a new Python process."""
        ends = list[dict[str, Any]]()
        for fresh in (False, True)[: 1 if name == "download" else 2]:
            folder = parent / f"{name}-{fresh}"
            prepare(folder)
            ends.append(self.run(name, folder, {"fresh": fresh}, None))
            if ends[-1]["status"]:
                raise RuntimeError(f"{name}: {(folder / 'errors').read_text()}")
        contents = [read_folder(parent / f"{name}-{fresh}") for fresh in (False, True)[: len(ends)]]
        if difference := find_difference(contents[0], contents[-1]):
            raise RuntimeError(f"{name}: two undisturbed runs differ in {difference}")
        return Whole(ends[0]["events"], ends[0]["seconds"], ends[-1]["seconds"], contents[0])

    def try_case(self, case: Case, folder: Path, whole: Whole) -> tuple[int, list[str]]:
        """Kill and resume a command until it ends. Return the number of kills and the faults."""
        prepare(folder)
        kills, faults = 0, list[str]()
        none = dict[str, Any]()
        for kill in [*case.kills, none]:
            end = self.run(case.command, folder, kill, find_run(folder))
            errors = (folder / "errors").read_text()
            kills += end["status"] == -signal.SIGKILL or end["sent"] or (bool(kill) and end["status"] != 0)
            if end["orphans"]:
                faults.append(f"{end['orphans']} processes did not end")
            # Python ignores a KeyboardInterrupt in a finalizer with a traceback, and the command continues.
            if "Traceback" in errors and "Exception ignored" not in errors and not kill.get("fresh"):
                faults.append(f"a traceback: {errors.strip().splitlines()[-1]}")
            if end["status"] not in (0, 1, -signal.SIGKILL, -kill.get("signal", 0)) or (end["status"] and not kill):
                faults.append(f"exit status {end['status']}: {errors.strip()[-300:]}")
            if faults or not end["status"]:
                break
        if not faults and (difference := find_difference(whole.content, read_folder(folder))):
            faults.append(f"other content than an undisturbed run: {difference}")
        return kills, faults

    def run(self, name: str, folder: Path, kill: Mapping[str, Any], resume: Path | None) -> dict[str, Any]:
        """Start a command, or resume the run in a folder. Return the end of the command."""
        arguments = COMMANDS[name]
        if name == "download":
            arguments = [*arguments, self.url, str(len(FILE)), sha256(FILE).hexdigest()]
        elif resume is not None:
            arguments = [*arguments[:2], "--resume", str(resume), "--track", "off"]
        else:
            arguments = [*arguments, "--out", "runs", "--track", "off"]
        paths = {"TMPDIR": "tmp", "XDG_CACHE_HOME": "cache", "UNIFIER_CACHE": "cache"}
        environment = self.environment | {key: str(folder / path) for key, path in paths.items()}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        command = {"arguments": arguments, "folder": str(folder), "environment": environment, **kill}
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def prepare(folder: Path) -> None:
    """Write the input files of all commands."""
    for name in ("tmp", "cache", *(f"sounds/{label}" for label in ("high", "low"))):
        (folder / name).mkdir(parents=True)
    (folder / "errors").touch()
    (folder / "small.py").write_text(COMPARISON)
    pairs = [
        f"{subject} {verb}\t{verb} {subject}\n" for subject in "abcdefgh" for verb in ("runs", "sleeps", "eats", "sees")
    ]
    (folder / "pairs.tsv").write_text("".join(pairs))
    for label, hertz in (("high", 880), ("low", 220)):
        for number in range(12):
            with wave.open(str(folder / "sounds" / label / f"{number}.wav"), "wb") as file:
                file.setparams((1, 2, 8000, 0, "NONE", ""))
                tone = [round(9000 * math.sin(k * (hertz + number) / 1273)) for k in range(4000)]
                file.writeframes(b"".join(value.to_bytes(2, "little", signed=True) for value in tone))


def find_run(folder: Path) -> Path | None:
    """Return the folder of the run or comparison that a user would resume, or None if a user would start again."""
    files = [path for name in ("settings.json", "comparison.json") for path in folder.glob(f"runs/*/*/{name}")]
    return files[0].parent if files else None


@contextmanager
def serve_file() -> Generator[str]:
    """Serve `FILE` slowly on a local port, and yield the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            for start in range(0, len(FILE), 1 << 13):
                self.wfile.write(FILE[start : start + (1 << 13)])
                time.sleep(0.005)

        def log_message(self, *_: object) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def read_folder(folder: Path) -> dict[str, Any]:
    """Return the content of each file that a command has written, without times, by its path.

    The random names of runs and the hashes of cache entries are replaced by what they contain.
    """
    content = dict[str, Any]()
    for path in sorted(folder.rglob("*")):
        parts = list(path.relative_to(folder).parts)
        if parts[0] not in ("runs", "cache", "tmp") or (path.is_dir() and any(path.iterdir())):
            continue
        if parts[:2] == ["cache", "encoded"] and len(parts) == 4:
            parts[2] = "statistics" if (path.parent / "buffers.safetensors").exists() else "examples"
        if parts[0] == "runs" and len(parts) > 2:
            runs = sorted(folder.joinpath(*parts[:2]).iterdir())
            if len(parts) > 5 and parts[3] == "trials":
                parts[4] = _trial(folder.joinpath(*parts[:5]))
            parts[2] = f"run {runs.index(folder.joinpath(*parts[:3]))}"
        name = "/".join(parts)
        content[f"{name} (again)" if name in content else name] = _read(path)
    return content


def _trial(folder: Path) -> str:
    settings = folder / "settings.json"
    return json.dumps(json.loads(settings.read_text())["trial"]) if settings.exists() else folder.name


def _read(path: Path) -> Any:
    if path.is_dir():
        return "an empty folder"
    if path.suffix == ".ckpt":
        return torch.load(path, weights_only=True)["state_dict"]
    if path.name == "metrics.csv":
        with path.open(newline="") as file:
            return [{key: cell for key, cell in row.items() if "seconds" not in key} for row in csv.DictReader(file)]
    if path.name in ("result.json", "comparison.json"):
        return _without_times(json.loads(path.read_text()))
    if path.name in ("predictions.csv", "samples.json", "confusions.json", "lengths.json", "numbers.json"):
        return path.read_bytes()
    return path.read_bytes() if path.parts[-3:-1] == ("cache", "unifier") or "vocabularies" in path.parts else "a file"


def _without_times(content: Any) -> Any:
    if isinstance(content, list):
        return [_without_times(entry) for entry in content]
    if not isinstance(content, dict):
        return content
    return {key: _without_times(value) for key, value in content.items() if key not in CHANGING}


def find_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the paths that differ between two folders, or ""."""
    changed = [path for path in expected if path in found and not _equal(expected[path], found[path])]
    lists = {"missing": expected.keys() - found.keys(), "left over": found.keys() - expected.keys(), "changed": changed}
    return "; ".join(f"{name}: {', '.join(sorted(paths))}" for name, paths in lists.items() if paths)


def _equal(expected: Any, found: Any) -> bool:
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        return all(_equal(value, found[key]) for key, value in expected.items())
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        return expected.dtype == found.dtype and torch.equal(expected, found)
    return bool(expected == found)
