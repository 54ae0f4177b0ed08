"""Metrics reach metrics.csv, TensorBoard and Lightning's loggers; a tracker that fails stops no training."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import pytest
from lightning.pytorch.loggers import CSVLogger

from unifier import InputError, Result
from unifier.files import printable, read_csv
from unifier.training import trackers
from unifier.training.loggers import MetricsFile, RunLogger, RunLoggers, TensorBoard
from unifier.training.trackers import check_trackers

pytestmark = pytest.mark.usefixtures("undrawn")

COST = {"steps": 1, "tokens": 2, "flops": 3, "seconds": 4.0}


def read_scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # Dependencies of tensorboard warn.
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder))
        events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.mark.slow
def test_tensorboard_receives_metrics_on_request(run_tracked: Callable[..., Result], tmp_path: Path) -> None:
    result = run_tracked(tensorboard=True)
    assert [step for step, _ in read_scalars(result.folder, "train/a/loss")] == [1, 2, 3]
    ((_, accuracy),) = read_scalars(result.folder, "test/a/accuracy")
    assert accuracy == pytest.approx(result.metrics["test/a/accuracy"])
    assert not list(tmp_path.rglob("*.wandb"))


def test_tensorboard_shows_resumed_steps_once(tmp_path: Path) -> None:
    for done, steps in ((None, range(1, 5)), (2, range(3, 6))):
        logger = TensorBoard(tmp_path, done)
        for step in steps:
            logger.log({"loss\udcff": float(step)}, step)
        logger.close(failed=False)
    assert [step for step, _ in read_scalars(tmp_path, printable("loss\udcff"))] == [1, 2, 3, 4, 5]


@final
class Broken(RunLogger):
    """A tracker that fails in one of its methods."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.calls: list[str] = []
        self._call("open")

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method == self.at:
            raise ConnectionError(f"no tracker\n at {method}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._call("log")

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        self._call("log_artifacts")

    def close(self, *, failed: bool) -> None:
        self._call("close")


@pytest.mark.slow
@pytest.mark.parametrize("at", ["open", "log", "log_artifacts", "close"])
def test_broken_tracker_is_left_out(
    at: str, run_tracked: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Broken] = []

    def create(*_: Any, **__: Any) -> Broken:
        opened.append(Broken(at))
        return opened[-1]

    monkeypatch.setattr(trackers, "WeightsAndBiases", create)
    with pytest.warns(UserWarning, match=f"no tracker at {at}") as warned:
        result = run_tracked(wandb="offline")
    assert len([warning for warning in warned if "no tracker" in str(warning.message)]) == 1
    assert result.status == "finished"
    assert (result.folder / "metrics.csv").exists()
    if at == "log":
        assert opened[0].calls == ["open", "log", "close"], "an open tracker would receive the next run"


def test_metrics_file_gains_columns_or_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_halfway: Callable[..., None]
) -> None:
    tracked = RunLoggers(tmp_path, lambda: COST)
    tracked.add(lambda: MetricsFile(tmp_path / "metrics.csv", []))
    tracked.log_metrics({"train/a/loss": 0.5, "epoch": 0})
    tracked.log_metrics({"val/a/accuracy": 50.0})
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header == "step,train/a/loss,budget/tokens,budget/flops,budget/seconds,val/a/accuracy"
    assert rows == ["1,0.5,2,3,4.0,", "1,,2,3,4.0,50.0"]
    fail_halfway(monkeypatch, OSError(28, "No space left on device"), "metrics.csv")
    with pytest.raises(OSError, match="No space left"):
        tracked.log_metrics({"loss": 0.4})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [header, *rows]


def test_metrics_file_continues_the_rows_of_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,9\n2,2\n3,")  # The file is damaged, and has rows after the checkpoint.
    MetricsFile(path, [{"step": 1, "loss": 1}]).log({"loss": 22}, 2)
    assert path.read_text().splitlines() == ["step,loss", "1,1", "2,22"]


@pytest.mark.slow
def test_lightning_loggers_receive_settings_and_metrics(run_tracked: Callable[..., Result], tmp_path: Path) -> None:
    given = CSVLogger(tmp_path / "given", flush_logs_every_n_steps=1)
    result = run_tracked(loggers=[given, lambda run: CSVLogger(run.folder, name=run.id)])
    for folder in (Path(given.log_dir), result.folder / result.folder.name / "version_0"):
        rows = read_csv(folder / "metrics.csv")
        assert [float(row["step"]) for row in rows if row["train/a/loss"]] == [1, 2, 3]
        (accuracy,) = (float(row["test/a/accuracy"]) for row in rows if row["test/a/accuracy"])
        assert accuracy == pytest.approx(result.metrics["test/a/accuracy"])
        assert "dim: 8" in (folder / "hparams.yaml").read_text()


@pytest.mark.slow
def test_logger_that_cannot_start_is_one_warning(run_tracked: Callable[..., Result]) -> None:
    with pytest.warns(UserWarning, match="int is not a Lightning logger") as warned:
        assert run_tracked(loggers=[lambda _: 3]).status == "finished"
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("track", "given", "several", "named"),
    [
        ("comet", [], False, "track=comet"),
        (None, [3], False, "int"),
        (None, [CSVLogger("never")], True, "CSVLogger"),
        ("trackio", [], False, r"unifier-torch\[trackers\]"),
    ],
)
def test_wrong_tracker_is_refused(
    track: str | None, given: list[Any], several: bool, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=named):
        check_trackers(track, given, several_runs=several)
