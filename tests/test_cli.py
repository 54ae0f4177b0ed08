"""The command line: what it prints, what it returns, and how a run is stopped and resumed."""

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from unifier.cli import main

pytestmark = pytest.mark.usefixtures("undrawn")

EXPERIMENT = '''
"""Digits, and a comparison."""
from unifier import Task, ClassificationHead, Comparison, Experiment, Training, Transformer
from unifier.data.embedded import Digits
from unifier_tokenizers import PatchTokenizer

def small_study(*, steps: int = 4, dim: int = 8, validations: int = 2) -> Experiment:
    """A few digits."""
    source = Digits(val=100, test=100)
    task = Task(source, PatchTokenizer(dim, channels=1), ClassificationHead(source.labels, dim))
    training = Training(steps=steps, batch_tokens=128, num_validations=validations)
    return Experiment(Transformer(dim, 1, 2, 8, dropout=0.2), {"digits": task}, training, name="small_study")

def breaking(*, steps: int = 4) -> Experiment:
    """Stops being well in its second step."""
    experiment = small_study(steps=steps)
    experiment.trunk.register_forward_hook(fail)
    return experiment

def fail(trunk, tokens, answer):
    if trunk.training and len(tokens[0].mask) > 1:
        raise ConnectionError("the hook breaks")

def pair(*, seeds: tuple[int, ...] = (0,)) -> Comparison:
    """One that breaks and one that does not."""
    return Comparison("pair", [breaking, small_study], settings={"steps": 2}, match="steps", seeds=seeds)
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "small_study.py"
    path.write_text(EXPERIMENT)
    return path


def last_line(text: str) -> Path:
    return Path(text.rstrip("\n").rpartition("\n")[2])


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def weights(folder: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]


def test_a_run_prints_its_scores_and_at_last_its_folder(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(file), "--out", str(tmp_path), "steps=3", "--track", "off", "seed=5"]) == 0
    printed = capsys.readouterr()
    folder = last_line(printed.out)
    assert folder.parent == tmp_path / "small_study"
    found = result(folder)
    assert (found["seed"], found["settings"]) == (5, {"steps": 3, "dim": 8, "num_validations": 2})
    assert f"accuracy {found['metrics']['test/digits/accuracy']:.2f}" in printed.out
    assert "Traceback" not in printed.err

    page = folder / "report.html"
    whole = page.read_text()
    assert "unifier run small_study.py steps=3 dim=8 num_validations=2 seed=5\n" in whole
    page.write_text("overwritten")
    assert main(["report", str(folder)]) == 0
    assert page.read_text() == whole
    assert last_line(capsys.readouterr().out) == page


def test_settings_before_after_and_between_options_are_the_same(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path), "--track", "off"]
    for arguments in (["steps=2", "dim=4", *out], ["steps=2", *out, "dim=4"], [*out, "steps=2", "dim=4"]):
        assert main(["run", str(file), *arguments]) == 0
        assert result(last_line(capsys.readouterr().out))["settings"] == {"steps": 2, "dim": 4, "num_validations": 2}


def test_show_prints_every_stop_and_trains_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(file), "dim=16"]) == 0
    printed = capsys.readouterr().out
    for said in (
        "experiment small_study",
        "task digits",
        "values (..., N)            16 x 4 uint8",  # four patches of 4 x 4 pixels
        "positions (A, N)           2 x 4 int64",
        "matrix (B, D, N)           1 x 16 x 4 float32",
        "trunk: Transformer         1 x 16 x 4 float32",
        "target: ClassificationHead 1 int64",
        "loss, untrained",
    ):
        assert said in printed
    assert main(["show", f"{file}:pair"]) == 0
    assert "comparison pair: seeds 0" in capsys.readouterr().out
    assert not (file.parent / "runs").exists()


def test_list_names_what_there_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for what, name in (("tokenizers", "mixture"), ("heads", "translation"), ("sources", "digits"), (str(file), "pair")):
        assert main(["list", what]) == 0
        assert name in capsys.readouterr().out
    assert main(["list"]) == 0
    assert capsys.readouterr().out.startswith("tokenizers: ")


def test_what_is_not_there_to_list_is_told_what_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "head"]) == 2
    said = capsys.readouterr().err
    assert said == "unifier: head: no such file; list a file with experiments, or tokenizers, heads, sources\n"


def test_a_run_that_breaks_prints_why_and_its_folder(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{file}:breaking", "--out", str(tmp_path), "--track", "off"]) == 1
    printed = capsys.readouterr()
    assert "Traceback" in printed.err
    assert "the hook breaks" in printed.err
    assert result(last_line(printed.out))["status"] == "failed"


@pytest.mark.parametrize("name", ["small_study", "pair"])
def test_the_folder_is_printed_last_where_the_disk_is_full(
    name: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pl.Trainer, "save_checkpoint", full)
    settings = ["steps=2"] if name == "small_study" else []
    assert main(["run", f"{file}:{name}", *settings, "--out", str(tmp_path), "--track", "off"]) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == "unifier: the disk: No space left on device"
    assert last_line(printed.out).parent == tmp_path / name


def test_a_comparison_of_which_one_run_breaks_is_not_done(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{file}:pair", "--out", str(tmp_path), "--track", "off"]) == 1
    printed = capsys.readouterr()
    folder = last_line(printed.out)
    assert folder.parent == tmp_path / "pair"
    assert [row["result"]["status"] for row in json.loads((folder / "comparison.json").read_text())["rows"]] == [
        "failed",
        "finished",
    ]
    assert "ConnectionError: the hook breaks" in printed.err
    assert "task" in printed.out
    assert "digits" in printed.out


def test_no_command_prints_help_and_unknown_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out
    for arguments in (["fly"], ["run"], ["run", "x.py", "--fast"], ["report", "here", "dim=3"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("unifier")
        assert said.count("\n") == 1
        assert "key=value" not in said, "which nobody has to give"


# The longer run that is stopped, and the same one left alone.
LONG = ["steps=300", "num_validations=10", "--track", "off"]


@pytest.fixture(scope="module")
def uninterrupted(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert main(["run", str(file), *LONG, "--out", str(out)]) == 0
    (folder,) = (out / "small_study").iterdir()
    return folder


def interrupted(file: Path, out: Path, times: int = 1) -> tuple[int, str, str, Path]:
    """Start the long run, and stop it after its first checkpoint."""
    command = [sys.executable, "-m", "unifier.cli", "run", str(file), *LONG, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(out.glob("small_study/*/checkpoints/last.ckpt")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(times):
        os.kill(process.pid, signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    (folder,) = (out / "small_study").iterdir()
    return process.returncode, printed, said, folder


def rows(folder: Path) -> list[dict[str, float]]:
    """What metrics.csv holds, but for the clock."""
    with (folder / "metrics.csv").open(newline="") as table:
        read = list(csv.DictReader(table))
    return [{name: float(cell) for name, cell in row.items() if cell and name != "budget/seconds"} for row in read]


def test_an_interrupted_run_goes_on_and_ends_as_if_it_had_never_stopped(
    file: Path, tmp_path: Path, uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, printed, said, folder = interrupted(file, tmp_path)
    assert status == 1
    assert "Traceback" not in said
    assert f"run it again with --resume {folder}" in said
    assert last_line(printed) == folder
    stopped = result(folder)
    assert stopped["status"] == "interrupted"
    assert 0 < stopped["budget"]["steps"] < 300
    assert (folder / "checkpoints" / "last.ckpt").exists()
    before = rows(folder)

    assert main(["run", str(file), "--resume", str(folder), "--track", "off"]) == 0
    assert last_line(capsys.readouterr().out) == folder
    ended, whole = result(folder), result(uninterrupted)
    assert ended["status"] == "finished"
    assert ended["metrics"] == pytest.approx(whole["metrics"], rel=1e-5)
    for name in ("steps", "examples", "tokens", "flops"):
        assert ended["budget"][name] == whole["budget"][name]
    assert ended["budget"]["seconds"] > stopped["budget"]["seconds"]
    for name, part in weights(uninterrupted).items():
        torch.testing.assert_close(weights(folder)[name], part)
    found, expected = rows(folder), rows(uninterrupted)
    assert found[: len(before)] == before
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-4)


def stopped(run: Path, folder: Path) -> Path:
    """A copy of a finished run as Ctrl-C would have left it in its last step."""
    shutil.copytree(run, folder)
    (folder / "result.json").write_text(json.dumps({**result(run), "status": "interrupted"}))
    return folder


def test_a_finished_run_stays_as_it_is(
    file: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(uninterrupted, tmp_path / "runs" / "finished"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["run", str(file), "--resume", str(folder), "--track", "off"]) == 0
    printed = capsys.readouterr().out
    assert "finished already; nothing is left to train" in printed
    assert last_line(printed) == folder
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("checkpoints/last.ckpt", "torn", "last.ckpt: broken (no end of the archive)"),
        ("checkpoints/best.ckpt", "torn", "best.ckpt: broken (no end of the archive)"),
        ("checkpoints/best.ckpt", None, "best.ckpt: no such file"),
        ("settings.json", "{}", r"settings.json: broken (it lacks settings)"),
        ("settings.json", '{"settings": 5}', r"settings.json: broken (it lacks settings)"),
        ("settings.json", '{"settings": {}}', r"settings.json: broken (it lacks name)"),
    ],
)
def test_a_run_of_which_half_is_there_does_not_go_on(
    file: Path,
    uninterrupted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str | None,
    said: str,
) -> None:
    folder = stopped(uninterrupted, tmp_path / "runs" / "half")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    before = result(folder)
    assert main(["run", str(file), "--resume", str(folder), "--track", "off"]) == 2
    assert said in capsys.readouterr().err
    assert result(folder) == before


def test_a_run_whose_experiment_has_changed_does_not_go_on(
    file: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stopped(uninterrupted, tmp_path / "runs" / "changed")
    file = Path(shutil.copy(file, tmp_path))
    file.write_text(EXPERIMENT.replace("Transformer(dim, 1, 2, 8", "Transformer(dim, 1, 2, 16"))
    assert main(["run", str(file), "--resume", str(folder), "--track", "off"]) == 2
    assert "last.ckpt does not fit small_study; was that changed since? (size mismatch" in capsys.readouterr().err
    assert result(folder)["status"] == "interrupted"


def test_a_run_that_is_stopped_before_its_first_step_says_where_it_lies(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("unifier.training.fit.peak_flops", stop)
    assert main(["run", str(file), "--out", str(tmp_path / "runs"), "--track", "off"]) == 1
    (folder,) = (tmp_path / "runs" / "small_study").iterdir()
    assert last_line(capsys.readouterr().out) == folder
    assert result(folder)["status"] == "interrupted"


def test_a_second_ctrl_c_stops_at_once(file: Path, tmp_path: Path) -> None:
    status, _, said, folder = interrupted(file, tmp_path, times=2)
    assert status == 1
    assert "Traceback" not in said
    assert result(folder)["status"] == "interrupted"


def test_a_resumed_run_keeps_its_settings_and_its_experiment(
    file: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = result(uninterrupted)
    for arguments, said in (
        ([str(file), "steps=9"], "keeps its settings; leave out steps"),
        ([str(file), "seed=0"], "keeps its settings; leave out seed"),
        ([f"{file}:pair"], 'is a run of "small_study", and cannot resume as "pair"'),
    ):
        assert main(["run", *arguments, "--resume", str(uninterrupted), "--track", "off"]) == 2
        assert said in capsys.readouterr().err
    assert main(["run", str(file), "--resume", str(tmp_path), "--track", "off"]) == 2
    assert "no such file; is" in capsys.readouterr().err
    other = tmp_path / "other_study.py"
    other.write_text(EXPERIMENT.replace("small_study", "other_study"))
    assert main(["run", str(other), "--resume", str(uninterrupted), "--track", "off"]) == 2
    assert 'a run of "small_study"' in capsys.readouterr().err
    assert result(uninterrupted) == before
