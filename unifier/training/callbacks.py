"""Callbacks of the training loop: logging, progress, speed, stopping, weight averages and checkpoint files."""

import math
import signal
import sys
import threading
import time
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from unifier.data.dataloader import TrainDataLoader
from unifier.distributed import is_main, world
from unifier.files import format_duration, print_status
from unifier.nn.linear import matmul
from unifier.training.checkpoint import write_checkpoint
from unifier.training.lightning_module import UnifierModule
from unifier.training.result import DivergedError, Interrupted

PRINT_SECONDS = 15.0
"""The time in seconds between two lines of progress."""

ESTIMATE_STEPS = 10
"""Number of steps before the first estimate of the remaining time, without the slow first step of the run."""


@final
class GracefulStop(Callback):
    """Callback that saves a checkpoint and stops the run after the current step on SIGINT or SIGTERM.

    A second signal stops the run immediately. As a context manager, the callback restores the previous signal handlers
    on exit.
    """

    def __init__(self, folder: Path) -> None:
        """Create the callback. `folder` is the run's folder."""
        self.folder = folder
        self.requested, self.requested_time = False, -math.inf
        self.previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "GracefulStop":
        if threading.current_thread() is threading.main_thread():  # Only the main thread receives signals.
            self.previous_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)

    def _install(self, trainer: object = None, pl_module: object = None) -> None:
        for number in self.previous_handlers:
            signal.signal(number, self._request)

    # At the start of each phase, Lightning sets its own SIGTERM handler, which would mark the run as failed.
    on_train_start = on_validation_start = on_test_start = _install

    def _request(self, number: int, frame: Any) -> None:
        # A terminal and torchrun both send the signal of one Ctrl-C to all processes.
        if world().size > 1 and time.monotonic() < self.requested_time + 1:
            return
        if self.requested:
            raise Interrupted(self.folder)
        self.requested, self.requested_time = True, time.monotonic()
        print_status("stopping after this step, or after the validation; Ctrl-C again stops immediately", sys.stderr)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """If a stop was requested, save a checkpoint and stop.

        The stop waits for the start of the next step, because a resumed run would skip a validation after the current
        step.
        """
        assert isinstance(pl_module, UnifierModule)
        pl_module.stop_requested = self.requested
        requested = self.requested if world().size == 1 else pl_module.stop_agreed
        if requested and batch_idx % trainer.accumulate_grad_batches == 0:
            trainer.save_checkpoint(self.folder / "checkpoints" / "last.ckpt")
            raise Interrupted(self.folder)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """If a stop was requested, stop the validation of the best weights."""
        assert isinstance(pl_module, UnifierModule)
        pl_module.stop_requested = self.requested
        if self.requested and world().size == 1 and trainer.state.fn != TrainerFn.FITTING:
            raise Interrupted(self.folder)

    def on_test_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """If a stop was requested, stop the test."""
        self.on_validation_batch_end(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """If a stop was requested on any of several processes, stop after the validation of the best weights."""
        assert isinstance(pl_module, UnifierModule)
        if pl_module.stop_agreed and world().size > 1 and trainer.state.fn != TrainerFn.FITTING:
            raise Interrupted(self.folder)

    on_test_end = on_validation_end


@final
class TimedValidation(Callback):
    """Callback that starts a validation after every `seconds` of training time, at the end of a step.

    Lightning's own timer includes the time of validations. Lightning may also start a validation in the middle of a
    step, between two of its batches.
    """

    def __init__(self, seconds: float) -> None:
        """Create the callback. `seconds` is the training time between two validations."""
        self.seconds = seconds
        self.num_validated = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Skip the validations that a resumed run has already made."""
        self.num_validated = self._num_due(pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Request a validation if `seconds` of training time have passed since the last request."""
        num_batches, num_due = batch_idx + 1, self._num_due(pl_module)
        due = num_due > self.num_validated and num_batches % trainer.accumulate_grad_batches == 0
        self.num_validated = num_due if due else self.num_validated
        trainer.val_check_batch = num_batches if due else math.inf  # Lightning then validates at this batch.

    def _num_due(self, model: pl.LightningModule) -> int:
        assert isinstance(model, UnifierModule)
        return int(model.cost_tracker.total().seconds // self.seconds)


@final
class EarlyStop(Callback):
    """Callback that ends the training if the validation score has not improved in the last `patience` validations.

    Lightning's own EarlyStopping would continue to train a resumed run that had already stopped early.
    """

    def __init__(self, patience: int) -> None:
        """Create the callback. `patience` is the maximum number of validations without a better score."""
        self.patience = patience
        self.best = -math.inf
        self.num_stale = 0
        """Number of validations since the best score."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop a resumed run if its validation score had already stopped improving."""
        trainer.should_stop = trainer.should_stop or self.num_stale >= self.patience

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Update the best validation score, and stop the training if the score has stopped improving."""
        assert isinstance(pl_module, UnifierModule)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        improved = pl_module.score > self.best
        self.best = pl_module.score if improved else self.best
        self.num_stale = 0 if improved else self.num_stale + 1
        if self.num_stale >= self.patience:
            print_status(f"  stopping: the validation score has not improved recently (patience={self.patience})")
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best, "num_stale": self.num_stale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best, self.num_stale = state_dict["best"], state_dict["num_stale"]


@final
class LossLogger(Callback):
    """Callback that logs the mean losses and the learning rate 100 times in a run, and stops a diverged run."""

    def __init__(self) -> None:
        self.num_logged = 0
        """Number of times that losses have been logged, at most 100 per run."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compute `num_logged` of a resumed run from the number of steps."""
        assert isinstance(pl_module, UnifierModule)
        self.num_logged = 100 * trainer.global_step // pl_module.total_steps

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """Log the mean losses after each hundredth of the run. Raise DivergedError if a mean loss is not finite."""
        assert isinstance(pl_module, UnifierModule)
        step = trainer.global_step
        hundredths = 100 * step // pl_module.total_steps
        if hundredths == self.num_logged:
            return
        self.num_logged = hundredths
        metrics = {
            f"train/{task}/loss": torch.stack([loss.cpu() for loss in losses]).mean().item()
            for task, losses in pl_module.losses.items()
            if losses
        }
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise DivergedError(f"{name} is {value} by step {step}")
        for losses in pl_module.losses.values():
            losses.clear()
        metrics["train/learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        assert trainer.logger is not None
        trainer.logger.log_metrics(metrics, step)


@final
class RemainingTime:
    """Estimate of the remaining training time, without validations, from the speed since the first step."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        """Steps and seconds at the end of the first step, which may be slow because of compilation."""

    def seconds(self, model: UnifierModule) -> float | None:
        """Return the estimated remaining time in seconds, or None during the first steps."""
        cost = model.cost_tracker.total()
        if model.training_settings.seconds is not None:
            return max(model.training_settings.seconds - cost.seconds, 0.0)
        if self._first is None:
            self._first = (cost.steps, cost.seconds) if cost.steps else None
            return None
        steps = cost.steps - self._first[0]
        if steps < ESTIMATE_STEPS:
            return None
        return (cost.seconds - self._first[1]) / steps * max(model.total_steps - cost.steps, 0)


@final
class TextProgress(Callback):
    """Callback that prints a line of progress every few seconds, and in longer runs a line for each validation."""

    def __init__(self) -> None:
        self.last_time = time.monotonic()
        self.remaining = RemainingTime()
        self.announced = False
        """True if an estimate of the remaining time has been printed."""

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """Print a line of progress every few seconds. Print the first estimate of the remaining time."""
        assert isinstance(pl_module, UnifierModule)
        if not self.announced and (seconds := self.remaining.seconds(pl_module)) is not None:
            self.announced = True
            if seconds > PRINT_SECONDS:
                print_status(f"  about {format_duration(seconds)} of training left (validations are not counted)")
        if time.monotonic() - self.last_time > PRINT_SECONDS:
            self._print(trainer, pl_module, "train/", "")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the scores of a validation."""
        assert isinstance(pl_module, UnifierModule)
        if pl_module.training_settings.refit:
            self._print(trainer, pl_module, "train/", "validation split (part of training): ")
            return
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting and self._is_short(pl_module):
            return
        self._print(trainer, pl_module, "val/", "validation: " if fitting else "best weights, validation: ")

    def _is_short(self, model: UnifierModule) -> bool:
        """Return True for a run of a few seconds, which prints only the final scores."""
        remaining = self.remaining.seconds(model)
        return remaining is not None and model.cost_tracker.total().seconds + remaining < PRINT_SECONDS

    def _print(self, trainer: pl.Trainer, model: UnifierModule, prefix: str, title: str) -> None:
        self.last_time = time.monotonic()
        metrics = "  ".join(f"{name} {value}" for name, value in latest_metrics(trainer, prefix).items())
        cost = model.cost_tracker.total()
        speed = cost.tokens / max(cost.seconds, 1e-9)
        remaining = self.remaining.seconds(model) if trainer.state.fn == TrainerFn.FITTING else None
        left = f"  {format_duration(remaining)} left" if remaining else ""
        step = f"step {trainer.global_step}/{model.total_steps}"
        print_status(f"  {step}  {cost.seconds:.0f} s{left}  {speed:,.0f} tokens/s  {title}{metrics}")


@final
class BarProgress(RichProgressBar):
    """Progress bar for a terminal, with the latest loss, the latest scores and the remaining time."""

    def __init__(self) -> None:
        super().__init__()
        self.remaining = RemainingTime()

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """Return the values to the right of the progress bar."""
        assert isinstance(pl_module, UnifierModule)
        seconds = self.remaining.seconds(pl_module)
        left = {"left": format_duration(seconds)} if seconds else {}
        return {**latest_metrics(trainer, "train/"), **latest_metrics(trainer, "val/"), **left}

    def _get_train_description(self, current_epoch: int) -> str:
        # Each run is a single epoch in Lightning, so the epoch number is not shown.
        return f"{'Training':{len(self.validation_description)}}"


def latest_metrics(trainer: pl.Trainer, prefix: str) -> dict[str, str]:
    """Return the latest metrics with a prefix, rounded to three decimals and without the prefix."""
    return {
        name.removeprefix(prefix): f"{float(value):.3f}"
        for name, value in trainer.callback_metrics.items()
        if name.startswith(prefix) and name not in ("val/score", "train/learning_rate")
    }


def create_progress() -> Callback:
    """Return a progress bar if the output is a terminal, else progress in plain lines."""
    return BarProgress() if sys.stdout.isatty() and is_main() else TextProgress()


@lru_cache
def peak_flops(device: str, dtype: torch.dtype) -> float:
    """Return the highest FLOPs per second in five measurements of one large matrix product."""
    side = 1024 if device == "cpu" else 8192
    generator = torch.Generator(device).manual_seed(0)  # The global random generator is reserved for training.
    factors = torch.randn(2, side, side, dtype=dtype, device=device, generator=generator)
    seconds: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        matmul(*factors)[0, 0].item()
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds[1:])


@final
class SpeedMonitor(Callback):
    """Callback that measures the speed of training without validations, the time outside of steps, and the test's time.

    Accelerators run asynchronously, so only the total time is exact on an accelerator.
    """

    def __init__(self, batches: TrainDataLoader, peak: float) -> None:
        """Create the monitor for the training batches. `peak` is the machine's highest FLOPs per second."""
        self.batches, self.peak = batches, peak
        self.speed: dict[str, float] = {}
        """The entry "speed" of result.json, which is filled at the end of training."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the cost at the start of training. The cost of a resumed run starts above zero."""
        assert isinstance(pl_module, UnifierModule)
        self.before = pl_module.cost_tracker.total()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compute `speed` from the cost since the start of training."""
        assert isinstance(pl_module, UnifierModule)
        cost = pl_module.cost_tracker.total()
        seconds = cost.seconds - self.before.seconds
        if not seconds:  # A run that resumes after its last step does not train.
            return
        flops = (cost.flops - self.before.flops) / seconds
        self.speed = {
            "tokens_per_second": (cost.tokens - self.before.tokens) / seconds,
            "flops_per_second": flops,
            "peak_flops_per_second": self.peak,
            "mfu": flops / self.peak,
            "computed_per_real_column": self.batches.num_padded_tokens / self.batches.num_tokens,
            "share_waiting_for_data": self.batches.wait_seconds / seconds,
            "share_outside_steps": 1 - pl_module.seconds_in_steps / seconds,
        }

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the test."""
        self.test_start = time.perf_counter()

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the time of the test, which includes the computation of the scores."""
        self.speed["test_seconds"] = time.perf_counter() - self.test_start


@final
class WeightAveraging(Callback):
    """Callback that averages the weights for validations and checkpoints.

    The average is an exponential moving average, or the mean of the weights at the last few validations (Vaswani et al.
    2017, section 6.1). Only trainable weights are copied, while Lightning's own callback copies the whole module with
    its data.
    """

    def __init__(self, *, decay: float = 0.0, num_validations: int = 1) -> None:
        """Use an exponential moving average, or if decay=0 the mean over the last `num_validations` validations."""
        self.decay = decay
        self.steps = 0
        self.average: list[Tensor] = []
        self.history: deque[list[Tensor]] = deque(maxlen=num_validations)
        """The weights at the last validations."""
        self.training_weights: list[Tensor] = []
        """The training weights, which are stored here while the model uses the averaged weights."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the averaged weights from the CPU, where checkpoints are loaded, to the model's device."""
        self.average = [weight.to(pl_module.device) for weight in self.average]
        history = [[weight.to(pl_module.device) for weight in weights] for weights in self.history]
        self.history.clear()
        self.history.extend(history)
        shapes = [weight.shape for weight in trainable_weights(pl_module)]
        for weights in (self.average, self.training_weights, *self.history):
            if weights and [weight.shape for weight in weights] != shapes:
                raise ValueError("an average of the weights has other shapes than the weights")

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """Restore the training weights after a validation.

        The training weights are not restored earlier, because the checkpoint is written after the end of the
        validation.
        """
        if self.training_weights:
            set_trainable_weights(pl_module, self.training_weights)
            self.training_weights = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """Update the exponential average after each step."""
        if not self.decay or trainer.global_step == self.steps:
            return
        self.steps = trainer.global_step
        if not self.average:
            self.average = clone_weights(trainable_weights(pl_module))
        # The decay increases during a run. With a fixed decay, a short run's average would stay near the initial
        # weights.
        decay = min(self.decay, self.steps / (self.steps + 9))
        get_ema_multi_avg_fn(decay)(self.average, trainable_weights(pl_module), self.steps)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Replace the model's weights by the average of the weights."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self.training_weights = clone_weights(trainable_weights(pl_module))
        if not self.decay:
            self.history.append(self.training_weights)
        # Before the first step, the exponential average does not exist yet.
        history = self.history if not self.decay else [self.average or self.training_weights]
        averages = [torch.stack(weights).mean(0) for weights in zip(*history, strict=True)]
        set_trainable_weights(pl_module, averages)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "steps": self.steps,
            "average": self.average,
            "history": list(self.history),
            "training_weights": self.training_weights,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.steps, self.average, self.training_weights = (
            state_dict[name] for name in ("steps", "average", "training_weights")
        )
        self.history.extend(state_dict["history"])


def trainable_weights(module: nn.Module) -> list[Tensor]:
    """Return the trainable weights of a module."""
    return [weight.detach() for weight in module.parameters() if weight.requires_grad]


def clone_weights(weights: list[Tensor]) -> list[Tensor]:
    """Return copies of the weights."""
    return [weight.clone() for weight in weights]


def set_trainable_weights(module: nn.Module, weights: list[Tensor]) -> None:
    """Overwrite the trainable weights of a module. `weights` must have the order of `trainable_weights(module)`."""
    for target, weight in zip(trainable_weights(module), weights, strict=True):
        target.copy_(weight)


@final
class BestOrLastCheckpoint(ModelCheckpoint):
    """Callback that writes a checkpoint of the best or latest weights after validations.

    Lightning's own ModelCheckpoint writes only once, at the end, if every step is validated. Lightning's
    ModelCheckpoint also loses the best score if the folder of a resumed run was moved.
    """

    def __init__(self, folder: Path, name: str, *, monitor: str | None = None) -> None:
        """Create the callback.

        Args:
            folder: The run's folder.
            name: The file name without its suffix.
            monitor: The name of a metric. The weights with the highest value of the metric are saved. With None, the
                latest weights are saved.
        """
        super().__init__(
            folder / "checkpoints",
            filename=name,
            monitor=monitor,
            mode="max",
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )

    def check_monitor_top_k(self, trainer: pl.Trainer, current: Tensor | None = None) -> bool:
        """Return True if the score is at least the best score, so the weights must be saved.

        New weights with a score equal to the best score are saved, because they were trained on more examples than the
        old weights.
        """
        best = self.best_model_score
        not_worse = current is not None and best is not None and bool(best.isneginf() or current >= best)
        return super().check_monitor_top_k(trainer, current) or not_worse

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint, with all paths changed to the current folder."""
        path = self.format_checkpoint_name({})
        paths = {name: state_dict[name] and path for name in ("best_model_path", "kth_best_model_path")}
        scores = [state_dict[name] for name in ("best_model_score", "current_score")]
        if not all(isinstance(score, Tensor | None) for score in scores):
            raise ValueError(f"a score of the checkpoints is {scores}")
        best = {path: state_dict["best_model_score"]} if state_dict["best_k_models"] else {}
        super().load_state_dict({**state_dict, **paths, "dirpath": self.dirpath, "best_k_models": best})


@final
class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint writer that replaces the previous checkpoint file only after the new file is complete.

    Lightning writes to the system's temporary folder, and copies the file if the temporary folder is on another file
    system. A full disk or a killed process during the copy would destroy both the old and the new file.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint. If writing raises OSError, for example on a full disk, the previous file is kept."""
        write_checkpoint(Path(path), checkpoint)
