"""What ends a run, and how tasks weigh in it."""

import csv
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from unifier import Experiment, run
from unifier.datasets.digits import Digits
from unifier.experiment import LossWeighting, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

D = 16


def trunk() -> Transformer:
    return Transformer(D, 1, 2, 16)


def digits() -> Task:
    source = Digits(val=40, test=40)
    return Task(source, PatchTokenizer(D, patch=2, channels=1), ClassificationHead(source.labels, D))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def weights(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def timed(*, seconds: float = 2.0, accumulate: int = 1) -> Experiment:
    training = Training(
        seconds=seconds, batch_tokens=128, num_validations=3, num_workers=0, grad_accumulation=accumulate
    )
    return Experiment(trunk(), {"digits": digits(), "again": digits()}, training, name="timed")


def test_a_budget_in_seconds_ends_by_the_clock_and_by_a_falling_learning_rate(tmp_path: Path) -> None:
    [result] = run(timed, out=tmp_path, track="off")
    assert 2.0 <= result.budget["seconds"] < 3.0
    logged = rows(result.folder)
    assert 2 <= len([row for row in logged if row["val/digits/accuracy"]]) <= 3
    assert sum(spent["seconds"] for spent in result.task_budgets.values()) == pytest.approx(result.budget["seconds"])
    rates = [float(row["train/learning_rate"]) for row in logged if row["train/learning_rate"]]
    assert rates[-1] < 0.2 * max(rates)


def test_its_validations_are_as_many_as_asked_each_at_the_end_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, own, went_on = list[int](), UnifierModule.on_validation_epoch_start, list[float]()

    def started(self: UnifierModule) -> None:
        if self.trainer.state.fn == TrainerFn.FITTING:
            read.append(self.trainer.fit_loop.epoch_loop.batch_progress.total.completed)
            went_on.append(self.cost_tracker.total().seconds)
        own(self)

    monkeypatch.setattr(UnifierModule, "on_validation_epoch_start", started)
    run(timed, out=tmp_path, track="off", seconds=1.5, grad_accumulation=7)
    assert 2 <= len(read) <= 3
    assert all(batches % 7 == 0 for batches in read)
    assert all(seconds >= 0.5 * k for k, seconds in enumerate(went_on, start=1))


def weighed(*, weighting: LossWeighting = "uncertainty", accumulate: int = 1, steps: int = 20) -> Experiment:
    tasks = {"digits": digits(), "again": replace(digits(), weight=0.0)}
    training = Training(
        steps=steps,
        batch_tokens=128,
        grad_accumulation=accumulate,
        num_validations=1,
        num_workers=0,
        loss_weighting=weighting,
    )
    return Experiment(trunk(), tasks, training, name="weighed")


def test_losses_weigh_what_is_fixed_and_what_is_learned(tmp_path: Path) -> None:
    [result] = run(weighed, out=tmp_path, track="off")
    learned = weights(result.folder)
    assert learned["log_variances.digits"] != 0
    assert learned["log_variances.again"] == 0  # of no weight, so that nothing moves it
    [fixed] = run(weighed, out=tmp_path, track="off", loss_weighting="fixed")
    assert not any(name.startswith("log_variances") for name in weights(fixed.folder))


def test_tasks_with_batches_in_one_step_share_the_time_of_its_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = torch.optim.AdamW.step

    def slow(self: torch.optim.AdamW, **given: Any) -> Any:
        answer = step(self, **given)  # Lightning runs the passes within it
        time.sleep(0.1)
        return answer

    monkeypatch.setattr(torch.optim.AdamW, "step", slow)
    [result] = run(weighed, out=tmp_path, track="off", grad_accumulation=2, steps=10)
    model = torch.load(result.folder / "checkpoints" / "last.ckpt", weights_only=False)
    spent = [task["seconds"] for task in model["ledger"]["tasks"].values()]
    assert min(spent) > 0.5
