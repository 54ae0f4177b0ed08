"""Ctrl-C is heard between two steps, in every phase of a run, and by nobody afterwards."""

import csv
import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unifier import Comparison, Experiment, run
from unifier.cli import main
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training.callbacks import GracefulStop
from unifier.training.result import Interrupted, RunFailed
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

ROOT = Path(__file__).parents[2]
STEPS, EACH = 12, 4  # three validations, of four batches each, as the test has
stop_at: list[int] = []
"""The batches at which the trunk presses Ctrl-C, counted over the whole run: training, validation and test."""
by = signal.SIGINT
read = [0]


def press(trunk: nn.Module, tokens: Any, answer: Any) -> None:
    if len(tokens[0].mask) > 1:  # operations are counted on one example at a time
        read[0] += 1
        if read[0] in stop_at:
            os.kill(os.getpid(), by)


def pictures(*, accumulate: int = 1, ema: float = 0.0, average: int = 1, refit: bool = False) -> Experiment:
    source = Digits(val=480, test=480)
    task = Task(source, PatchTokenizer(8, channels=1), ClassificationHead(source.labels, 8))
    trunk = Transformer(8, 1, 2, 8, dropout=0.2)
    trunk.register_forward_hook(press)
    means: dict[str, Any] = {"grad_accumulation": accumulate, "ema_decay": ema, "average_last": average}
    training = Training(steps=STEPS, batch_tokens=128, num_validations=3, refit=refit, **means)
    return Experiment(trunk, {"digits": task}, training, name="pictures")


def started(out: Path, *at: int, resume: Path | None = None, **settings: Any) -> Any:
    stop_at[:] = at
    read[0] = 0
    return run(pictures, out=out, track="off", resume=resume, **settings)[0]


def rows(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    return [{name: float(cell) for name, cell in row.items() if cell and name != "budget/seconds"} for row in table]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return started(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "at",
    [1, 3, 4, 6, 8, 10, 24, 26, 30],
    ids=[
        "start",
        "training",
        "validation due",
        "validation",
        "its end",
        "after it",
        "last one",
        "best weights",
        "test",
    ],
)
def test_a_run_stopped_anywhere_ends_as_if_it_had_not_been(whole: Any, tmp_path: Path, at: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as stop:
        started(tmp_path, at)
    assert signal.getsignal(signal.SIGINT) is before
    assert read[0] <= at + EACH  # the step is ended, and a validation that is due
    folder = Path(str(stop.value))
    the_same(started(tmp_path, resume=folder), whole)


@pytest.mark.parametrize("at", [3, 8, 26, 30], ids=["training", "validation", "best weights", "test"])
def test_so_does_one_that_a_scheduler_stopped(
    whole: Any, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "by", signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as stop:
        started(tmp_path, at)
    assert signal.getsignal(signal.SIGTERM) is before
    the_same(started(tmp_path, resume=Path(str(stop.value))), whole)


@pytest.mark.parametrize(
    "settings",
    [{"average_last": 2}, {"grad_accumulation": 2, "ema_decay": 0.9}, {"refit": True}],
    ids=["average_last", "grad_accumulation", "refit"],
)
def test_so_does_one_that_averages_weights_or_gradients_or_validates_nothing(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    whole = started(tmp_path, **settings)
    assert whole.budget["steps"] == STEPS
    for at in (5, 13):  # within a step, and after a validation or, where there is none, in the test
        with pytest.raises(Interrupted) as stop:
            started(tmp_path, at, **settings)
        the_same(started(tmp_path, resume=Path(str(stop.value))), whole)


def the_same(ended: Any, whole: Any) -> None:
    """A resumed run's scores, costs, weights and figures are those of one that was never stopped."""
    folder = ended.folder
    assert ended.status == "finished"
    assert ended.metrics == pytest.approx(whole.metrics, rel=1e-5)
    assert [ended.budget[name] for name in ("steps", "tokens")] == [whole.budget[name] for name in ("steps", "tokens")]
    for name in ("best", "last"):
        states = [
            torch.load(result.folder / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]
            for result in (whole, ended)
        ]
        for part in states[0]:
            torch.testing.assert_close(states[1][part], states[0][part])
    found, expected = rows(folder), rows(whole.folder)
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-4)


def only() -> Comparison:
    return Comparison("only", [pictures], budget_unit="steps")


def folded(*, fold: int | None = None) -> Experiment:
    one = pictures()
    source = Digits(val=480, test=480)
    source.folds = (0, 1)  # pyright: ignore[reportAttributeAccessIssue]
    task = Task(source, one.tasks["digits"].tokenizer, one.tasks["digits"].head)
    return Experiment(one.trunk, {"digits": task}, one.training, name="folded")


@pytest.mark.parametrize(("what", "given"), [(only, {}), (folded, {"folds": 2})], ids=["trials", "folds"])
def test_a_comparison_stops_with_its_run_and_goes_on_by_its_own_folder(
    what: Any, given: dict[str, Any], tmp_path: Path
) -> None:
    stop_at[:] = [3]
    read[0] = 0
    with pytest.raises(Interrupted) as stop:
        run(what, out=tmp_path, track="off", **given)
    (path,) = tmp_path.glob("*/*/comparison.json")
    assert str(stop.value) == str(path.parent), "the command line says so, and to resume from there"
    assert json.loads(path.read_text())["status"] == "interrupted"
    results = run(what, out=tmp_path, track="off", resume=str(stop.value))
    assert [result.status for result in results] == ["finished"] * given.get("folds", 1)
    assert json.loads(path.read_text())["status"] == "finished"


def test_a_second_one_does_not_wait_for_the_step(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with GracefulStop(tmp_path) as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.asked
        with pytest.raises(Interrupted, match=tmp_path.name):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(ROOT / "experiments" / "pictures.py"), "tokens=2000", "dim=8", "crops=1", "--track", "off"]
    command += ["--out", str(tmp_path)]
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-m", "unifier.cli", *command], stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        said = bytearray()
        with suppress(OSError):  # how a terminal says that nobody writes to it any more
            while part := os.read(ours, 4096):
                said += part
        os.close(ours)
    bar = said.decode()
    assert running.returncode == 0, bar
    assert "Training" in bar
    assert "digits/loss" in bar
    assert "━" in bar
    assert main(command) == 0
    lines = capsys.readouterr().out
    assert "━" not in lines
    assert "validation: digits/accuracy" in lines


def test_what_its_caller_is_told_of_is_left_as_it_was(tmp_path: Path) -> None:
    log = logging.getLogger("lightning.pytorch")
    before = [*warnings.filters], log.level
    started(tmp_path)
    assert ([*warnings.filters], log.level) == before


def diverges() -> Experiment:
    one = pictures()
    return Experiment(one.trunk, one.tasks, Training(steps=STEPS, learning_rate=1e30, warmup_ratio=0), name="diverges")


def test_a_run_that_diverges_is_stopped_and_says_what_may_help(tmp_path: Path) -> None:
    stop_at[:] = []
    with pytest.raises(RunFailed, match="diverged: train/digits/loss is") as failure:
        run(diverges, out=tmp_path, track="off")
    result = failure.value.result
    assert result.status == "failed"
    assert result.metrics == {}
    assert "try a lower learning_rate" in result.error
    assert result.budget["steps"] < STEPS


@pytest.mark.parametrize("whole", ["", "checkpoints/last.ckpt", "comparison.json"])
def test_what_was_stopped_before_its_first_checkpoint_is_not_said_to_go_on(
    whole: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").mkdir()
    if whole:
        (tmp_path / whole).touch()
    study = tmp_path / "study_stopped.py"
    study.write_text(
        "from pathlib import Path\nfrom unifier import Experiment\n"
        "from unifier.training.result import Interrupted\n"
        f"def stopped() -> Experiment:\n    raise Interrupted(Path({str(tmp_path)!r}))\n"
    )
    assert main(["run", str(study), "--out", str(tmp_path), "--track", "off"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == str(tmp_path)
    assert said.err.splitlines()[-1] == (
        f"interrupted; to continue, run it again with --resume {tmp_path}"
        if whole
        else "interrupted before its first checkpoint"
    )
