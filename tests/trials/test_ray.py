"""Comparisons whose trials are processes of a Ray cluster with three workers of one core each."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.trials.on_ray import KILLS, MEET
from unifier import Comparison, run
from unifier.cli import main
from unifier.config import load_experiment
from unifier.training.run_context import RunContext
from unifier.trials import ray
from unifier.trials.fitting import Job, TrialFitter
from unifier.trials.plan import plan_trials
from unifier.trials.ray import ENVIRONMENT, RayOptions
from unifier_tokenizers import InputError

pytestmark = pytest.mark.extras

FILE = Path(__file__).with_name("on_ray.py")
CHANGING = {"seconds", "peak_memory_bytes", "speed", "folder", "machine"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ |= ENVIRONMENT
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    ray.init(
        num_cpus=3,
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=40,
        object_store_memory=10**8,
    )
    signal.signal(signal.SIGTERM, handler)
    yield
    ray.shutdown()


def rows(out: Path, name: str, **options: Any) -> list[dict[str, Any]]:
    """Run a comparison, and return its rows without times, machine and folder."""
    if "ray" in options:  # The cluster of the tests declares a GPU.
        options = {"trial_gpus": 0, **options}
    run(load_experiment(f"{FILE}:{name}"), out=out, track="off", **options)
    (path,) = out.glob("*/*/comparison.json")
    return without_times(json.loads(path.read_text())["rows"])


def without_times(content: Any) -> Any:
    if isinstance(content, list):
        return [without_times(each) for each in content]
    if not isinstance(content, dict):
        return content
    return {key: without_times(value) for key, value in content.items() if key not in CHANGING}


@pytest.mark.usefixtures("undrawn", "cluster")
def test_rows_equal_a_serial_comparison_although_two_trials_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (kills := tmp_path / "kills").mkdir()
    for number in (signal.SIGKILL, signal.SIGTERM):
        (kills / str(int(number))).touch()
    monkeypatch.setenv(KILLS, str(kills))
    found = rows(tmp_path / "ray", "twelve", ray="local")
    assert not list(kills.iterdir())
    assert capsys.readouterr().out.count("restarting") == 2
    assert len(list((tmp_path / "ray").glob("*/*/trials/*/"))) == 12, "a killed trial resumes in its folder"
    assert found == rows(tmp_path / "serial", "twelve")


@pytest.mark.usefixtures("cluster")
def test_failed_trial_does_not_stop_the_others(tmp_path: Path) -> None:
    ends = [(row["result"]["status"], row["result"]["error"]) for row in rows(tmp_path, "partly", ray="local")]
    assert ends == [("failed", "RuntimeError: a broken trunk"), ("finished", "")]


@pytest.mark.usefixtures("undrawn", "cluster")
def test_two_trials_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a declared GPU without a device. Each of the two trials waits for the other."""
    (meeting := tmp_path / "meeting").mkdir()
    monkeypatch.setenv(MEET, str(meeting))
    found = rows(tmp_path / "runs", "both", ray="local", trial_gpus=0.5)
    assert [row["result"]["status"] for row in found] == ["finished", "finished"]
    assert len(list(meeting.iterdir())) == 2


@pytest.mark.usefixtures("cluster")
def test_trial_needs_a_machine_with_its_resources(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trial_cpus=4"):
        rows(tmp_path, "twelve", ray="local", trial_cpus=4)
    assert not list(tmp_path.glob("*/*"))


def test_worker_refuses_an_unshared_folder_and_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = load_experiment(f"{FILE}:twelve")()
    assert isinstance(comparison, Comparison)
    fitter = TrialFitter(comparison, RunContext(tmp_path, "study", wandb="off"))
    common, job = (
        ray.pack_common(fitter, 1),
        ray.dump(fitter, Job(trial=next(plan_trials(comparison)), folder=tmp_path)),
    )
    assert "give a folder that all machines share" in str(ray.run_job(common, job, None))
    monkeypatch.setattr(ray, "_code_hash", lambda: "other")
    assert "code with the hash other" in str(ray.run_job(common, job, None))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "ray://127.0.0.1:1", "dim=16"])
def test_address_without_a_cluster_is_refused_at_once(address: str) -> None:
    with pytest.raises(InputError, match=f"ray={address}"):
        RayOptions(address).check()


def test_address_after_a_space_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{FILE}:twelve", "--ray", "10.0.0.1:6379", "--out", str(tmp_path)]) == 2
    assert "--ray=10.0.0.1:6379" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--trial-cpus", "2"], ["--ray", "--trial-cpus", "0"], ["--ray", "--trial-gpus", "1.5"]]
)
def test_wrong_resources_are_refused(options: list[str], tmp_path: Path) -> None:
    assert main(["run", f"{FILE}:twelve", *options, "--out", str(tmp_path)]) == 2


def test_single_run_with_ray_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{FILE}:fine", "--ray", "steps=4", "--out", str(tmp_path)]) == 2
    assert "trials of a comparison" in capsys.readouterr().err


def test_no_process_survives_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "unifier", "run", f"{FILE}:twelve", "--ray", "--track", "off"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert any("run 1 of 12" in line for line in process.stdout)
        assert count_processes(process.pid) > 3
        process.kill()
    end = time.monotonic() + 10
    while (left := count_processes(process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == 0, subprocess.run(["ps", "-eo", "pid,ppid,sid,stat,args"], capture_output=True, text=True).stdout


def count_processes(session: int) -> int:
    """Return the number of running processes of a session."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, owner = path.read_text().rpartition(") ")[2].split()[:4]
            count += int(owner) == session and state != "Z"
    return count
