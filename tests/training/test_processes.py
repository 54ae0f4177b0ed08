"""Launchers, signals and folders of several processes, with programs as users start them."""

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
import unifier as uf
from tests.two_processes import D, TASKS

def small(steps: int = 6, validations: int = 1) -> uf.Experiment:
    '''Train on a few digits.'''
    training = uf.Training(steps=steps, num_validations=validations, batch_tokens=200, num_workers=0)
    trunk = uf.Transformer(D, 1, 2, 8)
    return uf.Experiment(trunk, {"digits": TASKS["digits"]()}, training)
"""
SECONDS = 400

pytestmark = pytest.mark.extras

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a program in an own folder. At the end, all programs are killed."""
    (tmp_path / "small.py").write_text(FILE)
    programs: list[subprocess.Popen[str]] = []

    def begin(*words: str, launcher: tuple[str, ...] = (), **variables: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", *launcher, "unifier", "run", "small.py", "--track", "off", *words]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tokenizers'}", **variables}
        pipe = subprocess.PIPE
        programs.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True))
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


def test_slurm_signal_stops_all_processes(start: Start, tmp_path: Path) -> None:
    """Row 18."""
    variables = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}
    variables |= {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "train",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }
    programs = [
        start("steps=100000", "validations=1000", SLURM_PROCID=rank, SLURM_LOCALID=rank, **variables) for rank in "01"
    ]
    wait_for(lambda: [*tmp_path.rglob("last.ckpt")])
    for program in programs:
        program.send_signal(signal.SIGUSR1)
    assert [program.wait(60) for program in programs] == [1, 1]
    (folder,) = (path.parent for path in tmp_path.rglob("settings.json"))
    assert (folder / "checkpoints" / "last.ckpt").exists()
    assert folder.name in programs[0].communicate()[0].splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        (["--devices", "9999"], {}, "devices=9999"),
        (["--devices", "two"], {}, "devices=two"),
        (["--nodes", "2"], {}, "MASTER_ADDR"),
        ([], {"WORLD_SIZE": "2"}, "LOCAL_RANK"),
        (["--devices", "2", "folds=2"], {}, "comparison"),
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
    assert main(["run", "small.py", "--track", "off", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert expected in err
    assert not [*tmp_path.rglob("settings.json")]
