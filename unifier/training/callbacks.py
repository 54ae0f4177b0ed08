"""Callbacks of the training loop: logging, progress, Ctrl-C.

Where training time went, and the share of the machine's peak that was used.

Averages of the weights, which are scored and kept in place of the latest ones."""

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


@final
class GracefulStop(Callback):
    """Within it, Ctrl-C or SIGTERM ends a run between two steps, so that its checkpoint is whole; a second, at once."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's."""
        self.folder = folder
        self.asked = False
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "GracefulStop":
        if threading.current_thread() is threading.main_thread():  # no other hears signals
            self.before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        for which, handler in self.before.items():
            signal.signal(which, handler)

    def _listen(self, trainer: object = None, pl_module: object = None) -> None:
        for which in self.before:
            signal.signal(which, self._ask)

    # Lightning hears SIGTERM too, by a handler that it sets as each of these begins, and would call the run failed.
    on_train_start = on_validation_start = on_test_start = _listen

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise Interrupted(self.folder)
        self.asked = True
        print_status("stopping after this step and any validation that is due; Ctrl-C again stops at once", sys.stderr)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # Not at the end of the step before: a validation that was due then would be left out for good.
        if self.asked and batch_idx % trainer.accumulate_grad_batches == 0:
            trainer.save_checkpoint(self.folder / "checkpoints" / "last.ckpt")
            raise Interrupted(self.folder)

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        if self.asked and trainer.state.fn != TrainerFn.FITTING:
            raise Interrupted(self.folder)

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        if self.asked:
            raise Interrupted(self.folder)


@final
class TimedValidation(Callback):
    """Asks for a validation each time that training has taken so many seconds more, at the end of a step.

    Lightning's own clock runs in validations too, and does not wait for the end of a step of several batches.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.asked = self._due(pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        number, due = batch_idx + 1, self._due(pl_module)
        asks = due > self.asked and number % trainer.accumulate_grad_batches == 0
        self.asked = due if asks else self.asked
        trainer.val_check_batch = number if asks else math.inf  # it validates after each multiple of this

    def _due(self, model: pl.LightningModule) -> int:
        assert isinstance(model, UnifierModule)
        return int(model.cost_tracker.total().seconds // self.seconds)


@final
class LossLogger(Callback):
    """Logs each task's mean loss and the learning rate, a hundred times a run; ends one that diverged."""

    def __init__(self) -> None:
        self.logged = 0
        """Hundredths of the run."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, UnifierModule)
        self.logged = 100 * trainer.global_step // pl_module.total_steps  # a resumed run goes on from there

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        assert isinstance(pl_module, UnifierModule)
        done = trainer.global_step
        hundredths = 100 * done // pl_module.total_steps
        if hundredths == self.logged:
            return
        self.logged = hundredths
        row = {
            f"train/{task}/loss": torch.stack([loss.cpu() for loss in kept]).mean().item()
            for task, kept in pl_module.losses.items()
            if kept
        }
        for name, value in row.items():
            if not math.isfinite(value):
                raise DivergedError(f"{name} is {value} by step {done}: try a lower learning_rate, or more warm-up")
        for kept in pl_module.losses.values():
            kept.clear()
        row["train/learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in row.items()})
        assert trainer.logger is not None
        trainer.logger.log_metrics(row, done)


PRINT_SECONDS = 15.0
"""Seconds from one line of progress to the next."""


@final
class TextProgress(Callback):
    """Progress where there is no terminal: a line every few seconds, and one for each validation."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        if time.monotonic() - self.last > PRINT_SECONDS:
            self._say(trainer, pl_module, "train/", "")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, UnifierModule)
        if pl_module.training_settings.refit:
            self._say(trainer, pl_module, "train/", "validation split (part of training): ")
            return
        fitting = trainer.state.fn == TrainerFn.FITTING
        self._say(trainer, pl_module, "val/", "validation: " if fitting else "best weights, validation: ")

    def _say(self, trainer: pl.Trainer, pl_module: pl.LightningModule, prefix: str, said: str) -> None:
        assert isinstance(pl_module, UnifierModule)
        self.last = time.monotonic()
        figures = "  ".join(f"{name} {value}" for name, value in latest_metrics(trainer, prefix).items())
        spent = pl_module.cost_tracker.total()
        speed = spent.tokens / max(spent.seconds, 1e-9)
        step = f"step {trainer.global_step}/{pl_module.total_steps}"
        print_status(f"  {step}  {spent.seconds:.0f} s  {speed:,.0f} tokens/s  {said}{figures}")


@final
class BarProgress(RichProgressBar):
    """Progress on a terminal: Lightning's rich bar, with the latest loss and scores behind it."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        return {**latest_metrics(trainer, "train/"), **latest_metrics(trainer, "val/")}

    def _get_train_description(self, current_epoch: int) -> str:
        return f"{'Training':{len(self.validation_description)}}"  # the whole run is one pass over its plan


def latest_metrics(trainer: pl.Trainer, prefix: str) -> dict[str, str]:
    """The latest figures under a prefix, as a person reads them."""
    return {
        name.removeprefix(prefix): f"{float(value):.3f}"
        for name, value in trainer.callback_metrics.items()
        if name.startswith(prefix) and name not in ("val/score", "train/learning_rate")
    }


def create_progress() -> Callback:
    """The bar on a terminal, plain lines elsewhere."""
    return BarProgress() if sys.stdout.isatty() else TextProgress()


@lru_cache
def peak_flops(device: str, dtype: torch.dtype) -> float:
    """Operations a second that this machine reaches in one large matrix product: the best of five."""
    side = 1024 if device == "cpu" else 8192
    generator = torch.Generator(device).manual_seed(0)  # training's own random numbers stay as they are
    factors = torch.randn(2, side, side, dtype=dtype, device=device, generator=generator)
    seconds: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        matmul(*factors)[0, 0].item()
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds[1:])


@final
class SpeedMonitor(Callback):
    """Times training, validations left out.

    On an accelerator, whose work goes on behind the program's back, only the whole is exact.
    """

    def __init__(self, batches: TrainDataLoader, peak: float) -> None:
        """`peak` is what the machine could do, in operations a second."""
        self.batches, self.peak = batches, peak
        self.found: dict[str, float] = {}
        """What result.json holds under "speed", once trained."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, UnifierModule)
        self.before = pl_module.cost_tracker.total()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, UnifierModule)
        spent = pl_module.cost_tracker.total()
        seconds = spent.seconds - self.before.seconds
        if not seconds:  # resumed after its last step
            return
        flops = (spent.flops - self.before.flops) / seconds
        self.found = {
            "tokens_per_second": (spent.tokens - self.before.tokens) / seconds,
            "flops_per_second": flops,
            "peak_flops_per_second": self.peak,
            "mfu": flops / self.peak,
            "computed_per_real_column": self.batches.computed / self.batches.real,
            "share_waiting_for_data": self.batches.seconds / seconds,
            "share_outside_steps": 1 - pl_module.seconds_in_steps / seconds,
        }


@final
class WeightAveraging(Callback):
    """Validations and checkpoints take a mean of the weights, and training goes on from the weights themselves.

    The mean is exponential, or that of the last few num_validations' weights (Vaswani et al. 2017, section 6.1).
    Lightning's own callback copies the whole module, its data too; this one holds what is trained alone.
    """

    def __init__(self, *, decay: float = 0.0, num_validations: int = 1) -> None:
        """A `decay` of 0 averages the weights of the last `num_validations`."""
        self.decay = decay
        self.steps = 0
        self.mean: list[Tensor] = []
        self.past: deque[list[Tensor]] = deque(maxlen=num_validations)
        self.own: list[Tensor] = []
        """The weights that training goes on from, while the model holds their mean."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A checkpoint is read onto the processor, wherever the model is.
        self.mean = [weight.to(pl_module.device) for weight in self.mean]
        past = [[weight.to(pl_module.device) for weight in one] for one in self.past]
        self.past.clear()
        self.past.extend(past)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        # Not as soon as the validation ends, for its checkpoint is written after that.
        if self.own:
            swap_weights(self.own, pl_module)
            self.own = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        if not self.decay or trainer.global_step == self.steps:
            return
        self.steps = trainer.global_step
        if not self.mean:
            self.mean = clone_weights(trainable_weights(pl_module))
        # The first weights are forgotten fast, or a short run's mean would stay near them.
        decay = min(self.decay, self.steps / (self.steps + 9))
        get_ema_multi_avg_fn(decay)(self.mean, trainable_weights(pl_module), self.steps)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self.own = clone_weights(trainable_weights(pl_module))
        if not self.decay:
            self.past.append(self.own)
        past = self.past if not self.decay else [self.mean or self.own]  # a validation may come before the first step
        swap_weights([torch.stack(same).mean(0) for same in zip(*past, strict=True)], pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "mean": self.mean, "past": list(self.past), "own": self.own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.mean, self.own = (state_dict[name] for name in ("steps", "mean", "own"))
        self.past.extend(state_dict["past"])


def trainable_weights(module: nn.Module) -> list[Tensor]:
    """The weights that training changes."""
    return [weight.detach() for weight in module.parameters() if weight.requires_grad]


def clone_weights(weights: list[Tensor]) -> list[Tensor]:
    """The weights as they are now."""
    return [weight.clone() for weight in weights]


def swap_weights(weights: list[Tensor], module: nn.Module) -> None:
    """Give the module weights in the order of `trained`."""
    for own, weight in zip(trainable_weights(module), weights, strict=True):
        own.copy_(weight)


@final
class BestOrLastCheckpoint(ModelCheckpoint):
    """One file of a run's folder, written when a validation has ended.

    Lightning's own writes once, at the end, where each step is validated; and where a folder was moved before its run
    went on, it forgets how good the best weights were.
    """

    def __init__(self, folder: Path, name: str, *, monitor: str | None = None) -> None:
        """`folder` is the run's; with `monitor` the file holds what was highest in it, else the latest."""
        super().__init__(
            folder / "checkpoints",
            filename=name,
            monitor=monitor,
            mode="max",
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )

    def check_monitor_top_k(self, trainer: pl.Trainer, current: Tensor | None = None) -> bool:
        """Whether weights of this score are the best: of equal ones the latest are, which saw more at a lower rate."""
        best = self.best_model_score
        nothing_better = current is not None and best is not None and bool(best.isneginf() or current >= best)
        return super().check_monitor_top_k(trainer, current) or nothing_better

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` says of this file, whatever folder it was in."""
        path = self.format_checkpoint_name({})
        moved = {name: state_dict[name] and path for name in ("best_model_path", "kth_best_model_path")}
        best = {path: state_dict["best_model_score"]} if state_dict["best_k_models"] else {}
        super().load_state_dict({**state_dict, **moved, "dirpath": self.dirpath, "best_k_models": best})


@final
class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside the one before it, whose place it then takes.

    Lightning writes it where temporary files lie, and from another file system it is copied over the one before: a
    disk that is full, or a kill, leaves neither.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save a checkpoint; raises OSError where it cannot be written, which leaves the one before."""
        content = BytesIO()  # torch, writing a file by itself, raises a RuntimeError from a disk that is full
        torch.save(checkpoint, content)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.getbuffer())
