"""Callbacks of the training loop: logging, progress, Ctrl-C."""

import math
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.trainer.states import TrainerFn

from unifier.data.saying import say
from unifier.model import Unifier
from unifier.running.loop.endings import DivergedError, Interrupted


@final
class Interruption(Callback):
    """Within it, Ctrl-C or SIGTERM ends a run between two steps, so that its checkpoint is whole; a second, at once."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's."""
        self.folder = folder
        self.asked = False
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
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
        say("stopping after this step and any validation that is due; Ctrl-C again stops at once", sys.stderr)

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
class ByTheClock(Callback):
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
        assert isinstance(model, Unifier)
        return int(model.ledger.all().seconds // self.seconds)


@final
class Losses(Callback):
    """Logs each arm's mean loss and the learning rate, a hundred times a run; ends one that diverged."""

    def __init__(self) -> None:
        self.logged = 0
        """Hundredths of the run."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        self.logged = 100 * trainer.global_step // pl_module.total_steps  # a resumed run goes on from there

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        assert isinstance(pl_module, Unifier)
        done = trainer.global_step
        hundredths = 100 * done // pl_module.total_steps
        if hundredths == self.logged:
            return
        self.logged = hundredths
        row = {
            f"train/{arm}/loss": torch.stack([loss.cpu() for loss in kept]).mean().item()
            for arm, kept in pl_module.losses.items()
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


EVERY = 15.0
"""Seconds from one line of progress to the next."""


@final
class Lines(Callback):
    """Progress where there is no terminal: a line every few seconds, and one for each validation."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        if time.monotonic() - self.last > EVERY:
            self._say(trainer, pl_module, "train/", "")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        if pl_module.training_settings.refit:
            self._say(trainer, pl_module, "train/", "validation split (part of training): ")
            return
        fitting = trainer.state.fn == TrainerFn.FITTING
        self._say(trainer, pl_module, "val/", "validation: " if fitting else "best weights, validation: ")

    def _say(self, trainer: pl.Trainer, pl_module: pl.LightningModule, prefix: str, said: str) -> None:
        assert isinstance(pl_module, Unifier)
        self.last = time.monotonic()
        figures = "  ".join(f"{name} {value}" for name, value in latest(trainer, prefix).items())
        spent = pl_module.ledger.all()
        speed = spent.tokens / max(spent.seconds, 1e-9)
        step = f"step {trainer.global_step}/{pl_module.total_steps}"
        say(f"  {step}  {spent.seconds:.0f} s  {speed:,.0f} tokens/s  {said}{figures}")


@final
class Bar(RichProgressBar):
    """Progress on a terminal: Lightning's rich bar, with the latest loss and scores behind it."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        return {**latest(trainer, "train/"), **latest(trainer, "val/")}

    def _get_train_description(self, current_epoch: int) -> str:
        return f"{'Training':{len(self.validation_description)}}"  # the whole run is one pass over its plan


def latest(trainer: pl.Trainer, prefix: str) -> dict[str, str]:
    """The latest figures under a prefix, as a person reads them."""
    return {
        name.removeprefix(prefix): f"{float(value):.3f}"
        for name, value in trainer.callback_metrics.items()
        if name.startswith(prefix) and name not in ("val/score", "train/learning_rate")
    }


def progress() -> Callback:
    """The bar on a terminal, plain lines elsewhere."""
    return Bar() if sys.stdout.isatty() else Lines()
