"""MLflow and Trackio receive a run, and continue the run when it is resumed."""

from pathlib import Path
from typing import Any

import pytest

from unifier.training.loggers import RunLogger, TrackedRun
from unifier.training.mlflow_run import MLflow
from unifier.training.trackio_run import Trackio

pytestmark = pytest.mark.extras


def track(tracker: type[MLflow] | type[Trackio], folder: Path, steps: range, **config: Any) -> RunLogger:
    """Log a part of a run: its first part, or its resumed part."""
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "experiment.py").write_text("pass")
    names: dict[str, Any] = {
        "id": "id1",
        "name": "digits, seed 0",
        "project": "study",
        "group": "g",
        "job_type": "train",
    }
    opened = tracker(TrackedRun(folder=folder, config=config, sources=["experiment.py"], **names))
    for step in steps:
        opened.log({"train/a/loss": float(step)}, step)
    return opened


def test_mlflow_continues_the_run_of_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ALLOW_FILE_STORE": "true",
        "DISABLE_TELEMETRY": "true",
        "TRACKING_URI": f"file:{tmp_path}/m",
    }.items():
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    import mlflow

    client = mlflow.MlflowClient()
    for steps, failed, status in ((range(1, 3), True, "FAILED"), (range(3, 5), False, "FINISHED")):
        tracker = track(MLflow, tmp_path / "run", steps, dim=8, machine=f"host {status}")
        tracker.log_artifacts(tmp_path / "run", {})
        tracker.close(failed=failed)
        (study,) = client.search_experiments(filter_string="name = 'study'")
        (run,) = client.search_runs([study.experiment_id])
        assert (run.info.run_name, run.info.status, run.data.params["dim"]) == ("digits, seed 0", status, "8")
    losses = client.get_metric_history(run.info.run_id, "train/a/loss")
    assert [(point.step, point.value) for point in losses] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"experiment.py", "model"}


def test_trackio_continues_the_run_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # Trackio reads the variable when it is imported.
    from trackio import context_vars
    from trackio.sqlite_storage import SQLiteStorage

    for steps in (range(1, 3), range(3, 5)):
        tracker = track(Trackio, tmp_path / "run", steps, dim=8)
        tracker.alert("digits: failed", "why", failed=True)
        tracker.close(failed=False)
    (name,) = SQLiteStorage.get_runs("study")
    rows = SQLiteStorage.get_logs("study", name)
    assert name == "digits, seed 0 (id1)"
    assert [(row["step"], row["train/a/loss"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert capsys.readouterr().out == ""
    assert (tmp_path / "trackio").is_dir()
    assert context_vars.current_run.get() is None, "Trackio would print to standard output at exit"
