"""Metrics reach metrics.csv, TensorBoard and W&B; a tracker that fails stops no training."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, final

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from unifier import Result
from unifier.files import printable, write_json
from unifier.training import fit as fit_module
from unifier.training import loggers
from unifier.training.fit import RunContext, fit
from unifier.training.loggers import MetricsFile, RunLoggers, TensorBoard, WeightsAndBiases
from unifier.trials.runner import log_comparison

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS, D = 3, 8
COST = {"steps": 1, "tokens": 2, "flops": 3, "seconds": 4.0}


@pytest.fixture
def run(make_experiment: Any, tmp_path: Path) -> Callable[..., Result]:
    """Return a function that trains on digits with the given trackers."""

    def train(**context: Any) -> Result:
        settings = {"data": "embedded", "dim": D}
        context = {"wandb": "off", **context}
        return fit(lambda: make_experiment(steps=STEPS), settings, 0, RunContext(tmp_path, "study", **context))

    return train


def read_scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # Dependencies of tensorboard warn.
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder))
        events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.mark.slow
def test_tensorboard_receives_metrics_on_request(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run(tensorboard=True)
    assert [step for step, _ in read_scalars(result.folder, "train/a/loss")] == list(range(1, STEPS + 1))
    ((_, accuracy),) = read_scalars(result.folder, "test/a/accuracy")
    assert accuracy == pytest.approx(result.metrics["test/a/accuracy"])
    assert not list(tmp_path.rglob("*.wandb"))


def test_tensorboard_shows_resumed_steps_once(tmp_path: Path) -> None:
    for done, steps in ((None, range(1, 5)), (2, range(3, 6))):
        logger = TensorBoard(tmp_path, done)
        for step in steps:
            logger.log({"loss": float(step)}, step)
        logger.close(failed=False)
    assert [step for step, _ in read_scalars(tmp_path, "loss")] == [1, 2, 3, 4, 5]


@final
class Broken:
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
def test_broken_tracker_is_left_out(at: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    trackers: list[Broken] = []

    def create(*_: Any, **__: Any) -> Broken:
        trackers.append(Broken(at))
        return trackers[-1]

    monkeypatch.setattr(fit_module, "WeightsAndBiases", create)
    with pytest.warns(UserWarning, match=f"no tracker at {at}") as warned:
        result = run(wandb="offline")
    assert len([warning for warning in warned if "no tracker" in str(warning.message)]) == 1
    assert result.status == "finished"
    assert (result.folder / "metrics.csv").exists()
    if at == "log":
        assert trackers[0].calls == ["open", "log", "close"], "an open tracker would receive the next run"


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


@pytest.fixture(autouse=True)
def _no_wandb_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def read_records(folder: Path) -> list[Record]:
    """Read the only W&B run in a folder, after W&B's process has ended and written the run completely."""
    wandb.teardown()
    (path,) = folder.rglob("*.wandb")
    return parse_records(path.read_bytes())


def parse_records(data: bytes) -> list[Record]:
    """Parse LevelDB's log format: blocks of 32 KiB, after a header of 7 bytes."""
    offset, content = 7, b""
    records: list[Record] = []
    while offset + 7 <= len(data):
        if (left := 32768 - offset % 32768) < 7:
            offset += left
            continue
        length, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        if offset + 7 + length > len(data):
            break
        content += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # The only part of a record, or its last part.
            records.append(Record.FromString(content))
            content = b""
    return records


def run_record(records: list[Record]) -> tuple[Any, dict[str, Any]]:
    """Return the record of the run, and its configuration."""
    (record,) = (record.run for record in records if record.HasField("run"))
    return record, values_of(record.config.update)


def values_of(items: Iterable[Any]) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def exit_codes(records: list[Record]) -> list[int]:
    return [record.exit.exit_code for record in records if record.HasField("exit")]


def history(records: list[Record]) -> list[dict[str, Any]]:
    return [values_of(record.history.item) for record in records if record.HasField("history")]


def summary(records: list[Record]) -> dict[str, Any]:
    return values_of(item for record in records if record.HasField("summary") for item in record.summary.update)


def artifacts(records: list[Record], kind: str) -> list[Any]:
    return [record.artifact for record in records if record.HasField("artifact") and record.artifact.type == kind]


@pytest.mark.slow
def test_wandb_run_has_config_metrics_and_files(run: Callable[..., Result]) -> None:
    result = run(wandb="offline")
    records = read_records(result.folder)
    record, config = run_record(records)
    assert record.run_id == record.display_name == result.folder.name
    assert (record.project, record.run_group, record.job_type) == ("study", "digits", "train")
    assert sorted(record.tags) == ["classification", "image"]
    facts = {"parameters": result.parameters, "datasets": result.data, "commit": result.commit}
    for name, value in {"data": "embedded", "dim": D, "seed": 0, **facts}.items():
        assert config[name] == value
    rows = history(records)
    for row in rows:
        if any(name.startswith(("train/", "val/", "test/")) for name in row):
            assert {"budget/tokens", "budget/flops", "budget/seconds"} <= set(row)
    tokens = [row["budget/tokens"] for row in rows if "train/a/loss" in row]
    assert tokens == sorted(set(tokens))
    assert tokens[-1] == result.budget["tokens"]
    (tested,) = (row for row in rows if "test/a/accuracy" in row)
    assert tested["test/a/accuracy"] == pytest.approx(result.metrics["test/a/accuracy"])
    metrics = [record.metric for record in records if record.HasField("metric")]
    axis_of = {metric.name or metric.glob_name: metric.step_metric for metric in metrics}
    axes = {axis_of[name] for name in ("train/*", "val/*", "test/*", "budget/flops")}
    assert axes == {"budget/tokens"}
    (table,) = (row for row in rows if any(name.startswith("samples/a") for name in row))
    samples = json.loads((result.folder / "samples.json").read_text())["a"]
    assert (table["samples/a/ncols"], table["samples/a/nrows"]) == (4, len(samples))
    for page in ("report", "curves-a-tokens"):
        assert any(row.get(f"{page}/_type") == "html-file" for row in rows)
    assert any(row.get("numbers/curves-a-tokens/nrows") == 1 for row in rows), "there is one validation"
    check_lineage(records, result)
    assert exit_codes(records) == [0]


@pytest.mark.slow
def check_lineage(records: list[Record], result: Result) -> None:
    """Check that the run uses its data, and that its model consists of the files in the model's folder."""
    (data,), (model,) = artifacts(records, "dataset"), artifacts(records, "model")
    facts = result.data["a"]
    assert (data.name, data.use_after_commit, data.manifest.contents[0].ref) == (
        "data-digits",
        True,
        f"sha256:{facts['sha256']}",
    )
    assert json.loads(data.metadata)["train"] == facts["train"]
    assert (model.name, set(model.aliases)) == (f"model-{result.folder.name}", {"best", "latest"})
    assert json.loads(model.metadata)["test/a/accuracy"] == result.metrics["test/a/accuracy"]
    paths = {entry.path: result.folder / entry.local_path for entry in model.manifest.contents}
    assert paths == {path.name: path for path in (result.folder / "model").iterdir()}
    tables = artifacts(records, "run_table")
    moved = result.folder.rename(result.folder.with_name("moved"))
    for entry in (entry for artifact in (model, *tables) for entry in artifact.manifest.contents):
        assert not Path(entry.local_path).is_absolute(), "the folder may move"
        assert hashlib.md5((moved / entry.local_path).read_bytes()).digest() == base64.b64decode(entry.digest)
    assert tables


@pytest.mark.slow
def test_wandb_comparison_is_an_evaluation(tmp_path: Path) -> None:
    terms: dict[str, Any] = {
        "budget_unit": "steps",
        "budget": 2,
        "sampling_temperature": "inf",
        "loss_weighting": "fixed",
    }
    terms |= {"start_tokenizers": True, "count_pretraining": True}
    facts = {"parameters": {"total": 7}, "data": {}, "commit": "abc"}
    rows = [{"folder": "trials/first", "result": facts}]
    folder = tmp_path / "20260101-000000-abcd"
    folder.mkdir()
    (folder / "report.html").write_text("<p>an answer</p>")
    content = {"settings": {"dim": D}, "seeds": [0], "rows": rows, **terms}
    log_comparison(folder, content, RunContext(tmp_path, "study", wandb="offline"))
    records = read_records(folder)
    record, config = run_record(records)
    assert (record.run_group, record.job_type, list(record.tags)) == (folder.name, "evaluate", ["comparison"])
    assert (config["dim"], config["seeds"], config["trial"]) == (D, [0], terms)
    assert config["runs"] == {"first": {"parameters": {"total": 7}, "datasets": {}, "commit": "abc"}}
    assert any(row.get("report/_type") == "html-file" for row in history(records))


def open_wandb(folder: Path, mode: loggers.WandbMode = "offline", **given: Any) -> WeightsAndBiases:
    folder.mkdir(exist_ok=True)
    return WeightsAndBiases(folder, project="p", group="g", job_type="t", tags=[], config={}, mode=mode, **given)


@pytest.mark.slow
def test_wandb_and_tensorboard_accept_long_and_odd_names(tmp_path: Path) -> None:
    """Track runs whose class, file, folder and task have names beyond W&B's limits, and compare the stored run."""
    folder, task = tmp_path / f"a#{'f' * 200}:", f"{'t' * 200}\udcff\n"
    folder.mkdir()
    data = {"a": {"name": f"d#{'d' * 200}", "sha256": "0"}}
    write_json(folder / "samples.json", {task: [{"input": "a"}]})
    tags = ["A" * 75 + "1", "A" * 75 + "2", "short"]
    tracker = WeightsAndBiases(
        folder, project=f"p#{'p' * 200}", group="g" * 200, job_type="t", tags=tags, config={}, mode="offline", data=data
    )
    board = TensorBoard(folder)
    for logger in (tracker, board):
        logger.log({f"train/{task}/loss": 1.0, "budget/tokens": 1}, 1)
        logger.log_artifacts(folder, {})
        logger.close(failed=False)
    records = read_records(folder)
    record, _ = run_record(records)
    assert len(set(record.tags)) == 3
    assert "short" in record.tags
    assert max(map(len, record.tags)) <= 64
    assert max(map(len, (record.project, record.run_group, record.run_id, record.display_name))) <= 128
    assert not set(record.project + record.run_id) & set("#:")
    assert any(value == 1.0 for row in history(records) for value in row.values())
    assert any(name.startswith("samples/t") for row in history(records) for name in row)
    (artifact,) = artifacts(records, "dataset")
    assert len(artifact.name) <= 128
    assert read_scalars(folder, f"train/{printable(task)}/loss") == [(1, 1.0)]


@pytest.mark.slow
def test_wandb_summary_is_best_validation(tmp_path: Path) -> None:
    tracker = open_wandb(tmp_path, data={"a": {"name": "a", "sha256": "0" * 64, "lower_is_better": ["nats"]}})
    for accuracy, loss in ((0.1, 3.0), (0.3, 1.0), (0.2, 2.0)):
        metrics = {"val/a/accuracy": accuracy, "val/a/nats": loss, "train/a/loss": loss, "budget/tokens": 1}
        tracker.log(metrics, 1)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "none.csv").write_text("step,loss\n")
    tracker.log_artifacts(tmp_path, {"val/a/accuracy": 0.25, "test/a/accuracy": 0.5})
    tracker.close(failed=False)
    records = read_records(tmp_path)
    values = summary(records)
    assert (values["val/a/accuracy"], values["train/a/loss"]) == ({"max": 0.3}, {"min": 1.0})
    assert values["val/a/nats"] == {"min": 1.0}
    assert values["test/a/accuracy"] == 0.5
    assert not any(name.startswith("numbers") for row in history(records) for name in row), "the CSV has no rows"


@pytest.mark.slow
def test_wandb_sweep_reads_last_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "thesweep")
    wandb.teardown()  # W&B reads the environment once.
    tracker = open_wandb(tmp_path)
    tracker.log({"val/score": 0.3, "budget/tokens": 1}, 1)
    tracker.log_artifacts(tmp_path, {"val/score": 0.25})
    tracker.close(failed=False)
    wandb.teardown()
    assert summary(read_records(tmp_path))["val/score"] == 0.25


@pytest.mark.slow
def test_wandb_names_a_stopped_run(tmp_path: Path) -> None:
    open_wandb(tmp_path).close(failed=True)
    records = read_records(tmp_path)
    assert exit_codes(records) == [1]
    assert not artifacts(records, "model")


@pytest.mark.slow
def test_wandb_run_whose_data_cannot_be_logged_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "Artifact", None)
    with pytest.raises(TypeError):
        open_wandb(tmp_path, data={"a": {"name": "digits", "sha256": "0"}})
    assert wandb.run is None, "an open run would receive the next run's metrics"


@pytest.mark.slow
def test_temporary_folders_of_a_killed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom unifier.training.loggers import own_temporary_folder\n"
        "with own_temporary_folder():\n    import wandb\n"
        "from wandb.sdk.data_types._private import MEDIA_TMP\nprint(MEDIA_TMP.name)\nsys.stdout.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL if sys.argv[1] == 'kill' else 0)"
    )

    def start(end: str) -> list[Path]:
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        command = [sys.executable, "-c", script, end]
        used = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert tmp_path in Path(used.stdout.strip()).parents, used.stderr
        return list(tmp_path.iterdir())

    (tmp_path / "unifier-wandb-other-user").mkdir()
    (left,) = (path for path in start("kill") if path.name != "unifier-wandb-other-user")
    assert list(left.iterdir()), "W&B's folders are in the folder"
    assert [path.name for path in start("finish")] == ["unifier-wandb-other-user"]


def test_wandb_mode_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mode = loggers.wandb_mode
    assert (mode(None), mode("online")) == ("offline", "online")
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    assert mode(None) == "online"
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert (mode(None), mode("offline")) == ("online", "offline")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert mode(None) == "disabled"


@pytest.mark.slow
def test_unreachable_server_is_tried_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    init, attempts = wandb.init, list[Any]()
    monkeypatch.setattr(wandb, "init", lambda **given: (attempts.append(given["mode"]), init(**given))[1])
    monkeypatch.setattr(WeightsAndBiases, "unreachable", False)
    monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")

    def track(folder: Path) -> list[Record]:
        tracked = RunLoggers(folder, dict)
        tracked.add(partial(open_wandb, folder, mode="online"))
        tracked.close(failed=False)
        return read_records(folder / "wandb" / "latest-run")

    with socket() as server:
        server.bind(("127.0.0.1", 0))  # The socket does not listen.
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.warns(UserWarning, match="cannot be reached"):
            assert track(tmp_path / "first")
        assert track(tmp_path / "second"), "a second warning would be an error"
    assert attempts == ["online", "offline", "offline"]
