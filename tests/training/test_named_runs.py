"""The same command continues an unfinished run with a name, and leaves a finished run as it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
import wandb

from unifier.cli import main
from unifier.files import read_json
from unifier.folders import ID_FILE, LOCK_FILE, chosen_name, new_folder, tracking_id
from unifier.training.checkpoint import read_checkpoint
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

RECIPE = '''"""A run and a comparison of two runs, which receive a signal in a training step."""
import os
import signal

from unifier import ClassificationHead, Comparison, Experiment, PatchTokenizer, Task, Training, Transformer
from unifier.datasets.digits import Digits

GIVEN, steps_made = Training(steps=6, batch_tokens=256, num_validations=1), 0

def flat(step: int, steps: int) -> float:
    return 0.5

def study(*, dim: int = 8, training: Training = GIVEN) -> Experiment:
    def press(trunk, tokens, answer):
        global steps_made
        steps_made += trunk.training and len(tokens[0].mask) > 1
        name, _, step = os.environ.get("STOP", "").partition(":")
        if name and steps_made == int(step):
            signal.raise_signal(getattr(signal, name))
    trunk = Transformer(dim, 1, 2, 8)
    trunk.register_forward_hook(press)
    task = Task(Digits(val=20, test=20), PatchTokenizer(dim, channels=1), ClassificationHead(Digits.labels, dim))
    return Experiment(trunk, {"digits": task}, training)

def both(*, seeds: tuple[int, ...] = (0, 1)) -> Comparison:
    return Comparison("both", [study], seeds=seeds, budget_unit="steps")
'''


def call(file: Path, out: Path, *arguments: str) -> int:
    settings = ["optimizer=torch.optim.Adagrad", f"schedule={out.parent.name}.flat"]
    return main(["run", str(file), "--out", str(out), "--track", "off", "--name", "night", *settings, *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / f"{tmp_path.name}.py").write_text(RECIPE)
    return tmp_path / f"{tmp_path.name}.py"


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGUSR1", "SIGTERM"])
def test_run_that_slurm_stops_is_continued(
    number: str, file: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    for name, value in {
        "JOB_ID": "1",
        "NTASKS": "1",
        "PROCID": "0",
        "LOCALID": "0",
        "NODEID": "0",
        "JOB_NAME": "j",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("STOP", f"{number}:3")
    reference = Path(f"{file}:study")
    folder = tmp_path / "runs" / "study" / "night"
    assert call(reference, tmp_path / "runs", "--resume", "auto", "--track", "offline") == 1
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == 3
    assert read_json(folder / "result.json")["status"] == "interrupted"
    monkeypatch.delenv("STOP")
    assert call(reference, tmp_path / "runs", "--resume", "auto", "steps=7") == 2
    assert "steps=6" in capsys.readouterr().err
    assert call(reference, tmp_path / "runs", "--resume", "auto", "--track", "offline") == 0
    result = read_json(folder / "result.json")
    assert (result["status"], result["budget"]["steps"]) == ("finished", 6)
    assert result["settings"]["optimizer"] == "torch.optim.Adagrad"
    assert result["settings"]["schedule"] == f"{file.stem}.flat"
    assert call(reference, tmp_path / "whole") == 0
    last = Path("checkpoints") / "last.ckpt"
    weights, whole = (read_checkpoint(each / last)["state_dict"] for each in (folder, tmp_path / "whole/study/night"))
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
    wandb.teardown()
    assert len({path.name for path in folder.rglob(f"run-{tracking_id(folder)}.wandb")}) == 1
    assert len(list(folder.rglob("*.wandb"))) == 2, "each process has one offline part of the same run"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    capsys.readouterr()
    assert call(reference, tmp_path / "runs", "--resume", "auto") == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert call(reference, tmp_path / "runs") == 2
    assert "--resume auto" in capsys.readouterr().err
    assert call(reference, tmp_path / "runs", "--resume", "auto", "seed=1") == 2
    assert "seed=0" in capsys.readouterr().err


@pytest.mark.slow
def test_comparison_with_a_name_is_continued(file: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    reference, folder = Path(f"{file}:both"), tmp_path / "runs" / "both" / "night"
    monkeypatch.setenv("STOP", "SIGTERM:8")
    assert call(reference, tmp_path / "runs", "--resume", "auto", "steps=5") == 1
    first, second = read_json(folder / "comparison.json")["rows"]
    monkeypatch.delenv("STOP")
    assert call(reference, tmp_path / "runs", "--resume", "auto", "steps=6") == 2
    assert call(reference, tmp_path / "runs", "--resume", "auto", "steps=5") == 0
    rows = read_json(folder / "comparison.json")["rows"]
    assert [row["folder"] for row in rows] == [first["folder"], second["folder"]]
    assert [row["result"]["budget"]["steps"] for row in rows] == [5, 5]
    page = (folder / "report.html").stat().st_mtime_ns
    capsys.readouterr()
    assert call(reference, tmp_path / "runs", "--resume", "auto", "steps=5") == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    assert (folder / "report.html").stat().st_mtime_ns == page


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--name", "a/b"], "a/b"), (["--resume", "auto"], "--name"), (["--name", "a", "--resume", "b"], "resume=b")],
)
def test_wrong_name_is_one_line(arguments: list[str], named: str, file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", f"{file}:study", "--out", str(tmp_path), *arguments]) == 2
    assert named in capsys.readouterr().err


def test_named_folder_of_others_is_refused_and_of_a_killed_process_is_used(tmp_path: Path) -> None:
    with new_folder(tmp_path, name="night") as folder:
        assert (chosen_name(folder), folder) == ("night", tmp_path / "night")
        assert tracking_id(folder) != "night"
    (folder / "experiment.py").touch()  # The process was killed before it wrote settings.json.
    with new_folder(tmp_path, name="night"):
        pass
    started: list[Any] = [(folder, "settings.json"), (tmp_path / "mine", "notes.txt")]
    for place, name in started:
        place.mkdir(exist_ok=True)
        (place / name).touch()
        with pytest.raises(InputError, match=f"{place.name}: .*--name"), new_folder(tmp_path, name=place.name):
            pass
    assert {path.name for path in (tmp_path / "mine").iterdir()} <= {"notes.txt", LOCK_FILE}
    assert not (tmp_path / "mine" / ID_FILE).exists()
