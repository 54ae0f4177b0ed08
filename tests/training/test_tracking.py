"""Figures reach metrics.csv and TensorBoard, and a tracker that fails stops no training."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import pytest

from unifier import Experiment, run
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training import fit
from unifier.training.loggers import MetricsFile, RunLoggers, TensorBoard
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS = 3


def pictures(*, dim: int = 8) -> Experiment:
    source = Digits(val=800, test=900)
    task = Task(source, PatchTokenizer(dim, channels=1), ClassificationHead(source.labels, dim))
    training = Training(steps=STEPS, batch_tokens=256, num_validations=1)
    return Experiment(Transformer(dim, 1, 2, 8), {"digits": task}, training, name="pictures")


def test_tensorboard_on_request(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of tensorboard's own dependencies
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        (result,) = run(pictures, out=tmp_path, track="off", tensorboard=True)
        events = EventAccumulator(str(result.folder))
        events.Reload()
    assert [event.step for event in events.Scalars("train/digits/loss")] == list(range(1, STEPS + 1))
    (tested,) = events.Scalars("test/digits/accuracy")
    assert tested.value == pytest.approx(result.metrics["test/digits/accuracy"])
    assert not list(tmp_path.rglob("*.wandb"))


def test_tensorboard_shows_no_step_of_a_resumed_run_twice(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for done, steps in ((None, range(1, 5)), (2, range(3, 6))):
            written = TensorBoard(tmp_path, done)
            for step in steps:
                written.log({"loss": float(step)}, step)
            written.close(failed=False)
        events = EventAccumulator(str(tmp_path))
        events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5]


@final
class Broken:
    """A sink that raises when it is used for what `at` says."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.asked: list[str] = []
        self._do("open")

    def _do(self, what: str) -> None:
        self.asked.append(what)
        if what == self.at:
            raise ConnectionError(f"no tracker\n at {what}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._do("log")

    def keep(self, folder: Path, metrics: Mapping[str, float]) -> None:
        self._do("keep")

    def close(self, *, failed: bool) -> None:
        self._do("close")


@pytest.mark.parametrize("at", ["open", "log", "keep", "close"])
def test_a_tracker_that_fails_is_named_and_left_out_and_training_goes_on(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Broken] = []

    def broken(*_: Any, **__: Any) -> Broken:
        opened.append(Broken(at))
        return opened[-1]

    monkeypatch.setattr(fit, "WeightsAndBiases", broken)
    with pytest.warns(UserWarning, match=f"tracking fails.*no tracker at {at}") as warned:
        (result,) = run(pictures, out=tmp_path, track="offline")
    assert len([warning for warning in warned if "tracking fails" in str(warning.message)]) == 1
    assert result.status == "finished"
    assert json.loads((result.folder / "result.json").read_text())["status"] == "finished"
    assert (result.folder / "metrics.csv").exists()
    if at == "log":
        assert opened[0].asked == ["open", "log", "close"], "or the next run would be taken for this one"


def test_metrics_csv_is_whole_after_each_row_and_gains_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    tracking = RunLoggers(tmp_path, lambda: {"steps": 1, "tokens": 2, "flops": 3, "seconds": 4.0})
    tracking.add(lambda: MetricsFile(path))
    tracking.log_metrics({"train/a/loss": 0.5, "epoch": 0})
    tracking.log_metrics({"val/a/accuracy": 50.0})
    header, first, second = path.read_text().splitlines()
    assert header == "step,train/a/loss,budget/tokens,budget/flops,budget/seconds,val/a/accuracy"
    assert (first, second) == ("1,0.5,2,3,4.0,", "1,,2,3,4.0,50.0")


def test_a_resumed_run_writes_anew_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    before = MetricsFile(path)
    for step in (1, 2, 3, 4):
        before.log({"loss": step}, step)
    before.log({"score": 4}, 4)
    after = MetricsFile(path)
    after.log({"loss": 33}, 3)
    after.log({"loss": 44}, 4)
    assert path.read_text().splitlines()[1:] == ["1,1", "2,2", "3,33", "4,44"]


def test_a_disk_that_is_full_is_no_tracker_s_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.csv"
    tracking = RunLoggers(tmp_path, lambda: {"steps": 1, "tokens": 2, "flops": 3, "seconds": 4.0})
    tracking.add(lambda: MetricsFile(path))
    tracking.log_metrics({"loss": 0.5})
    whole = path.read_text()

    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        tracking.log_metrics({"loss": 0.4})
    assert path.read_text() == whole
