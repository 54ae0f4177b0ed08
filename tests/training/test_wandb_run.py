"""W&B's offline files contain a run's metrics, data, model, source, media and messages."""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import pytest
import soundfile
import wandb
from PIL import Image
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from unifier import Comparison, Experiment, Result, Training, Transformer, run
from unifier.files import write_json
from unifier.training import wandb_run
from unifier.training.fit import fit
from unifier.training.loggers import RunLoggers, TrackedRun
from unifier.training.result import RunFailed
from unifier.training.run_context import RunContext
from unifier.training.wandb_run import WeightsAndBiases

pytestmark = pytest.mark.usefixtures("undrawn")

D, VARIABLES = 8, ("PROJECT", "RUN_GROUP", "NAME", "TAGS", "MODE", "API_KEY", "BASE_URL")


@pytest.fixture(autouse=True)
def _no_wandb_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    for name in VARIABLES:
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
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
def test_wandb_run_has_config_metrics_and_files(run_tracked: Callable[..., Result]) -> None:
    result = run_tracked(f"{__file__}:digits", wandb="offline")
    records = read_records(result.folder)
    record, config = run_record(records)
    assert (record.run_id, record.display_name) == (result.folder.name, "digits, seed 0")
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


def check_lineage(records: list[Record], result: Result) -> None:
    """Check that the run uses its data, and that its model and its source consist of the files in the run's folder."""
    (data,), (model,), (code,) = (artifacts(records, kind) for kind in ("dataset", "model", "code"))
    assert [entry.path for entry in code.manifest.contents] == ["experiment.py"]
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
    pictures = [entry for artifact in tables for entry in artifact.manifest.contents if entry.path.endswith(".png")]
    assert len(pictures) == len(json.loads((moved / "samples.json").read_text())["a"])
    for entry in (entry for artifact in (model, code, *tables) for entry in artifact.manifest.contents):
        assert not Path(entry.local_path).is_absolute(), "the folder may move"
        assert hashlib.md5((moved / entry.local_path).read_bytes()).digest() == base64.b64decode(entry.digest)
    assert tables


def picture_and_sound() -> dict[str, str]:
    picture, sound = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(picture, "PNG")
    soundfile.write(sound, np.array([0.0, 0.5]), 8000, format="FLAC")
    urls = {"image": ("image/png", picture), "audio": ("audio/flac", sound)}
    return {
        name: f"data:{kind};base64,{base64.b64encode(file.getvalue()).decode()}" for name, (kind, file) in urls.items()
    }


@pytest.mark.slow
def test_wandb_table_contains_pictures_and_sounds(tmp_path: Path) -> None:
    write_json(tmp_path / "samples.json", {"a": [{"input": "<b>", **picture_and_sound()}]})
    tracker = open_wandb(tmp_path)
    tracker.log_artifacts(tmp_path, {})
    tracker.close(failed=False)
    (table,) = artifacts(read_records(tmp_path), "run_table")
    paths = {Path(entry.path).suffix: tmp_path / entry.local_path for entry in table.manifest.contents}
    (row,) = json.loads(paths[".json"].read_text())["data"]
    assert [row[0], row[1]["_type"], row[2]["_type"]] == ["<b>", "image-file", "audio-file"]
    with Image.open(paths[".png"]) as picture:
        assert picture.size == (3, 2)
    assert soundfile.read(paths[".wav"])[1] == 8000


@pytest.mark.slow
@pytest.mark.parametrize(("trial", "name"), [(False, "mine"), (True, "mine: digits, seed 0")])
def test_wandb_variables_replace_names(trial: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"PROJECT": "x", "RUN_GROUP": "y", "NAME": "mine", "TAGS": "a, b"}.items():
        monkeypatch.setenv(f"WANDB_{variable}", value)
    open_wandb(tmp_path, name="digits, seed 0", tags=["image"], in_comparison=trial).close(failed=False)
    record, _ = run_record(read_records(tmp_path))
    assert (record.project, record.run_group, record.display_name) == ("x", "y", name)
    assert sorted(record.tags) == ["a", "b", "image"]


@pytest.mark.slow
def test_diverged_run_sends_one_alert(make_experiment: Any, tmp_path: Path) -> None:
    context = RunContext(tmp_path, "study", wandb="offline")
    with pytest.raises(RunFailed) as failed:
        fit(lambda: make_experiment(steps=3, learning_rate=1e30, grad_clip=1e30), {}, 0, context)
    records = read_records(failed.value.result.folder)
    (alert,) = (record.alert for record in records if record.HasField("alert"))
    assert (alert.title, alert.level) == ("digits, seed 0: diverged", "ERROR")
    assert "learning_rate" in alert.text
    assert exit_codes(records) == [1]


@pytest.mark.slow
def test_comparison_logs_its_conclusions_and_its_end(make_task: Any, tmp_path: Path) -> None:
    def build(name: str, dim: int) -> Experiment:
        training = Training(steps=3, batch_tokens=128, num_validations=1, num_workers=0)
        return Experiment(Transformer(dim, 1, 2, 8), {name: make_task()}, training)

    def first(*, dim: int = D) -> Experiment:
        return build("first", dim)

    def second(*, dim: int = D) -> Experiment:
        return build("second", dim)

    def shared() -> Comparison:
        return Comparison("shared", [first, second], seeds=(0, 1), modes=("solo", "joint"), budget_unit="steps")

    runs = run(shared, out=tmp_path, track="offline")
    assert len(runs) == 6
    folder = runs[0].folder.parents[1]
    wandb.teardown()
    for result in runs:
        record, _ = run_record(parse_records(next((result.folder / "wandb").rglob("*.wandb")).read_bytes()))
        condition = "joint" if len(result.tasks) > 1 else "solo"
        assert (record.display_name, record.run_group) == (
            f"{result.name} ({condition}), seed {result.seed}",
            folder.name,
        )
    records = parse_records(next((folder / "wandb").rglob("*.wandb")).read_bytes())
    record, config = run_record(records)
    assert (record.run_group, record.job_type, list(record.tags)) == (folder.name, "evaluate", ["comparison"])
    assert (config["seeds"], config["trial"]["budget_unit"]) == ([0, 1], "steps")
    assert config["runs"][runs[0].folder.name]["parameters"] == runs[0].parameters
    logged = {name: value for row in history(records) for name, value in row.items()}
    assert logged["report/_type"] == "html-file"
    scores = {(result.name, result.seed): result.metrics for result in runs}
    gains = [
        scores["joint", seed]["test/first/accuracy"] - scores["first", seed]["test/first/accuracy"] for seed in (0, 1)
    ]
    assert logged["gain/first/joint over solo"] == pytest.approx(sum(gains) / 2)
    assert summary(records)["score/second/solo"] == logged["score/second/solo"]
    (alert,) = (record.alert for record in records if record.HasField("alert"))
    assert (alert.title, alert.text, alert.level) == ("shared: finished", "runs: 6 finished", "INFO")
    assert [entry.path for code in artifacts(records, "code") for entry in code.manifest.contents] == ["experiment.py"]


def open_wandb(folder: Path, mode: wandb_run.WandbMode = "offline", **given: Any) -> WeightsAndBiases:
    folder.mkdir(exist_ok=True)
    names: dict[str, Any] = {"id": folder.name, "name": "n", "project": "p", "group": "g", "job_type": "t"}
    return WeightsAndBiases(TrackedRun(folder=folder, **{**names, **given}), mode)


@pytest.mark.slow
def test_wandb_accepts_long_and_odd_names(tmp_path: Path) -> None:
    """Track runs whose class, file, folder and task have names beyond W&B's limits, and compare the stored run."""
    folder, task = tmp_path / f"a#{'f' * 200}:", f"{'t' * 200}\udcff\n"
    folder.mkdir()
    data = {"a": {"name": f"d#{'d' * 200}", "sha256": "0"}}
    write_json(folder / "samples.json", {task: [{"input": "a"}]})
    tags = ["A" * 75 + "1", "A" * 75 + "2", "short"]
    tracker = open_wandb(folder, project=f"p#{'p' * 200}", name="n" * 200, group="g" * 200, tags=tags, data=data)
    tracker.log({f"train/{task}/loss": 1.0, "budget/tokens": 1}, 1)
    tracker.log_artifacts(folder, {})
    tracker.close(failed=False)
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
        "import os, signal, sys\nfrom unifier.folders import own_temporary_folder\n"
        "with own_temporary_folder(sys.argv[2]):\n    import wandb\n"
        "from wandb.sdk.data_types._private import MEDIA_TMP\nprint(MEDIA_TMP.name)\nsys.stdout.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL if sys.argv[1] == 'kill' else 0)"
    )

    def start(end: str) -> list[Path]:
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        command = [sys.executable, "-c", script, end, wandb_run.TEMPORARY_PREFIX]
        used = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert tmp_path in Path(used.stdout.strip()).parents, used.stderr
        return list(tmp_path.iterdir())

    (tmp_path / "unifier-wandb-other-user").mkdir()
    (left,) = (path for path in start("kill") if path.name != "unifier-wandb-other-user")
    assert list(left.iterdir()), "W&B's folders are in the folder"
    assert [path.name for path in start("finish")] == ["unifier-wandb-other-user"]


def test_wandb_mode_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mode = wandb_run.wandb_mode
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
