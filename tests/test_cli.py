"""The command line: its output, its exit status, and how a run is interrupted and resumed."""

import csv
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import lightning.pytorch as pl
import pytest
import torch

from unifier.cli import main
from unifier.files import read_json
from unifier.limits import count_threads
from unifier.training import fit
from unifier.training.result import RunFailed

pytestmark = pytest.mark.usefixtures("undrawn")

RECIPE = '''
"""Digits, and a comparison."""
import signal

from unifier import ClassificationHead, Comparison, Experiment, Task, Training, Transformer
from unifier.datasets.digits import Digits
from unifier_tokenizers import PatchTokenizer

def small_study(*, steps: int = 4, dim: int = 8, validations: int = 1, ctrl_c: int = 0, times: int = 1) -> Experiment:
    """A few digits.

    Args:
        ctrl_c: The training step in which Ctrl-C is pressed. With 0, it is never pressed.
    """
    source = Digits(val=100, test=100)
    task = Task(source, PatchTokenizer(dim, channels=1), ClassificationHead(source.labels, dim))
    training = Training(steps=steps, batch_tokens=128, num_validations=validations)
    trunk, left = Transformer(dim, 1, 2, 8, dropout=0.2), [ctrl_c]

    def press(trunk, tokens, answer):
        left[0] -= trunk.training and len(tokens[0].mask) > 1
        if left[0] == 0 and ctrl_c:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    trunk.register_forward_hook(press)
    return Experiment(trunk, {"digits": task}, training)

def breaking(*, steps: int = 4) -> Experiment:
    """Fails in its first step."""
    experiment = small_study(steps=steps)
    experiment.trunk.register_forward_hook(fail)
    return experiment

def fail(trunk, tokens, answer):
    if trunk.training and len(tokens[0].mask) > 1:
        raise ConnectionError("the hook breaks")

def pair(*, steps: int = 2, seeds: tuple[int, ...] = (0,)) -> Comparison:
    """One experiment fails, the other does not."""
    return Comparison("pair", [breaking, small_study], settings={"steps": steps}, budget_unit="steps", seeds=seeds)

def terminated() -> Experiment:
    signal.raise_signal(signal.SIGTERM)
    return small_study()
'''
LONG = ["steps=60", "validations=6"]
Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "small_study.py"
    path.write_text(RECIPE)
    return path


def run(experiment: Path | str, *arguments: str) -> int:
    """Run the command `run` without tracking, and return its exit status."""
    return main(["run", str(experiment), *arguments, "--track", "off"])


def last_line(text: str) -> Path:
    return Path(text.rstrip("\n").rpartition("\n")[2])


def read_result(folder: Path) -> dict[str, Any]:
    return read_json(folder / "result.json")


@pytest.mark.slow
def test_run_prints_scores_and_folder(file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(file, "--out", str(tmp_path), "steps=3", "seed=5") == 0
    printed = capsys.readouterr()
    folder = last_line(printed.out)
    assert folder.parent == tmp_path / "small_study"
    result = read_result(folder)
    assert (result["seed"], result["settings"]["steps"], result["settings"]["dim"]) == (5, 3, 8)
    assert f"accuracy {result['metrics']['test/digits/accuracy']:.2f}" in printed.out
    assert "Traceback" not in printed.err

    page = folder / "report.html"
    text = page.read_text()
    assert f"unifier run {file} steps=3 dim=8" in text
    page.write_text("overwritten")
    assert main(["report", str(folder)]) == 0
    assert page.read_text() == text
    assert last_line(capsys.readouterr().out) == page


@pytest.mark.slow
def test_settings_may_stand_anywhere(file: Path, tmp_path: Path, capsys: Capture) -> None:
    out = ["--out", str(tmp_path)]
    for arguments in (["steps=2", "dim=4", *out], ["steps=2", *out, "dim=4"], [*out, "steps=2", "dim=4"]):
        assert run(file, *arguments) == 0
        settings = read_result(last_line(capsys.readouterr().out))["settings"]
        assert (settings["steps"], settings["dim"]) == (2, 4)


@pytest.mark.slow
@pytest.mark.slow
def test_setting_without_effect_is_named(tmp_path: Path, capsys: Capture) -> None:
    table = tmp_path / "a.csv"
    table.write_text("text,label\n" + "good film,1\nbad film,0\n" * 20)
    command = ["run", "text_classification", f"data={table}", "vocabulary=270", "--out", str(tmp_path / "runs")]
    assert main([*command, "start_tokenizers=false"]) == 2
    assert "start_tokenizers" in capsys.readouterr().err
    assert main([*command, "depth=3", f"trunk=hf:{tmp_path}"]) == 2  # The folder has no model.
    assert "depth=3" in capsys.readouterr().err.splitlines()[0]
    assert not (tmp_path / "runs").exists()


def test_show_prints_stages_and_settings(file: Path, capsys: Capture) -> None:
    assert main(["show", str(file), "dim=16"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "experiment small_study task digits",
        "values (..., N) 16 x 4 uint8",  # The example has four patches of 4 x 4 pixels.
        "positions (A, N) 2 x 4 int64",
        "matrix (B, D, N) 1 x 16 x 4 float32",
        "trunk: Transformer 1 x 16 x 4 float32",
        "target: ClassificationHead 1 int64",
        "dim int 16",
        "ctrl_c int 0 The training step",
    ):
        assert text in printed
    assert main(["show", f"{file}:pair"]) == 0
    assert "comparison pair: seeds 0" in capsys.readouterr().out
    assert not (file.parent / "runs").exists()


def test_help_of_a_file_lists_its_settings(file: Path, capsys: Capture) -> None:
    for arguments in (["run", str(file), "--help"], ["run", f"{file}:small_study", "dim=3", "-h", "--out", "x"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert "--resume RUN" in printed
        assert "The training step in which Ctrl-C is pressed" in printed
    assert main(["show", "pictures", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "learning_rate" in printed
    assert "adamw | muon" in printed
    with pytest.raises(SystemExit) as exit_info:
        main(["run", "--help"])
    assert exit_info.value.code == 0
    assert "--resume RUN" in capsys.readouterr().out


def test_list_names_plugins_and_experiments(file: Path, capsys: Capture) -> None:
    names = {"tokenizers": "mixture", "heads": "translation", "sources": "digits", str(file): "pair"}
    for what, name in {**names, "pictures": "pictures:pictures"}.items():
        assert main(["list", what]) == 0
        assert name in capsys.readouterr().out
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tokenizers: ")
    assert "\n  pictures " in printed
    assert main(["list", "head"]) == 2
    assert "head: " in capsys.readouterr().err


def test_list_prints_descriptions_in_one_column(capsys: Capture) -> None:
    for what in ("heads", "ladder"):
        main(["list", what])
        lines = capsys.readouterr().out.splitlines()
        width = max(len(line.split()[0]) for line in lines)
        assert all(line[width : width + 2] == "  " and line[width + 2] != " " for line in lines)


def test_module_prints_its_version_and_help(capsys: Capture) -> None:
    command = [sys.executable, "-m", "unifier", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("unifier ")
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["fly"], ["run"], ["run", "x.py", "--fast"], ["report", "here", "dim=3"]])
def test_unknown_arguments_are_refused(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("unifier")
    assert error.count("\n") == 1
    assert "key=value" not in error, "settings are not required"


@pytest.mark.slow
def test_failed_run_prints_traceback_and_folder(file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(f"{file}:breaking", "--out", str(tmp_path)) == 1
    printed = capsys.readouterr()
    assert "Traceback" in printed.err
    assert "the hook breaks" in printed.err
    assert read_result(last_line(printed.out))["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small_study", "pair"])
def test_full_disk_ends_in_a_line_and_the_folder(
    name: str, file: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    full_disk = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(pl.Trainer, "save_checkpoint", Mock(side_effect=full_disk))
    assert run(f"{file}:{name}", "steps=2", "--out", str(tmp_path)) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == "unifier: the disk: No space left on device"
    assert last_line(printed.out).parent == tmp_path / name


@pytest.mark.slow
def test_comparison_with_a_failed_run_exits_1(file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(f"{file}:pair", "--out", str(tmp_path)) == 1
    printed = capsys.readouterr()
    folder = last_line(printed.out)
    assert folder.parent == tmp_path / "pair"
    rows = read_json(folder / "comparison.json")["rows"]
    assert [row["result"]["status"] for row in rows] == ["failed", "finished"]
    assert "ConnectionError: the hook breaks" in printed.err
    assert "digits" in printed.out


@pytest.mark.slow
def test_terminal_of_few_letters_ends_no_run(file: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    terminal = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert run(f"{file}:pair", "seeds=0,1", "--out", str(tmp_path)) == 1
    terminal.seek(0)
    assert "\\xb1" in terminal.read()


def test_ctrl_c_at_the_start_is_one_line(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("unifier.cli.make_parser", Mock(side_effect=KeyboardInterrupt))
    assert main(["list"]) == 1
    assert capsys.readouterr().err == "interrupted\n"


def test_sigterm_is_ctrl_c(file: Path, capsys: Capture) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    assert main(["show", f"{file}:terminated"]) == 1
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.slow
def test_closed_pipe_ends_no_training(file: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as stop:
            run(file, "--out", str(tmp_path))
    assert stop.value.code == 1
    assert "Traceback" not in capsys.readouterr().err
    (path,) = tmp_path.rglob("result.json")
    assert read_result(path.parent)["status"] == "finished"


@pytest.fixture(scope="module")
def uninterrupted(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert run(file, *LONG, "--out", str(out)) == 0
    (folder,) = (out / "small_study").iterdir()
    return folder


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the rows of metrics.csv without the column of seconds."""
    with (folder / "metrics.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    return [{name: float(cell) for name, cell in row.items() if cell and name != "budget/seconds"} for row in rows]


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_end(
    file: Path, tmp_path: Path, uninterrupted: Path, capsys: Capture
) -> None:
    assert run(file, *LONG, "ctrl_c=35", "--out", str(tmp_path)) == 1
    printed = capsys.readouterr()
    folder = last_line(printed.out)
    assert "Traceback" not in printed.err
    assert f"--resume {folder}" in printed.err
    stopped, rows = read_result(folder), read_metrics(folder)
    assert (stopped["status"], stopped["budget"]["steps"]) == ("interrupted", 35)

    assert run(file, "--resume", str(folder)) == 0
    assert last_line(capsys.readouterr().out) == folder
    result, whole = read_result(folder), read_result(uninterrupted)
    assert result["status"] == "finished"
    assert result["metrics"] == pytest.approx(whole["metrics"], rel=1e-5)
    assert all(result["budget"][name] == whole["budget"][name] for name in ("steps", "examples", "tokens", "flops"))
    assert result["budget"]["seconds"] > stopped["budget"]["seconds"]
    paths = (each / "checkpoints" / "last.ckpt" for each in (folder, uninterrupted))
    torch.testing.assert_close(*(torch.load(path, weights_only=True)["state_dict"] for path in paths))
    resumed_rows = read_metrics(folder)
    assert resumed_rows[: len(rows)] == rows
    for row, other in zip(resumed_rows, read_metrics(uninterrupted), strict=True):
        assert row == pytest.approx(other, rel=1e-4)


@pytest.mark.slow
def test_second_ctrl_c_stops_at_once(file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(file, *LONG, "ctrl_c=35", "times=2", "--out", str(tmp_path)) == 1
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    stopped = read_result(last_line(printed.out))
    assert (stopped["status"], stopped["budget"]["steps"]) == ("interrupted", 34)


@pytest.mark.slow
def test_run_stopped_at_start_prints_its_folder(
    file: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(fit, "peak_flops", Mock(side_effect=KeyboardInterrupt))
    assert run(file, "--out", str(tmp_path)) == 1
    folder = last_line(capsys.readouterr().out)
    assert folder.parent == tmp_path / "small_study"
    assert read_result(folder)["status"] == "interrupted"


def copy_interrupted(source: Path, folder: Path) -> Path:
    """Copy a finished run as Ctrl-C in its last step would have left it."""
    shutil.copytree(source, folder)
    (folder / "result.json").write_text(json.dumps({**read_result(source), "status": "interrupted"}))
    return folder


@pytest.mark.slow
def test_finished_run_stays_as_it_is(file: Path, uninterrupted: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = Path(shutil.copytree(uninterrupted, tmp_path / "runs" / "finished"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run(file, "--resume", str(folder)) == 0
    assert last_line(capsys.readouterr().out) == folder
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("checkpoints/last.ckpt", "torn", "last.ckpt: broken"),
        ("checkpoints/best.ckpt", "torn", "best.ckpt: broken"),
        ("checkpoints/best.ckpt", None, "best.ckpt: no such file"),
        ("settings.json", "{}", "settings.json: broken (it lacks settings)"),
        ("settings.json", '{"settings": 5}', "settings.json: broken (it lacks settings)"),
        ("settings.json", '{"settings": {}}', "settings.json: broken (it lacks name)"),
    ],
)
def test_incomplete_run_does_not_resume(
    file: Path, uninterrupted: Path, tmp_path: Path, capsys: Capture, name: str, content: str | None, message: str
) -> None:
    folder = copy_interrupted(uninterrupted, tmp_path / "runs" / "half")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    before = read_result(folder)
    assert run(file, "--resume", str(folder)) == 2
    assert message in capsys.readouterr().err
    assert read_result(folder) == before


def test_changed_experiment_does_not_resume(file: Path, uninterrupted: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = copy_interrupted(uninterrupted, tmp_path / "runs" / "changed")
    file = Path(shutil.copy(file, tmp_path))
    file.write_text(RECIPE.replace("Transformer(dim, 1, 2, 8", "Transformer(dim, 1, 2, 16"))
    assert run(file, "--resume", str(folder)) == 2
    error = capsys.readouterr().err
    assert "last.ckpt" in error
    assert "small_study" in error
    assert read_result(folder)["status"] == "interrupted"


def test_resumed_run_keeps_its_settings(file: Path, uninterrupted: Path, tmp_path: Path, capsys: Capture) -> None:
    before = read_result(uninterrupted)
    other = tmp_path / "other_study.py"
    other.write_text(RECIPE.replace("small_study", "other_study"))
    for experiment, setting, folder, message in (
        (file, ["steps=9"], uninterrupted, "leave out steps"),
        (file, ["seed=0"], uninterrupted, "leave out seed"),
        (f"{file}:pair", [], uninterrupted, '"small_study", and cannot resume as "pair"'),
        (other, [], uninterrupted, '"small_study"'),
        (file, [], tmp_path, "settings.json"),
    ):
        assert run(experiment, *setting, "--resume", str(folder)) == 2
        assert message in capsys.readouterr().err
    assert read_result(uninterrupted) == before


@pytest.mark.parametrize(("name", "needed"), [("NOFILE", "64"), ("AS", "1,073,741,824")])
def test_low_limit_is_raised_or_refused(
    name: str, needed: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    kind, limits = getattr(resource, f"RLIMIT_{name}"), list[tuple[int, int]]()
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    for hard in (48, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda asked, hard=hard: (20, hard) if asked == kind else (-1, -1))
        main(["report", str(file)])
        message = capsys.readouterr().err.replace(str(file), "")  # A temporary folder may contain the number.
        assert (needed in message) == (hard == 48)
    assert limits == [(int(needed.replace(",", "")), resource.RLIM_INFINITY)]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EFBIG, "limit", "a.csv"), "ulimit -f"),
        (OSError(errno.EMFILE, "limit", "a.csv"), "64"),
        (OSError(errno.EAGAIN, "limit"), "ulimit -u"),
        (OSError(errno.ENOMEM, "limit"), "ulimit -v"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (RuntimeError("CPU: can't allocate memory: you tried\nto allocate 9 bytes"), "9 bytes); close other programs"),
        (MemoryError("9 bytes"), "9 bytes); close other programs"),
    ],
    ids=str,
)
def test_reached_limit_is_named(
    error: Exception, remedy: str, monkeypatch: pytest.MonkeyPatch, file: Path, capsys: Capture
) -> None:
    failed = RunFailed(cast(Any, SimpleNamespace(folder=file, error="")))
    failed.__cause__ = error
    for raised in (error, failed):
        monkeypatch.setattr("unifier.report.page.report_on", Mock(side_effect=raised))
        assert main(["report", str(file)]) == 2
        line = capsys.readouterr().err
        assert remedy in line
        assert line.count("\n") == 1


def test_too_few_threads_are_refused(monkeypatch: pytest.MonkeyPatch, file: Path, capsys: Capture) -> None:
    assert count_threads(5) == 5
    monkeypatch.setattr("unifier.limits.count_threads", lambda needed: needed - 1)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert main(["report", str(file)]) == 2
    assert "ulimit -u" in capsys.readouterr().err
