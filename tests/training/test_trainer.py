"""Real training of small models: budgets, stopping and resuming, and the weights that are kept."""

import logging
import math
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from unifier import ClassificationHead, Experiment, Task, Training
from unifier.training.fit import fit
from unifier.training.lightning_module import UnifierModule
from unifier.training.result import Interrupted, Result, RunFailed
from unifier.training.run_context import RunContext
from unifier.training.trainer import validation_interval
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS = 12
"""Steps of the interrupted runs: three validations, each of `EVAL_BATCHES` batches, as the test has."""
EVAL_BATCHES = 4

Fit = Callable[..., Result]
Patch = pytest.MonkeyPatch


@pytest.fixture
def run(make_experiment: Any, make_task: Any, tmp_path: Path) -> Fit:
    """Return a function that trains an experiment with the given training settings."""

    def train(*tasks: Task, source: Any = None, resume: Path | None = None, wrap: Any = None, **given: Any) -> Result:
        def build() -> Experiment:
            experiment = make_experiment(*(tasks or (make_task(source),)), **given)
            return wrap(experiment) if wrap else experiment

        return fit(build, {}, 0, RunContext(tmp_path, "study", wandb="off"), resume=resume)

    return train


class Presser:
    """Signals that arrive during chosen forward passes of the trunk, counted over training, validation and test."""

    def __init__(self, number: signal.Signals = signal.SIGINT) -> None:
        self.number = number
        self.passes: Iterator[int] = count(1)
        self.read = 0
        self.at: int | None = None

    def __call__(self, experiment: Experiment) -> Experiment:
        self.passes = count(1)
        experiment.trunk.register_forward_hook(self.press)
        return experiment

    def press(self, trunk: nn.Module, tokens: Any, output: Any) -> None:
        if len(tokens[0].mask) > 1:  # FLOPs are counted on single examples.
            self.read = next(self.passes)
            if self.read == self.at:
                os.kill(os.getpid(), self.number)


@pytest.fixture
def interruptible(run: Fit, make_task: Any) -> Fit:
    """Return a function that trains with dropout, and with a signal at a chosen forward pass."""
    source = type(make_task().source)(train=200, held_out=240)

    def train(presser: Presser, at: int | None = None, resume: Path | None = None, **training: Any) -> Result:
        presser.at = at
        settings = {"steps": STEPS, "batch_tokens": 64, "num_validations": 3, "dropout": 0.2, **training}
        return run(source=source, resume=resume, wrap=presser, **settings)

    return train


FITTING = {1: "start", 3: "training", 4: "validation due", 6: "after a validation"}
PHASES = FITTING | {23: "last validation", 26: "best weights", 30: "test"}


def read_weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]


def assert_same_run(result: Result, whole: Result, read_metrics: Any) -> None:
    """Assert that a resumed run has the scores, costs, weights and metrics of a run that was never stopped."""
    assert result.status == "finished"
    assert result.metrics == whole.metrics
    for unit in ("steps", "examples", "tokens", "flops"):
        assert result.budget[unit] == whole.budget[unit]
    for name in ("best", "last"):
        first, second = (read_weights(each.folder, name) for each in (whole, result))
        assert all(torch.equal(first[part], second[part]) for part in first)
    assert read_metrics(result.folder) == read_metrics(whole.folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupted_run_resumes_bit_for_bit(number: signal.Signals, interruptible: Fit, read_metrics: Any) -> None:
    presser = Presser(number)
    whole = interruptible(presser)
    for at, phase in PHASES.items():
        before = signal.getsignal(number)
        with pytest.raises(Interrupted) as stop:
            interruptible(presser, at)
        assert signal.getsignal(number) is before, phase
        assert presser.read <= at + EVAL_BATCHES, f"{phase}: only the step and a validation that is due are completed"
        folder = Path(str(stop.value))
        (folder / "metrics.csv").write_text("damaged")  # The rows so far are in the checkpoint.
        assert_same_run(interruptible(presser, resume=folder), whole, read_metrics)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [["last"], ["best", "last"]])
def test_run_killed_at_its_first_checkpoint_resumes_alike(
    lost: list[str], interruptible: Fit, read_metrics: Any
) -> None:
    presser = Presser()
    whole = interruptible(presser)
    with pytest.raises(Interrupted) as stop:
        interruptible(presser, 11)
    folder = Path(str(stop.value))
    for name in lost:
        (folder / "checkpoints" / f"{name}.ckpt").unlink()
    assert_same_run(interruptible(presser, resume=folder), whole, read_metrics)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"average_last": 2}, {"grad_accumulation": 2, "ema_decay": 0.9}, {"refit": True}, {"patience": 1}],
    ids=["average_last", "grad_accumulation", "refit", "patience"],
)
def test_interrupted_run_with_state_resumes_alike(
    settings: dict[str, Any], interruptible: Fit, read_metrics: Any, monkeypatch: Patch
) -> None:
    if "patience" in settings:
        settings = settings | {"num_validations": 12}
        monkeypatch.setattr(ClassificationHead, "metrics", lambda *_: {"accuracy": 50.0})
    presser = Presser()
    whole = interruptible(presser, **settings)
    assert whole.budget["steps"] == (2 if "patience" in settings else STEPS)
    for at in (3,) if "patience" in settings else (5, 13):
        with pytest.raises(Interrupted) as stop:
            interruptible(presser, at, **settings)
        assert_same_run(interruptible(presser, resume=Path(str(stop.value)), **settings), whole, read_metrics)


def falling_scores(monkeypatch: Patch, *scores: float, stop: int | None = None) -> None:
    """Make each scoring worse than the one before, or take the given scores; Ctrl-C replaces number `stop`."""
    numbers, values = count(), iter(scores)

    def metrics(*_: Any) -> dict[str, float]:
        if (number := next(numbers)) == stop:
            raise Interrupted(Path("here"))
        return {"accuracy": next(values) if scores else 90.0 - number, "macro_f1": 50.0}

    monkeypatch.setattr(ClassificationHead, "metrics", metrics)


@pytest.mark.slow
@pytest.mark.parametrize(("validations", "first"), [(8, 1), (4, 2), (3, 3), (1, 7)])
def test_best_and_last_weights_are_kept(
    validations: int, first: int, run: Fit, checkpoint_steps: Any, monkeypatch: Patch
) -> None:
    falling_scores(monkeypatch)
    result = run(steps=7, num_validations=validations)
    assert checkpoint_steps(result.folder) == [first, 7]
    assert result.metrics["test/a/accuracy"] == 90 - math.ceil(7 / first) - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "best"),
    [([nan] * 5, 7), ([nan, 50.0, nan, 50.0, 50.0], 6), ([40.0, *[50.0] * 4], 7), ([40.0, 50.0, 49.0, 50.0, 50.0], 6)],
    ids=["none is a number", "one is a number", "equal", "highest"],
)
def test_best_weights_for_scores(scores: Any, best: int, run: Fit, checkpoint_steps: Any, monkeypatch: Patch) -> None:
    falling_scores(monkeypatch, *scores)
    assert checkpoint_steps(run(steps=7, num_validations=3).folder) == [best, 7]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 3], ids=["more validations", "last validation"])
def test_moved_folder_keeps_its_best_weights(
    stop: int, run: Fit, checkpoint_steps: Any, monkeypatch: Patch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        falling_scores(patch, stop=stop)
        with pytest.raises(Interrupted):
            run(steps=7, num_validations=3)
    (tmp_path / "digits").rename(tmp_path / "moved")
    (folder,) = (tmp_path / "moved").iterdir()
    falling_scores(monkeypatch)
    monkeypatch.setattr(ClassificationHead, "metrics", lambda *_: {"accuracy": 10.0})
    run(steps=7, num_validations=3, resume=folder)
    assert checkpoint_steps(folder) == [3, 7]


@pytest.mark.slow
def test_training_writes_checkpoints_in_its_folder_only(run: Fit, monkeypatch: Patch) -> None:
    log = logging.getLogger("lightning.pytorch")
    before = [*warnings.filters], log.level
    monkeypatch.setattr(tempfile, "mkstemp", None)  # A temporary file may be on another file system.
    checkpoints = [path.name for path in (run().folder / "checkpoints").iterdir()]
    assert sorted(checkpoints) == ["best.ckpt", "last.ckpt"]
    assert ([*warnings.filters], log.level) == before, "warnings and logging are left alone"


@pytest.mark.slow
def test_torn_checkpoint_is_removed(
    run: Fit, monkeypatch: Patch, tmp_path: Path, read_json: Any, fail_halfway: Callable[..., None]
) -> None:
    fail_halfway(monkeypatch, OSError(28, "No space left on device"), "ckpt")
    with pytest.raises(OSError, match="No space left"):
        run()
    (folder,) = (tmp_path / "digits").iterdir()
    assert read_json(folder)["status"] == "failed"
    assert not list((folder / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("refit", [False, True])
def test_refit_tests_last_weights(refit: bool, run: Fit, checkpoint_steps: Any, monkeypatch: Patch) -> None:
    falling_scores(monkeypatch)
    result = run(epochs=2.0, num_validations=3, refit=refit)
    assert result.budget["examples"] / 2 == pytest.approx(60 + refit * 20, abs=2)
    assert {name.split("/")[0] for name in result.metrics} == ({"train", "test"} if refit else {"val", "test"})
    best, last = checkpoint_steps(result.folder)
    assert (best == last) is refit, "the first weights are the best here"
    assert ("val/" in (result.folder / "metrics.csv").read_text()) is not refit


@pytest.mark.slow
def test_patience_stops_and_tests_best_weights(run: Fit, checkpoint_steps: Any, monkeypatch: Patch) -> None:
    falling_scores(monkeypatch, 10.0, 20.0, 20.0, 15.0, 20.0, 30.0)
    result = run(steps=10, num_validations=10, patience=2)
    assert result.budget["steps"] == 4
    assert checkpoint_steps(result.folder) == [3, 4], "of equal scores the latest is the best"
    assert result.metrics["test/a/accuracy"] == 30.0


@pytest.mark.slow
def test_diverged_run_stops(run: Fit) -> None:
    with pytest.raises(RunFailed, match="learning_rate") as failure:
        run(steps=STEPS, learning_rate=1e30, warmup_ratio=0)
    result = failure.value.result
    assert (result.status, result.metrics) == ("failed", {})
    assert result.budget["steps"] < STEPS


@pytest.mark.slow
def test_budget_in_seconds_ends_by_the_clock(run: Fit, read_metrics: Any, monkeypatch: Patch) -> None:
    seconds_of_batches(monkeypatch, 0.05)
    result = run(seconds=2.0, num_validations=3)
    assert result.budget["seconds"] == pytest.approx(2.0, abs=0.06)
    assert result.budget["steps"] == pytest.approx(40, abs=1)
    rows = read_metrics(result.folder)
    assert 2 <= len([row for row in rows if "val/a/accuracy" in row]) <= 3
    rates = [row["train/learning_rate"] for row in rows if "train/learning_rate" in row]
    assert rates[-1] < 0.2 * max(rates)


def seconds_of_batches(monkeypatch: Patch, seconds: float) -> None:
    """Make each step of one batch take this time by the run's clock."""

    def clock(model: UnifierModule, *tasks: str) -> None:  # It is read after the passes and after the optimizer.
        model.cost_tracker.tasks[model.current_task].seconds += seconds / 2

    monkeypatch.setattr(UnifierModule, "_clock", clock)


@pytest.mark.slow
def test_timed_validations_follow_whole_steps(run: Fit, monkeypatch: Patch) -> None:
    seconds_of_batches(monkeypatch, 0.05)
    batches, seconds = list[int](), list[float]()
    start = UnifierModule.on_validation_epoch_start

    def record(model: UnifierModule) -> None:
        if model.trainer.state.fn == TrainerFn.FITTING:
            batches.append(model.trainer.fit_loop.epoch_loop.batch_progress.total.completed)
            seconds.append(model.cost_tracker.total().seconds)
        start(model)

    monkeypatch.setattr(UnifierModule, "on_validation_epoch_start", record)
    run(seconds=1.5, num_validations=3, grad_accumulation=7)
    assert 2 <= len(batches) <= 3
    assert all(number % 7 == 0 for number in batches)
    assert all(time >= 0.5 * k for k, time in enumerate(seconds, start=1))


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["fixed", "uncertainty"])
def test_loss_weights_are_learned_if_asked(weighting: Any, run: Fit, make_task: Any) -> None:
    tasks = make_task(), replace(make_task(), loss_weight=0.0)
    result = run(*tasks, steps=8, loss_weighting=weighting)
    state = read_weights(result.folder, "last").items()
    learned = {name: value.item() for name, value in state if name.startswith("log_variances")}
    assert bool(learned) == (weighting == "uncertainty")
    if learned:
        assert learned["log_variances.a"] != 0
        assert learned["log_variances.b"] == 0, "nothing moves the weight of a loss that does not count"


@pytest.mark.parametrize(
    ("batches", "validations", "accumulation", "interval"), [(10, 3, 1, 4), (12, 3, 2, 4), (7, 8, 1, 1), (21, 2, 7, 14)]
)
def test_validation_interval_is_whole_steps(batches: int, validations: int, accumulation: int, interval: int) -> None:
    training = Training(steps=1, num_validations=validations, grad_accumulation=accumulation)
    assert validation_interval(training, batches) == interval


@pytest.mark.slow
def test_resume_from_a_checkpoint_with_wrong_parts_is_refused(interruptible: Fit, read_metrics: Any) -> None:
    presser = Presser()
    with pytest.raises(Interrupted) as stop:
        interruptible(presser, 6)
    folder = Path(str(stop.value))
    path = folder / "checkpoints" / "last.ckpt"
    whole, content = torch.load(path, weights_only=True), path.read_bytes()
    loop, optimizer = whole["loops"]["fit_loop"], whole["optimizer_states"][0]
    changes = [
        *({name: None} for name in ("loops", "optimizer_states", "costs", "losses", "metrics", "random_states")),
        *({"loops": {}}, {"loops": {"fit_loop": {**loop, "epoch_progress": 3}}}, {"callbacks": {}}),
        *({"losses": {}}, {"costs": {"tasks": {"a": {"steps": 1}}, "peak_memory_bytes": 0}}),
        {"optimizer_states": [{**optimizer, "state": {0: {"step": 1}}}]},
        {"random_states": [torch.ones(3)]},
        {"state_dict": {name: weight * math.nan for name, weight in whole["state_dict"].items()}},
    ]
    for change in changes:
        torch.save({**whole, **change}, path)
        with pytest.raises(InputError, match=r"last\.ckpt: broken"):
            interruptible(presser, resume=folder)
    path.write_bytes(content)
    assert_same_run(interruptible(presser, resume=folder), interruptible(presser), read_metrics)
