"""Callbacks of the training loop: logging, progress, speed, stopping, weight averages and checkpoint files."""

import math
import signal
import sys
import threading
import time
from collections import deque
from functools import lru_cache
from io import BytesIO
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
from unifier.files import print_status, write_bytes
from unifier.nn.linear import matmul
from unifier.training.lightning_module import UnifierModule
from unifier.training.result import DivergedError, Interrupted

PRINT_SECONDS = 15.0
"""Time between two lines of progress."""

ESTIMATE_STEPS = 10
"""Number of steps from which the remaining time is estimated at first; the slow first step is left out."""


@final
class GracefulStop(Callback):
    """Stop on the first SIGINT or SIGTERM after the current step, with a complete checkpoint.

    A second signal stops immediately. The callback is also a context manager, which restores the signal handlers.
    """

    def __init__(self, folder: Path) -> None:
        """Create the callback for a run's folder."""
        self.folder = folder
        self.requested = False
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

    # Lightning sets a SIGTERM handler of its own at the start of each phase, which would mark the run as failed.
    on_train_start = on_validation_start = on_test_start = _install

    def _request(self, number: int, frame: Any) -> None:
        if self.requested:
            raise Interrupted(self.folder)
        self.requested = True
        print_status("stopping after this step and any validation that is due; Ctrl-C again stops at once", sys.stderr)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Save a checkpoint and stop, if a stop was requested.

        At the end of the step before, a validation could be due, and a resumed run would never make it up.
        """
        if self.requested and batch_idx % trainer.accumulate_grad_batches == 0:
            trainer.save_checkpoint(self.folder / "checkpoints" / "last.ckpt")
            raise Interrupted(self.folder)

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Stop the validation of the best weights, if a stop was requested."""
        if self.requested and trainer.state.fn != TrainerFn.FITTING:
            raise Interrupted(self.folder)

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        """Stop the test, if a stop was requested."""
        if self.requested:
            raise Interrupted(self.folder)


@final
class TimedValidation(Callback):
    """Validation after every period of training time, at the end of a step.

    Lightning's own timer also runs during validation, and may stop between the batches of one step.
    """

    def __init__(self, seconds: float) -> None:
        """Create the callback with the period in seconds."""
        self.seconds = seconds
        self.num_validated = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count the periods before a resumed run as validated."""
        self.num_validated = self._num_due(pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Request a validation if another period has passed."""
        num_batches, num_due = batch_idx + 1, self._num_due(pl_module)
        due = num_due > self.num_validated and num_batches % trainer.accumulate_grad_batches == 0
        self.num_validated = num_due if due else self.num_validated
        trainer.val_check_batch = num_batches if due else math.inf  # Lightning validates after each multiple of it.

    def _num_due(self, model: pl.LightningModule) -> int:
        assert isinstance(model, UnifierModule)
        return int(model.cost_tracker.total().seconds // self.seconds)


@final
class EarlyStop(Callback):
    """End of training when the validation score has not improved for a number of validations.

    Lightning's EarlyStopping would train on after a run is resumed that had already met the condition.
    """

    def __init__(self, patience: int) -> None:
        """Create the callback with the number of validations."""
        self.patience = patience
        self.best = -math.inf
        self.num_stale = 0
        """Number of validations since the best score."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End a resumed run that had met the condition."""
        trainer.should_stop = trainer.should_stop or self.num_stale >= self.patience

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the score with the best one."""
        assert isinstance(pl_module, UnifierModule)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        improved = pl_module.score > self.best
        self.best = pl_module.score if improved else self.best
        self.num_stale = 0 if improved else self.num_stale + 1
        if self.num_stale >= self.patience:
            print_status(f"  stopping: no better validation score for patience={self.patience} validations")
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best, "num_stale": self.num_stale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best, self.num_stale = state_dict["best"], state_dict["num_stale"]


@final
class LossLogger(Callback):
    """Log of the mean losses and the learning rate, a hundred times in a run. It stops a run that diverged."""

    def __init__(self) -> None:
        self.num_logged = 0
        """Logged hundredths of the run."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Continue after the hundredths of a resumed run."""
        assert isinstance(pl_module, UnifierModule)
        self.num_logged = 100 * trainer.global_step // pl_module.total_steps

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """Log the means since the last hundredth; raise DivergedError if one is not finite."""
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
    """Estimate of the remaining training time from the speed since the first step, without validations."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        """Steps and seconds after the first step, which may be slow because it compiles or allocates."""

    def seconds(self, model: UnifierModule) -> float | None:
        """Return the estimate in seconds, or None during the first steps."""
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


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as "40 s", "12 min" or "2 h 05 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


@final
class TextProgress(Callback):
    """Progress without a terminal: a line every few seconds, and a line for each validation of a longer run."""

    def __init__(self) -> None:
        self.last_time = time.monotonic()
        self.remaining = RemainingTime()
        self.announced = False
        """True after the remaining time of the whole run was printed."""

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """Print a line if the last one is old, and the remaining time once it is known."""
        assert isinstance(pl_module, UnifierModule)
        if not self.announced and (seconds := self.remaining.seconds(pl_module)) is not None:
            self.announced = True
            if seconds > PRINT_SECONDS:
                print_status(f"  about {format_duration(seconds)} of training left, validations not counted")
        if time.monotonic() - self.last_time > PRINT_SECONDS:
            self._print(trainer, pl_module, "train/", "")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the scores."""
        assert isinstance(pl_module, UnifierModule)
        if pl_module.training_settings.refit:
            self._print(trainer, pl_module, "train/", "validation split (part of training): ")
            return
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting and self._is_short(pl_module):
            return
        self._print(trainer, pl_module, "val/", "validation: " if fitting else "best weights, validation: ")

    def _is_short(self, model: UnifierModule) -> bool:
        """Return True for a run of a few seconds, whose final scores are enough."""
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
    """Progress on a terminal: Lightning's rich bar, with the latest loss and scores and the remaining time."""

    def __init__(self) -> None:
        super().__init__()
        self.remaining = RemainingTime()

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """Return the entries behind the bar."""
        assert isinstance(pl_module, UnifierModule)
        seconds = self.remaining.seconds(pl_module)
        left = {"left": format_duration(seconds)} if seconds else {}
        return {**latest_metrics(trainer, "train/"), **latest_metrics(trainer, "val/"), **left}

    def _get_train_description(self, current_epoch: int) -> str:
        # A run is one epoch of Lightning's, so its number would be of no use.
        return f"{'Training':{len(self.validation_description)}}"


def latest_metrics(trainer: pl.Trainer, prefix: str) -> dict[str, str]:
    """Return the latest metrics under a prefix, without it and with three decimals."""
    return {
        name.removeprefix(prefix): f"{float(value):.3f}"
        for name, value in trainer.callback_metrics.items()
        if name.startswith(prefix) and name not in ("val/score", "train/learning_rate")
    }


def create_progress() -> Callback:
    """Return the bar on a terminal, and plain lines otherwise."""
    return BarProgress() if sys.stdout.isatty() else TextProgress()


@lru_cache
def peak_flops(device: str, dtype: torch.dtype) -> float:
    """Measure the FLOPs per second of one large matrix product, the best of five."""
    side = 1024 if device == "cpu" else 8192
    generator = torch.Generator(device).manual_seed(0)  # The global generator is that of training.
    factors = torch.randn(2, side, side, dtype=dtype, device=device, generator=generator)
    seconds: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        matmul(*factors)[0, 0].item()
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds[1:])


@final
class SpeedMonitor(Callback):
    """Rates and shares of the training time, without validations.

    On an accelerator, which works asynchronously, only the total time is exact.
    """

    def __init__(self, batches: TrainDataLoader, peak: float) -> None:
        """Create the monitor of these batches; `peak` is the machine's peak in FLOPs per second."""
        self.batches, self.peak = batches, peak
        self.speed: dict[str, float] = {}
        """The "speed" of result.json; empty until the end of training."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the cost before a resumed run."""
        assert isinstance(pl_module, UnifierModule)
        self.before = pl_module.cost_tracker.total()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compute the rates and shares."""
        assert isinstance(pl_module, UnifierModule)
        cost = pl_module.cost_tracker.total()
        seconds = cost.seconds - self.before.seconds
        if not seconds:  # The run was resumed after its last step.
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


@final
class WeightAveraging(Callback):
    """Average of the weights, used in validations and checkpoints; training continues from the weights themselves.

    The average is exponential, or the mean of the weights at the last few validations (Vaswani et al. 2017, section
    6.1). Lightning's own callback copies the whole module with its data; this one keeps trainable weights only.
    """

    def __init__(self, *, decay: float = 0.0, num_validations: int = 1) -> None:
        """Create the exponential average, or with decay=0 the mean over the last `num_validations`."""
        self.decay = decay
        self.steps = 0
        self.average: list[Tensor] = []
        self.history: deque[list[Tensor]] = deque(maxlen=num_validations)
        """The weights at the last validations."""
        self.training_weights: list[Tensor] = []
        """The weights from which training continues while the model holds their average."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the weights of a checkpoint, which is read on the CPU, to the model's device."""
        self.average = [weight.to(pl_module.device) for weight in self.average]
        history = [[weight.to(pl_module.device) for weight in weights] for weights in self.history]
        self.history.clear()
        self.history.extend(history)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """Restore the weights after a validation, whose checkpoint is written after its end."""
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
        # Warm up the decay; with a fixed one, the average of a short run stays close to the initial weights.
        decay = min(self.decay, self.steps / (self.steps + 9))
        get_ema_multi_avg_fn(decay)(self.average, trainable_weights(pl_module), self.steps)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the average into the model."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self.training_weights = clone_weights(trainable_weights(pl_module))
        if not self.decay:
            self.history.append(self.training_weights)
        # Before the first step there is no exponential average yet.
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
    """Return the weights that training changes."""
    return [weight.detach() for weight in module.parameters() if weight.requires_grad]


def clone_weights(weights: list[Tensor]) -> list[Tensor]:
    """Return copies of the weights."""
    return [weight.clone() for weight in weights]


def set_trainable_weights(module: nn.Module, weights: list[Tensor]) -> None:
    """Copy weights, in the order of `trainable_weights`, into a module."""
    for target, weight in zip(trainable_weights(module), weights, strict=True):
        target.copy_(weight)


@final
class BestOrLastCheckpoint(ModelCheckpoint):
    """One checkpoint file of a run, written at the end of a validation.

    Lightning's own ModelCheckpoint writes only once, at the end, if every step is validated. If the folder was moved
    before the run is resumed, it also forgets the best score.
    """

    def __init__(self, folder: Path, name: str, *, monitor: str | None = None) -> None:
        """Create the callback.

        Args:
            folder: The run's folder.
            name: The file's name without its ending.
            monitor: The metric whose highest value the file is kept for; None keeps the latest weights.
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
        """Return True if weights with this score are to be kept.

        Of equal scores the latest is kept, because its weights saw more examples at a lower learning rate.
        """
        best = self.best_model_score
        not_worse = current is not None and best is not None and bool(best.isneginf() or current >= best)
        return super().check_monitor_top_k(trainer, current) or not_worse

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint, with the paths of the current folder."""
        path = self.format_checkpoint_name({})
        paths = {name: state_dict[name] and path for name in ("best_model_path", "kth_best_model_path")}
        best = {path: state_dict["best_model_score"]} if state_dict["best_k_models"] else {}
        super().load_state_dict({**state_dict, **paths, "dirpath": self.dirpath, "best_k_models": best})


@final
class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint writer that replaces the previous file only with a complete one.

    Lightning writes to the system's temporary folder and copies the file if that is another file system. A full disk
    or a kill during the copy would then lose both files.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint; on OSError, such as a full disk, the previous file stays."""
        content = BytesIO()  # Writing to a file, torch would raise a RuntimeError for a full disk.
        torch.save(checkpoint, content)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.getbuffer())
