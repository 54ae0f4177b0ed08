"""Launchers, signals and folders of several processes, with programs as users start them."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from unifier.cli import main

ROOT = Path(__file__).parents[2]
FILE = """
import os
import torch
import unifier as uf
from tests.two_processes import D, TASKS
from unifier.distributed import world

def fail(trunk, _, output):
    if world().rank == 1 and trunk.training and torch.is_grad_enabled() and len(output.mask) > 1:
        exec(os.environ.get("FAIL", ""))

def small(steps: int = 6, validations: int = 1, rate: float = 1e-3) -> uf.Experiment:
    '''Train on a few digits.'''
    options = dict(learning_rate=rate, batch_tokens=200, num_workers=0)
    training = uf.Training(steps=steps, num_validations=validations, **options)
    trunk = uf.Transformer(D, 1, 2, 8)
    trunk.register_forward_hook(fail)
    exec(os.environ.get("PREPARE", ""), globals())
    return uf.Experiment(trunk, {"digits": TASKS["digits"]()}, training)

def study() -> uf.Comparison:
    '''Compare four runs.'''
    options = dict(modes=("solo",), grid={"rate": (1e-3, 1e30)}, budget_unit="steps")
    return uf.Comparison("study", [small], {"steps": 6}, seeds=(0, 1), **options)
"""
SECONDS = 900

pytestmark = pytest.mark.extras

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a program in an own folder. At the end, all programs are killed."""
    (tmp_path / "small.py").write_text(FILE)
    programs: list[subprocess.Popen[str]] = []

    def begin(
        *words: str,
        launcher: tuple[str, ...] = (),
        file: str = "small.py:small",
        folder: Path = tmp_path,
        **variables: str,
    ) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", *launcher, "unifier", "run", file, "--track", "off", *words]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tokenizers'}", **variables}
        pipe = subprocess.PIPE
        programs.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True))
        return programs[-1]

    yield begin
    for program in programs:
        program.kill()
        program.communicate()


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")


def processes_of(folder: Path) -> dict[int, Mapping[str, str]]:
    """Return the environment of each process that works in a folder, keyed by its id."""
    found: dict[int, Mapping[str, str]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink() == folder:
                entries = (path / "environ").read_text().split("\0")
                found[int(path.name)] = {name: value for name, _, value in (entry.partition("=") for entry in entries)}
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["devices", "torchrun"])
def test_two_processes_make_one_run(launcher: tuple[str, ...], start: Start, tmp_path: Path) -> None:
    """Rows 10 and 11."""
    program = start("--track", "offline", *([] if launcher else ["--devices", "2"]), launcher=launcher)
    out, err = program.communicate(timeout=SECONDS)
    assert program.returncode == 0, err
    (settings,) = tmp_path.rglob("settings.json")
    assert Path(out.splitlines()[-1]).name == settings.parent.name
    assert out.count("parameters (") == 1
    assert len([*tmp_path.rglob("offline-run-*.wandb")] or [*tmp_path.rglob("run-*.wandb")]) == 1
    assert len([*tmp_path.rglob("metrics.csv")]) == 1


DEATH = "os.kill(os.getpid(), 9)"
FAILURES = {
    "raise OSError(28, 'No space left on device', 'x.ckpt')": "x.ckpt",
    "raise ValueError('cause')": "cause",
    DEATH: "another process has ended",
}


@pytest.mark.parametrize(("failure", "launcher"), [*((failure, ()) for failure in FAILURES), (DEATH, TORCHRUN)])
def test_failure_of_one_process_ends_all(failure: str, launcher: tuple[str, ...], start: Start, tmp_path: Path) -> None:
    """Row 9. One line has the cause, the run can resume, and no process remains."""
    program = start(*([] if launcher else ["--devices", "2"]), launcher=launcher, FAIL=failure)
    err = program.communicate(timeout=SECONDS)[1]
    assert program.returncode not in (0, -9), err
    lines = [line for line in err.splitlines() if line.startswith("unifier: ")]
    assert len(lines) == 1, err
    assert FAILURES[failure] in lines[0]
    wait_for(lambda: not processes_of(tmp_path), 10)
    (settings,) = tmp_path.rglob("settings.json")
    assert '"failed"' in (settings.parent / "result.json").read_text()


def test_signal_after_a_failure_does_not_hide_it(start: Start) -> None:
    """Torchrun sends SIGTERM while the other processes still report the failure of one process."""
    prepare = """
import signal
import unifier.cli
from unifier.training.result import Result

def signal_first(method):
    def late(value, *rest):
        if getattr(value, "status", "failed") == "failed":
            signal.raise_signal(signal.SIGTERM)
        return method(value, *rest)
    return late

Result.write = signal_first(Result.write)
unifier.cli._report_error = signal_first(unifier.cli._report_error)
"""
    program = start("--devices", "2", FAIL=DEATH, PREPARE=prepare)
    err = program.communicate(timeout=SECONDS)[1]
    assert program.returncode == 2, err
    assert [line for line in err.splitlines() if line.startswith("unifier: ") and FAILURES[DEATH] in line], err


@pytest.mark.parametrize(("change", "expected"), [("", "not visible on"), ("# A change.", "code with the hash")])
def test_machines_that_differ_are_one_line(change: str, expected: str, start: Start, tmp_path: Path) -> None:
    """Start on two machines, of which the second has an own folder, or other code."""
    folders = [tmp_path / rank for rank in "01"]
    for folder, code in zip(folders, [FILE, FILE + change], strict=True):
        folder.mkdir()
        (folder / "small.py").write_text(code)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    programs = [start("--nodes", "2", folder=folder, NODE_RANK=folder.name, **address) for folder in folders]
    first, second = (program.communicate(timeout=SECONDS)[1] for program in programs)
    assert [program.returncode for program in programs] == [2, 2]
    assert first.count("unifier: ") == 1
    assert expected in first
    assert "process 1" in first
    assert "unifier: " not in second
    assert not [*tmp_path.rglob("settings.json")]


def test_comparison_on_two_processes(start: Start, tmp_path: Path) -> None:
    """Row 14. Two of the runs diverge."""
    program = start("--devices", "2", file="small.py:study")
    _, err = program.communicate(timeout=SECONDS)
    assert program.returncode == 1, err
    (path,) = tmp_path.rglob("comparison.json")
    content = json.loads(path.read_text())
    assert [row["result"]["status"] for row in content["rows"]] == [*["finished"] * 2, *["failed"] * 2]
    assert len([*tmp_path.rglob("result.json")]) == 4
    assert (path.parent / "report.html").exists()


def test_signal_to_one_process_stops_all_with_a_checkpoint(start: Start, tmp_path: Path) -> None:
    """Row 8."""
    program = start("steps=100000", "validations=1000", launcher=TORCHRUN)
    wait_for(lambda: [*tmp_path.rglob("last.ckpt")])
    (rank_1,) = (pid for pid, variables in processes_of(tmp_path).items() if variables.get("RANK") == "1")
    os.kill(rank_1, signal.SIGTERM)
    wait_for(lambda: not processes_of(tmp_path), 60)
    assert program.wait() != 0
    (folder,) = (path.parent for path in tmp_path.rglob("settings.json"))
    assert (folder / "result.json").exists()
    assert '"interrupted"' in (folder / "result.json").read_text()


def test_requeued_job_continues_and_one_interrupted_process_stops_all(start: Start, tmp_path: Path) -> None:
    """Row 18: SLURM stops a job and starts the same command again. Then, Ctrl-C reaches rank 1 alone."""
    variables = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}
    variables |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "MASTER_ADDR": "127.0.0.1"}
    words = ("steps=100000", "validations=10000", "--name", "job", "--resume", "auto")
    folder = tmp_path / "runs" / "small" / "job"

    def submit() -> "list[subprocess.Popen[str]]":
        given = {**variables, "MASTER_PORT": free_port()}
        return [start(*words, SLURM_PROCID=rank, SLURM_LOCALID=rank, **given) for rank in "01"]

    def last_step() -> int:
        table = folder / "metrics.csv"
        rows = list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
        steps = [int(row["step"]) for row in rows if row["val/score"]]
        assert steps == sorted(set(steps))
        return max(steps, default=0)

    programs = submit()
    wait_for((folder / "checkpoints" / "last.ckpt").exists)
    for program in programs:
        program.send_signal(signal.SIGUSR1)
    assert [program.wait(60) for program in programs] == [1, 1]
    assert "runs/small/job" in programs[0].communicate()[0].splitlines()[-1]
    stopped = json.loads((folder / "result.json").read_text())["budget"]["steps"]
    programs = submit()
    wait_for(lambda: last_step() > stopped)
    programs[1].send_signal(signal.SIGINT)
    errors = [program.communicate(timeout=60)[1] for program in programs]
    assert [program.returncode for program in programs] == [1, 1]
    assert ["interrupted; to continue" in text for text in errors] == [True, False], errors
    assert not any("Traceback" in text or "unifier: " in text for text in errors)
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert result["budget"]["steps"] > stopped
    assert [*tmp_path.rglob("settings.json")] == [folder / "settings.json"]
    assert not processes_of(tmp_path)


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        (["--devices", "9999"], {}, "devices=9999"),
        (["--devices", "two"], {}, "devices=two"),
        (["--nodes", "2"], {}, "MASTER_ADDR"),
        ([], {"WORLD_SIZE": "2"}, "LOCAL_RANK"),
    ],
)
def test_wrong_processes_are_one_line(
    words: list[str],
    variables: dict[str, str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "small.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "small.py:small", "--track", "off", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert expected in err
    assert not [*tmp_path.rglob("settings.json")]
