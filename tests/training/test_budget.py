"""What ends a run, and how arms weigh in it."""

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
from unifier.experiment import Arm, Training, Weighting
from unifier.heads.classification import ClassificationHead
from unifier.training.lightning_module import Unifier
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

D = 16


def trunk() -> Transformer:
    return Transformer(D, 1, 2, 16)


def digits() -> Arm:
    source = Digits(val=40, test=40)
    return Arm(source, PatchTokenizer(D, patch=2, channels=1), ClassificationHead(source.labels, D))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def weights(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def timed(*, seconds: float = 2.0, accumulate: int = 1) -> Experiment:
    training = Training(seconds=seconds, batch_tokens=128, validations=3, workers=0, accumulate=accumulate)
    return Experiment("timed", trunk(), {"digits": digits(), "again": digits()}, training)


def test_a_budget_in_seconds_ends_by_the_clock_and_by_a_falling_learning_rate(tmp_path: Path) -> None:
    [result] = run(timed, out=tmp_path, track="off")
    assert 2.0 <= result.budget["seconds"] < 3.0
    logged = rows(result.folder)
    assert 2 <= len([row for row in logged if row["val/digits/accuracy"]]) <= 3
    assert sum(spent["seconds"] for spent in result.arm_budgets.values()) == pytest.approx(result.budget["seconds"])
    rates = [float(row["train/learning_rate"]) for row in logged if row["train/learning_rate"]]
    assert rates[-1] < 0.2 * max(rates)


def test_its_validations_are_as_many_as_asked_each_at_the_end_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, own, went_on = list[int](), Unifier.on_validation_epoch_start, list[float]()

    def started(self: Unifier) -> None:
        if self.trainer.state.fn == TrainerFn.FITTING:
            read.append(self.trainer.fit_loop.epoch_loop.batch_progress.total.completed)
            went_on.append(self.ledger.all().seconds)
        own(self)

    monkeypatch.setattr(Unifier, "on_validation_epoch_start", started)
    run(timed, out=tmp_path, track="off", seconds=1.5, accumulate=7)
    assert 2 <= len(read) <= 3
    assert all(batches % 7 == 0 for batches in read)
    assert all(seconds >= 0.5 * k for k, seconds in enumerate(went_on, start=1))


def weighed(*, weighting: Weighting = "uncertainty", accumulate: int = 1, steps: int = 20) -> Experiment:
    arms = {"digits": digits(), "again": replace(digits(), weight=0.0)}
    training = Training(
        steps=steps, batch_tokens=128, accumulate=accumulate, validations=1, workers=0, weighting=weighting
    )
    return Experiment("weighed", trunk(), arms, training)


def test_losses_weigh_what_is_fixed_and_what_is_learned(tmp_path: Path) -> None:
    [result] = run(weighed, out=tmp_path, track="off")
    learned = weights(result.folder)
    assert learned["log_variances.digits"] != 0
    assert learned["log_variances.again"] == 0  # of no weight, so that nothing moves it
    [fixed] = run(weighed, out=tmp_path, track="off", weighting="fixed")
    assert not any(name.startswith("log_variances") for name in weights(fixed.folder))


def test_arms_with_batches_in_one_step_share_the_time_of_its_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = torch.optim.AdamW.step

    def slow(self: torch.optim.AdamW, **given: Any) -> Any:
        answer = step(self, **given)  # Lightning runs the passes within it
        time.sleep(0.1)
        return answer

    monkeypatch.setattr(torch.optim.AdamW, "step", slow)
    [result] = run(weighed, out=tmp_path, track="off", accumulate=2, steps=10)
    model = torch.load(result.folder / "checkpoints" / "last.ckpt", weights_only=False)
    spent = [arm["seconds"] for arm in model["ledger"]["arms"].values()]
    assert min(spent) > 0.5
