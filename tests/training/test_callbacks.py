"""Callbacks by themselves, with a model of one weight or a stand-in for the trainer."""

import errno
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from unifier.cli import main
from unifier.files import format_duration
from unifier.training import callbacks
from unifier.training.callbacks import EarlyStop, GracefulStop, RemainingTime, TextProgress, WeightAveraging
from unifier.training.lightning_module import UnifierModule
from unifier.training.result import DivergedError, Interrupted

STEPS, INTERVAL, ESTIMATE_STEPS = 12, 4, callbacks.ESTIMATE_STEPS

pytestmark = [  # Warnings of Lightning that a run silences.
    pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")
]


class Counting(pl.LightningModule):
    """A weight that is t squared after step t; the score is the weight that a validation sees."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.fixed = nn.Parameter(torch.tensor(0.1), requires_grad=False)
        self.validated: list[float] = []
        self.trained: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.trained.append(self.weight.item())
        return -self.weight * (2 * batch_idx + 1)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.validated.append(self.weight.item())
        self.log("score", self.weight)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.weight], lr=1.0)


def train_counting(folder: Path, averaging: WeightAveraging) -> Counting:
    model = Counting()
    settings: dict[str, Any] = {"accelerator": "cpu", "val_check_interval": INTERVAL, "num_sanity_val_steps": 0}
    settings |= dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    best = ModelCheckpoint(folder, filename="best", monitor="score", mode="max")
    trainer = pl.Trainer(max_epochs=1, callbacks=[averaging, best], **settings)
    steps, once = (DataLoader(TensorDataset(torch.zeros(count))) for count in (STEPS, 1))
    trainer.fit(model, steps, once)
    return model


@pytest.mark.parametrize(
    "averaging", [WeightAveraging(), WeightAveraging(num_validations=2), WeightAveraging(decay=0.5)]
)
def test_averaging_trains_on_from_the_weights(averaging: WeightAveraging, tmp_path: Path) -> None:
    model = train_counting(tmp_path, averaging)
    assert model.trained == [step**2 for step in range(STEPS)]
    state = torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
    assert state["weight"].item() == model.validated[-1]
    assert torch.equal(state["fixed"], torch.tensor(0.1))


def test_averaging_of_last_validations(tmp_path: Path) -> None:
    weights = [float(step**2) for step in range(INTERVAL, STEPS + 1, INTERVAL)]
    expected = [weights[0], (weights[0] + weights[1]) / 2, (weights[1] + weights[2]) / 2]
    assert train_counting(tmp_path, WeightAveraging(num_validations=2)).validated == expected


def test_exponential_average_equals_torch(tmp_path: Path) -> None:
    decay = 0.1  # With less than 1 / 10 there is no warm-up of the decay.
    reference = AveragedModel(nn.Linear(1, 1, bias=False), avg_fn=get_ema_avg_fn(decay))
    for step in range(1, STEPS + 1):
        with torch.no_grad():
            layer = nn.Linear(1, 1, bias=False)
            layer.weight.fill_(step**2)
        reference.update_parameters(layer)
    model = train_counting(tmp_path, WeightAveraging(decay=decay))
    assert model.validated[-1] == pytest.approx(next(reference.parameters()).item())
    slow = train_counting(tmp_path / "slow", WeightAveraging(decay=0.9999))
    assert STEPS**2 / 4 < slow.validated[-1] < STEPS**2, "the average moves in a short run too"


@pytest.fixture
def model(make_experiment: Any) -> UnifierModule:
    return UnifierModule(make_experiment(steps=100))


def trainer_at(step: int = 0, **facts: Any) -> Any:
    state = SimpleNamespace(fn=TrainerFn.FITTING)
    return SimpleNamespace(global_step=step, should_stop=False, state=state, callback_metrics={}, **facts)


def test_early_stop_counts_stale_validations(model: UnifierModule, capsys: pytest.CaptureFixture[str]) -> None:
    stop, trainer = EarlyStop(2), trainer_at()
    stopped: list[bool] = []
    for score in (10.0, 20.0, 20.0, 21.0, math.nan, 20.9):
        model.score = score
        stop.on_validation_end(trainer, model)
        stopped.append(trainer.should_stop)
    assert stopped == [False] * 5 + [True]
    assert "patience=2" in capsys.readouterr().out
    stop, trainer = EarlyStop(1), trainer_at()
    trainer.state.fn = TrainerFn.VALIDATING  # The best weights are validated once more.
    for _ in range(3):
        stop.on_validation_end(trainer, model)
    assert (stop.num_stale, trainer.should_stop) == (0, False)


def test_early_stop_continues_its_count(model: UnifierModule) -> None:
    first, second, third = (EarlyStop(2) for _ in range(3))
    trainer, resumed = trainer_at(), trainer_at()
    for model.score in (20.0, 10.0):
        first.on_validation_end(trainer_at(), model)
    second.load_state_dict(first.state_dict())
    second.on_train_start(trainer, model)
    assert not trainer.should_stop
    second.on_validation_end(trainer, model)
    assert trainer.should_stop
    third.load_state_dict(second.state_dict())
    third.on_train_start(resumed, model)
    assert resumed.should_stop, "a run that had stopped does not train on"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loss_logger_stops_at_loss_not_finite(value: float, model: UnifierModule) -> None:
    model.planned_steps = 100
    model.losses["a"] = [torch.tensor(1.0), torch.tensor(value)]
    with pytest.raises(DivergedError, match=f"train/a/loss is {value} by step 3"):
        callbacks.LossLogger().on_train_batch_end(trainer_at(3), model)


def test_loss_logger_logs_means_by_hundredths(model: UnifierModule) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    logger = SimpleNamespace(log_metrics=lambda metrics, step: logged.append((metrics, step)))
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.5}])
    model.planned_steps, callback = 300, callbacks.LossLogger()
    for step in range(1, 8):
        model.losses["a"].append(torch.tensor(float(step)))
        callback.on_train_batch_end(trainer_at(step, logger=logger, optimizers=[optimizer]), model)
    assert [(metrics["train/a/loss"], step) for metrics, step in logged] == [(2.0, 3), (5.0, 6)]
    assert logged[0][0]["train/learning_rate"] == 0.5


def spend(model: UnifierModule, steps: int, seconds: float) -> None:
    model.cost_tracker.steps += steps
    model.cost_tracker.tasks["a"].seconds += seconds


def test_remaining_time_leaves_out_first_step(model: UnifierModule) -> None:
    model.planned_steps, remaining = 1 + 4 * ESTIMATE_STEPS, RemainingTime()
    for steps, seconds in ((0, 0.0), (1, 100.0), (ESTIMATE_STEPS - 1, 0.5 * (ESTIMATE_STEPS - 1))):
        spend(model, steps, seconds)
        assert remaining.seconds(model) is None
    spend(model, 1, 0.5)
    assert remaining.seconds(model) == pytest.approx(0.5 * 3 * ESTIMATE_STEPS)
    spend(model, 3 * ESTIMATE_STEPS, 1.0)
    assert remaining.seconds(model) == 0


def test_remaining_time_of_budget_in_seconds(make_experiment: Any) -> None:
    model, remaining = UnifierModule(make_experiment(seconds=60)), RemainingTime()
    spend(model, 1, 20.0)
    assert remaining.seconds(model) == 40


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (7500, "2 h 05 min"), (90_000, "25 h 00 min")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_text_progress_prints_remaining_time(model: UnifierModule, capsys: pytest.CaptureFixture[str]) -> None:
    progress = callbacks.create_progress()
    assert isinstance(progress, TextProgress), "the tests have no terminal"
    model.planned_steps = 1000
    for steps in (1, ESTIMATE_STEPS, ESTIMATE_STEPS):
        spend(model, steps, steps * 1.0)
        progress.on_train_batch_end(trainer_at(steps), model)
    (announcement,) = capsys.readouterr().out.splitlines()
    assert "16 min" in announcement
    trainer = trainer_at(21)
    trainer.callback_metrics = {"val/a/accuracy": torch.tensor(50.0), "val/score": torch.tensor(50.0)}
    progress.on_validation_end(trainer, model)
    (line,) = capsys.readouterr().out.splitlines()
    assert all(part in line for part in ("step 21/1000", "16 min left", "validation: a/accuracy 50.000"))
    progress.last_time = -math.inf
    progress.on_train_batch_end(trainer, model)
    assert "step 21/1000" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_progress_on_a_terminal_is_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    output = bytearray()

    def read() -> None:
        with suppress(OSError):  # Reading fails when the other side of the terminal is closed.
            while part := os.read(ours, 4096):
                output.extend(part)

    reader = Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        command = ["run", "pictures", "tokens=2000", "dim=8", "depth=1", "--track", "off", "--out", str(tmp_path)]
        assert main(command) == 0
    reader.join()
    os.close(ours)
    assert all(part in output.decode() for part in ("Training", "digits/loss", "━"))


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_stops_at_once(second: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with GracefulStop(tmp_path) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(Interrupted, match=tmp_path.name):
            signal.raise_signal(second)
    assert signal.getsignal(signal.SIGINT) is before


def test_graceful_stop_waits_for_whole_step(tmp_path: Path, model: UnifierModule) -> None:
    saved, stop = list[Path](), GracefulStop(tmp_path)
    trainer = trainer_at(accumulate_grad_batches=2, save_checkpoint=saved.append)
    stop.requested = True
    stop.on_train_batch_start(trainer, model, None, 3)
    assert not saved
    with pytest.raises(Interrupted):
        stop.on_train_batch_start(trainer, model, None, 4)
    assert saved == [tmp_path / "checkpoints" / "last.ckpt"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_failed_save_keeps_the_older_file(
    error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_halfway: Callable[..., None]
) -> None:
    path, io = tmp_path / "checkpoints" / "last.ckpt", callbacks.AtomicCheckpointIO()
    io.save_checkpoint({"global_step": 1}, path)
    fail_halfway(monkeypatch, error, "ckpt")
    with pytest.raises(type(error)):
        io.save_checkpoint({"global_step": 2}, path)
    assert [torch.load(file, weights_only=True) for file in path.parent.iterdir()] == [{"global_step": 1}]
