"""Every state of a run, with a function in place of the training that only leaves predictions and a checkpoint."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unifier import ClassificationHead, Experiment, TaggingHead, Task, Transformer
from unifier.data.source import Example, SplitName
from unifier.datasets import Digits
from unifier.folders import lock_folder
from unifier.training import artifacts, run_data
from unifier.training.callbacks import AtomicCheckpointIO
from unifier.training.fit import fit
from unifier.training.loggers import RunLoggers
from unifier.training.result import DivergedError, Interrupted, Result, RunFailed
from unifier.training.run_context import RunContext
from unifier.training.run_data import encode_tasks
from unifier_tokenizers import InputError, PatchTokenizer, Tokenizer, Units

pytestmark = pytest.mark.usefixtures("undrawn")

D = 8
Patch = pytest.MonkeyPatch


@dataclass
class FakeTrain:
    """A stand-in for `train_and_test`."""

    error: BaseException | None = None
    step: int = 1
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __call__(self, *given: Any, **_: Any) -> dict[str, float]:
        model, _, folder, _, batches, held_out, _, done = given
        self.calls.append({"splits": batches.splits, "done": done, "steps": model.planned_steps})
        checkpoint = {"state_dict": model.state_dict(), "global_step": self.step, "callbacks": {}}
        AtomicCheckpointIO().save_checkpoint(checkpoint, folder / "checkpoints" / "last.ckpt")
        if self.error is not None:
            raise self.error
        model.predictions = {
            name: {index: torch.eye(10)[3] for index in split.indices.tolist()}
            for name, split in held_out["test"].splits.items()
        }
        return {f"test/{name}/accuracy": 50.0 for name in model.tasks}


Run = Callable[..., Result]


@pytest.fixture
def run_fake(make_experiment: Any, tmp_path: Path) -> Run:
    """Return a function that fits an experiment on digits without training."""

    def run(train: FakeTrain | None = None, *, experiment: Any = None, settings: Any = None, **given: Any) -> Result:
        context = RunContext(tmp_path, "study", wandb="off", origin="study.py:digits")
        built = experiment or make_experiment(**(settings or {}))
        return fit(lambda: built, {"dim": D}, 0, context, train=train or FakeTrain(), **given)

    return run


def interrupted_folder(run_fake: Run, step: int = 1, **given: Any) -> Path:
    with pytest.raises(Interrupted) as stop:
        run_fake(FakeTrain(Interrupted(Path("gone")), step), **given)
    (note,) = stop.value.__notes__
    return Path(note)


def raise_type_error(*_: Any, **__: Any) -> None:
    raise TypeError("nothing to draw,\nnot in two lines")


def raise_interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


FILES = {
    "prediction_rows": "predictions.csv",
    "collect_samples": "samples.json",
    "confusion_counts": "confusions.json",
    "scores_by_length": "lengths.json",
    "probe": "attention.json",
    "write_report": "report.html",
}


@pytest.mark.slow
@pytest.mark.parametrize("part", FILES)
def test_failed_artifact_is_a_warning(part: str, run_fake: Run, monkeypatch: Patch, read_json: Any) -> None:
    monkeypatch.setattr(artifacts, part, raise_type_error)
    with pytest.warns(UserWarning, match=r"TypeError: nothing .* two lines\)$") as warned:
        result = run_fake()
    assert len([warning for warning in warned if str(result.folder) in str(warning.message)]) == 1
    assert (result.status, read_json(result.folder)["metrics"]) == ("finished", result.metrics)
    written = set(FILES.values()) - {"lengths.json"}  # Digits are not texts.
    assert {name for name in written if not (result.folder / name).exists()} == {FILES[part]} & written


@pytest.mark.slow
def test_result_is_written_after_trackers_close(run_fake: Run, monkeypatch: Patch, read_json: Any) -> None:
    closed: list[tuple[bool, bool]] = []

    def close(loggers: RunLoggers, *, failed: bool) -> None:
        closed.append((failed, (loggers.folder / "result.json").exists()))

    monkeypatch.setattr(RunLoggers, "close", close)
    assert read_json(run_fake().folder)["status"] == "finished"
    with pytest.raises(RunFailed) as failure:
        run_fake(FakeTrain(TypeError("broken")))
    result = read_json(failure.value.result.folder)
    assert (result["status"], result["error"]) == ("failed", "TypeError: broken")
    assert closed == [(False, False), (True, False)]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["artifacts", "tracker"])
def test_ctrl_c_after_the_test_keeps_the_scores(part: str, run_fake: Run, monkeypatch: Patch, read_json: Any) -> None:
    closed: list[bool] = []

    def close(_: RunLoggers, *, failed: bool) -> None:
        closed.append(failed)
        if not failed and part == "tracker":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunLoggers, "close", close)
        if part == "artifacts":
            patch.setattr(artifacts, "probe", raise_interrupt)
        with pytest.raises(Interrupted) as stopped:
            run_fake()
    folder = Path(str(stopped.value))
    assert closed[-1]
    first = read_json(folder)
    assert (first["status"], first["metrics"]) == ("interrupted", {"test/a/accuracy": 50.0})
    assert run_fake(resume=folder).status == "finished"
    (folder / "result.json").unlink()  # As after a kill.
    assert run_fake(resume=folder).metrics == first["metrics"]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
@pytest.mark.parametrize("error", [InputError("bad batch"), FULL, KeyboardInterrupt(), Interrupted(Path("run"))])
def test_error_of_the_user_is_raised_with_folder(error: BaseException, run_fake: Run, read_json: Any) -> None:
    with pytest.raises(type(error)) as raised:
        run_fake(FakeTrain(error))
    assert raised.value is error
    is_stopped = isinstance(error, (KeyboardInterrupt, Interrupted))
    assert read_json(Path(error.__notes__[-1]))["status"] == ("interrupted" if is_stopped else "failed")


@pytest.mark.slow
def test_full_disk_at_the_end_leaves_no_torn_file(
    run_fake: Run, monkeypatch: Patch, read_json: Any, fail_halfway: Callable[..., None]
) -> None:
    with monkeypatch.context() as patch:
        fail_halfway(patch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "npz", "result.json")
        with pytest.warns(UserWarning, match="No space left"), pytest.raises(OSError, match="No space left") as raised:
            run_fake()
    folder = Path(raised.value.__notes__[0])
    assert not [path for path in folder.iterdir() if path.suffix in (".npz", ".part")]
    assert run_fake(resume=folder).status == read_json(folder)["status"] == "finished"


@final
class Recordings:
    """Numbers of which one is not finite; targets are classes."""

    name = "recordings"

    def __init__(self, bad: float, split: SplitName = "train") -> None:
        self.bad, self.bad_split = bad, split

    def split(self, name: SplitName) -> list[Example]:
        examples = [Example(np.full((8, 8), k / 6, np.float32), str(k % 2)) for k in range(6)]
        if name == self.bad_split:
            examples[4].input[1, 2] = self.bad
        return examples


@final
class Rows(Tokenizer):
    """A tokenizer of rows of floats that it does not check."""

    def __init__(self) -> None:
        super().__init__(D)
        self.project = nn.Linear(8, D)

    def encode(self, raw: Any) -> Units:
        return Units(torch.as_tensor(raw), torch.arange(8)[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return self.project(values.mT).mT


@pytest.mark.parametrize(
    ("bad", "split", "refit"),
    [(np.nan, "train", False), (-np.inf, "train", False), (np.nan, "val", True), (0.5, "train", False)],
)
def test_divergence_names_an_example_not_finite(bad: float, split: Any, refit: bool, make_experiment: Any) -> None:
    task = Task(Recordings(bad, split), Rows(), ClassificationHead("01", D))
    experiment = make_experiment(task, refit=refit)
    error = DivergedError("train/a/loss is nan by step 3")
    message = str(run_data.explain_divergence(error, experiment, encode_tasks(experiment, {})))
    assert message.startswith("train/a/loss is nan by step 3")
    assert ("example 4" in message and '"a"' in message and split in message) == (bad != 0.5)
    assert ("learning_rate" in message) == (bad == 0.5)


@pytest.mark.slow
def test_divergence_is_the_error_of_the_result(run_fake: Run) -> None:
    with pytest.raises(RunFailed) as failure:
        run_fake(FakeTrain(DivergedError("train/a/loss is inf by step 3")))
    assert "learning_rate" in str(failure.value.__cause__)
    assert failure.value.result.error == f"diverged: {failure.value.__cause__}"


@pytest.mark.slow
def test_resume_continues_after_the_checkpoint(run_fake: Run) -> None:
    folder = interrupted_folder(run_fake, settings={"steps": 5})
    train = FakeTrain()
    assert run_fake(train, settings={"steps": 5}, resume=folder).folder == folder
    assert (train.calls[0]["done"], train.calls[0]["steps"]) == (1, 5)
    finished = run_fake()
    assert run_fake(train, resume=finished.folder).content() == finished.content()
    assert len(train.calls) == 1, "a finished run is not trained again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ffn_dim", "message"), [("other", 8, r'"digits".*"other"'), ("digits", 16, r"last\.ckpt")]
)
def test_resume_of_another_experiment_is_refused(
    name: str, ffn_dim: int, message: str, run_fake: Run, make_experiment: Any
) -> None:
    folder, same = interrupted_folder(run_fake), make_experiment()
    other = Experiment(Transformer(D, 1, 2, ffn_dim), same.tasks, same.training, name=name)
    with pytest.raises(InputError, match=message):
        run_fake(experiment=other, resume=folder)


@pytest.mark.slow
def test_resume_with_changed_data_is_refused(run_fake: Run, monkeypatch: Patch, make_task: Any) -> None:
    folder = interrupted_folder(run_fake)
    before = (folder / "settings.json").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(type(make_task().source), "sha256", "of others", raising=False)
        with pytest.raises(InputError, match=r"\(a\)"):
            run_fake(resume=folder)
    assert (folder / "settings.json").read_text() == before
    assert run_fake(resume=folder).status == "finished"


@pytest.mark.slow
def test_resume_beyond_the_budget_is_refused(run_fake: Run) -> None:
    folder = interrupted_folder(run_fake, step=7, settings={"steps": 8})
    with pytest.raises(InputError, match=r"step 7.* 4"):
        run_fake(resume=folder, settings={"steps": 4})


def test_resume_from_torn_checkpoint_builds_nothing(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_text("torn")

    def build() -> Experiment:
        raise AssertionError("built")

    with pytest.raises(InputError, match=r"last\.ckpt"):
        fit(build, {}, 0, RunContext(tmp_path, "study"), resume=tmp_path)


@pytest.mark.slow
def test_start_is_reported_with_the_folder(run_fake: Run, read_json: Any) -> None:
    started: list[Result] = []
    result = run_fake(on_start=started.append)
    assert (started[0].status, started[0].folder, started[0].metrics) == ("running", result.folder, {})
    assert result.threads == torch.get_num_threads()
    settings = read_json(result.folder, "settings.json")
    assert (settings["name"], settings["seed"], settings["settings"]) == ("digits", 0, {"dim": D})
    assert (settings["longest"], settings["read"]) == ({"a": 4}, {"a": result.data["a"]["sha256"]})


@pytest.mark.slow
def test_tasks_are_encoded_once_and_refit_adds_validation(run_fake: Run, monkeypatch: Patch) -> None:
    encoded, train = dict[str, Any](), FakeTrain()
    run_fake(train, encoded_tasks=encoded)
    assert list(encoded) == ["a"]
    monkeypatch.setattr(run_data, "prepare_task", raise_type_error)
    assert run_fake(train, encoded_tasks=encoded, settings={"refit": True}).status == "finished"
    assert [len(call["splits"]["a"]) for call in train.calls] == [60, 80]


def test_targets_that_cannot_be_scored_are_refused(make_experiment: Any, run_fake: Run, tmp_path: Path) -> None:
    def split(name: SplitName) -> list[Example]:
        """Return digits that are even or odd; the test split has one example."""
        digits = list(Digits(val=20, test=20).split(name))[: 1 if name == "test" else 20]
        return [Example(picture, ("odd" if int(label) % 2 else "even",)) for picture, label in digits]

    parity: Any = SimpleNamespace(name="parity", split=split)
    task = Task(parity, PatchTokenizer(D, channels=1), TaggingHead(("even", "odd"), D))
    with pytest.raises(InputError, match="parity, test"):
        run_fake(experiment=make_experiment(task))
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("origin", ["/a/study.py:one", ["/a/study.py:one", "/b/study.py:two"]])
def test_context_file_is_that_of_the_first_part(origin: str | list[str], tmp_path: Path) -> None:
    assert RunContext(tmp_path, "study", origin=origin).file == "/a/study.py"
    assert RunContext(tmp_path, "study").file == ""


@pytest.mark.slow
@pytest.mark.parametrize("full", ["settings.json", "result.json"])
def test_full_disk_leaves_no_folder_that_cannot_resume(
    full: str, run_fake: Run, tmp_path: Path, fail_halfway: Any, monkeypatch: Patch
) -> None:
    with monkeypatch.context() as patch:
        fail_halfway(patch, FULL, full)
        with pytest.raises(OSError, match="No space"):
            run_fake(FakeTrain(FULL))
    folders = list((tmp_path / "digits").iterdir())
    assert len(folders) == (full == "result.json")
    assert all(run_fake(resume=folder).status == "finished" for folder in folders)


@pytest.mark.slow
def test_run_is_locked_while_it_trains(run_fake: Run) -> None:
    folder = interrupted_folder(run_fake)
    with lock_folder(folder), pytest.raises(InputError, match="another process"):
        run_fake(resume=folder)

    def resume_again(result: Result) -> None:
        with pytest.raises(InputError, match="another process"):
            run_fake(resume=result.folder)

    assert run_fake(on_start=resume_again).status == run_fake(resume=folder, on_start=resume_again).status == "finished"


@pytest.mark.parametrize("wrong", [{"optimizer": lambda groups: None}, {"schedule": lambda step, steps: np.nan}])
def test_wrong_optimizer_or_schedule_leaves_no_folder(
    wrong: dict[str, Any], make_experiment: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        fit(lambda: make_experiment(**wrong), {}, 0, RunContext(tmp_path, "study", wandb="off"))
    assert not list(tmp_path.rglob("*.json"))
