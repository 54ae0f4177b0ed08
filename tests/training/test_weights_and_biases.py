"""What Weights & Biases is told of a run and of a comparison, read back from what it wrote down offline."""

import json
import time
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import wandb
from google.protobuf.message import DecodeError
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from unifier import Comparison, Experiment, Result, run
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training.loggers import RunLoggers, WandbMode, WeightsAndBiases, wandb_mode
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS = 3


def pictures(*, data: str = "embedded", dim: int = 8) -> Experiment:
    """A setting called as one of the things that a run says of itself."""
    source = Digits(val=800, test=900)
    task = Task(source, PatchTokenizer(dim, channels=1), ClassificationHead(source.labels, dim))
    training = Training(steps=STEPS, batch_tokens=256, num_validations=1)
    return Experiment(Transformer(dim, 1, 2, 8), {"digits": task}, training, name="pictures")


def alone(*, dim: int = 8) -> Comparison:
    return Comparison("alone", [pictures], settings={"dim": dim}, budget_unit="steps")


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    """No key, no mode, and nothing of whoever runs the tests."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def records(folder: Path) -> list[Record]:
    """What W&B wrote down of its only run, in a process of its own that may take a moment to end."""
    (path,) = folder.rglob("*.wandb")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            found = parse(path.read_bytes())
        except DecodeError:  # half of a record is on disk
            found = []
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.05)
    raise AssertionError("the run was never finished")


def parse(data: bytes) -> list[Record]:
    """LevelDB's log format, in blocks of 32 KiB, after a header of 7 bytes."""
    at, whole = 7, b""
    found: list[Record] = []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + 7 + length > len(data):  # still being written
            break
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a record's only part, or its last
            found.append(Record.FromString(whole))
            whole = b""
    return found


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], Result]:
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        (result,) = run(pictures, out=folder)
    return records(result.folder), result


def test_a_run_is_filed_under_its_study(tracked: tuple[list[Record], Result]) -> None:
    found, result = tracked
    (opened,) = (record.run for record in found if record.HasField("run"))
    assert opened.run_id == opened.display_name == result.folder.name
    assert opened.project == Path(__file__).stem  # the file that defines the experiment
    assert opened.run_group == "pictures"
    assert opened.job_type == "train"
    assert sorted(opened.tags) == ["classification", "image"]
    config = config_of(opened)
    assert {name: config[name] for name in ("data", "dim")} == {"data": "embedded", "dim": 8}
    assert config["seed"] == 0
    assert config["parameters"] == result.parameters
    assert config["datasets"] == result.data
    assert config["commit"] == result.commit
    assert len(config["datasets"]["digits"]["sha256"]) == 64


def config_of(opened: Any) -> dict[str, Any]:
    return {update.key: json.loads(update.value_json) for update in opened.config.update}


def history(found: list[Record]) -> list[dict[str, Any]]:
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.HasField("history")
    ]


def test_figures_arrive_with_the_budget_they_cost(tracked: tuple[list[Record], Result]) -> None:
    found, result = tracked
    rows = history(found)
    for name in ("train/digits/loss", "val/digits/accuracy", "test/digits/accuracy", "test/digits/macro_f1"):
        assert any(name in row for row in rows), name
    for row in rows:
        if any(name.startswith(("train/", "val/", "test/")) for name in row):
            assert {"budget/tokens", "budget/flops", "budget/seconds"} <= set(row)
    tokens = [row["budget/tokens"] for row in rows if "train/digits/loss" in row]
    assert tokens == sorted(set(tokens))
    assert tokens[-1] == result.budget["tokens"]
    (tested,) = (row for row in rows if "test/digits/accuracy" in row)
    assert tested["test/digits/accuracy"] == pytest.approx(result.metrics["test/digits/accuracy"])


def test_the_axis_is_what_the_trunk_has_read(tracked: tuple[list[Record], Result]) -> None:
    metrics = {
        record.metric.name or record.metric.glob_name: record.metric
        for record in tracked[0]
        if record.HasField("metric")
    }
    for name in ("train/*", "val/*", "test/*", "budget/flops"):
        assert metrics[name].step_metric == "budget/tokens"
    assert metrics["train/*"].summary.min
    assert metrics["val/*"].summary.max
    assert "budget/tokens" in metrics


def models(found: list[Record]) -> list[str]:
    """The files of the checkpoints' artifact."""
    kept = [record.artifact for record in found if record.HasField("artifact") and record.artifact.type == "model"]
    return sorted(entry.path for model in kept for entry in model.manifest.contents)


def test_samples_report_and_checkpoints_are_kept_and_the_run_is_finished(
    tracked: tuple[list[Record], Result],
) -> None:
    found, result = tracked
    rows = history(found)
    (table,) = (row for row in rows if any(name.startswith("samples/digits") for name in row))
    assert table["samples/digits/ncols"] == 4  # input, target, prediction, picture
    assert table["samples/digits/nrows"] == len(json.loads((result.folder / "samples.json").read_text())["digits"])
    for page in ("report", "curves-digits-tokens"):
        assert any(row.get(f"{page}/_type") == "html-file" for row in rows)
    assert any(row.get("numbers/curves-digits-tokens/nrows") == 1 for row in rows)  # one validation
    assert models(found) == ["best.ckpt", "last.ckpt"]
    (ended,) = (record.exit for record in found if record.HasField("exit"))
    assert ended.exit_code == 0


def test_a_comparison_is_a_group_with_an_evaluation_beside_its_runs(tmp_path: Path) -> None:
    (result,) = run(alone, out=tmp_path, track="offline")
    (opened,) = (record.run for record in records(result.folder) if record.HasField("run"))
    assert (opened.run_group, opened.job_type) == ("alone", "train")
    trial = json.loads((result.folder / "settings.json").read_text())["trial"]
    assert (trial["mode"], trial["trainable"], trial["budget_unit"], trial["sampling_temperature"]) == (
        "solo",
        "all",
        "steps",
        "inf",
    )
    assert config_of(opened)["trial"] == trial
    (folder,) = (tmp_path / "alone").iterdir()
    found = records(folder)
    (opened,) = (record.run for record in found if record.HasField("run"))
    assert (opened.run_group, opened.job_type, list(opened.tags)) == ("alone", "evaluate", ["comparison"])
    config = config_of(opened)
    assert (config["dim"], config["seeds"]) == (8, [0])
    assert config["trial"] == {
        name: trial[name] for name in ("budget_unit", "budget", "sampling_temperature", "loss_weighting")
    }
    ran = config["runs"][result.folder.name]
    assert ran == {"parameters": result.parameters, "datasets": result.data, "commit": result.commit}
    assert any(row.get("report/_type") == "html-file" for row in history(found))


def summary(found: list[Record]) -> dict[str, Any]:
    """What a run's summary holds in the end."""
    updates = [item for record in found if record.HasField("summary") for item in record.summary.update]
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in updates}


def test_of_validation_the_highest_is_kept_and_of_training_the_lowest(tmp_path: Path) -> None:
    tracker = opened(tmp_path, "offline")
    for accuracy, loss in ((0.1, 3.0), (0.3, 1.0), (0.2, 2.0)):
        tracker.log({"val/a/accuracy": accuracy, "train/a/loss": loss, "budget/tokens": 1}, 1)
    tracker.log_artifacts(tmp_path, {"val/a/accuracy": 0.25, "test/a/accuracy": 0.5})
    tracker.close(failed=False)
    found = summary(records(tmp_path))
    assert (found["val/a/accuracy"], found["train/a/loss"]) == ({"max": 0.3}, {"min": 1.0})
    assert found["test/a/accuracy"] == 0.5


def test_a_sweep_finds_the_last_validation_as_a_plain_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "thesweep")
    wandb.teardown()  # it reads the environment once
    tracker = opened(tmp_path, "offline")
    tracker.log({"val/score": 0.3, "budget/tokens": 1}, 1)
    tracker.log_artifacts(tmp_path, {"val/score": 0.25})
    tracker.close(failed=False)
    wandb.teardown()
    assert summary(records(tmp_path))["val/score"] == 0.25


def opened(folder: Path, mode: WandbMode) -> WeightsAndBiases:
    folder.mkdir(exist_ok=True)
    return WeightsAndBiases(folder, project="p", group="g", job_type="t", tags=[], config={}, mode=mode)


def test_the_checkpoint_of_a_run_that_was_stopped_is_kept_and_the_run_is_finished(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"weights")
    opened(tmp_path, "offline").close(failed=True)
    found = records(tmp_path)
    assert models(found) == ["last.ckpt"]
    assert [record.exit.exit_code for record in found if record.HasField("exit")] == [1]


def test_a_run_whose_checkpoint_cannot_be_kept_is_finished_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"weights")
    tracker = opened(tmp_path, "offline")
    monkeypatch.setattr(wandb, "Artifact", None)
    with pytest.raises(TypeError):
        tracker.close(failed=False)
    assert wandb.run is None, "or the next run would be taken for this one"


def test_a_figure_without_numbers_has_no_table(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "none.csv").write_text("step,loss\n")
    tracker = opened(tmp_path, "offline")
    tracker.log_artifacts(tmp_path, {"test/digits/accuracy": 0.5})
    tracker.close(failed=False)
    assert not any(name.startswith("numbers") for row in history(records(tmp_path)) for name in row)


def test_the_mode_is_what_was_said_else_wandb_s_own_else_what_a_key_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert wandb_mode(None) == "offline"
    assert wandb_mode("online") == "online"
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    assert wandb_mode(None) == "online"
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert wandb_mode(None) == "online"
    assert wandb_mode("offline") == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode(None) == "disabled"


def test_a_server_out_of_reach_is_waited_for_once_and_runs_are_kept_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    init, asked = wandb.init, list[Any]()
    monkeypatch.setattr(wandb, "init", lambda **given: (asked.append(given["mode"]), init(**given))[1])
    monkeypatch.setattr(WeightsAndBiases, "unreachable", False)
    monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")

    def tracked_in(folder: Path) -> list[Record]:
        tracking = RunLoggers(folder, dict)
        tracking.add(partial(opened, folder, mode="online"))
        tracking.close(failed=False)
        return records(folder / "wandb" / "latest-run")

    with socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.warns(UserWarning, match=r"cannot be reached \(.*\): this run and those after it are kept offline"):
            assert tracked_in(tmp_path / "first")
        assert tracked_in(tmp_path / "second"), "without a warning, which were an error"
    assert asked == ["online", "offline", "offline"]


def test_wandb_mode_is_honored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (result,) = run(pictures, out=tmp_path)
    assert result.status == "finished"
    assert not list(tmp_path.rglob("*.wandb"))
