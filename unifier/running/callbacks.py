"""What happens beside the training steps: figures are logged, progress is shown, Ctrl-C is heard."""

import signal
import sys
import time
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, RichProgressBar

from unifier.model import Unifier


class Interrupted(Exception):  # noqa: N818  it is no error
    """The user asked a run to stop; its last checkpoint is whole. Says the run's folder."""


@final
class Interruption(Callback):
    """Ctrl-C or SIGTERM ends a run between two steps, so that its checkpoint is whole; a second one ends it at once."""

    def __init__(self, checkpoint: Path) -> None:
        """`checkpoint` is where the interrupted run's state is saved."""
        self.checkpoint = checkpoint
        self.asked = False
        self.before: dict[signal.Signals, Any] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        def ask(number: int, frame: Any) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            print("stopping after this step; once more to stop at once", file=sys.stderr)

        for which in (signal.SIGINT, signal.SIGTERM):
            self.before[which] = signal.signal(which, ask)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        for which, handler in self.before.items():
            signal.signal(which, handler)
        self.before = {}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._stop(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._stop(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        if self.asked:
            trainer.save_checkpoint(self.checkpoint)
            raise Interrupted(trainer.default_root_dir)


@final
class Losses(Callback):
    """Logs each arm's mean training loss, and the learning rate, about a hundred times a run."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Unifier)
        done, total = trainer.global_step, pl_module.total_steps
        if done % max(total // 100, 1) and done != total:
            return
        row = {f"train/{arm}/loss": torch.stack(kept).mean().item() for arm, kept in pl_module.losses.items() if kept}
        for kept in pl_module.losses.values():
            kept.clear()
        row["train/learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in row.items()})
        assert trainer.logger is not None
        trainer.logger.log_metrics(row, done)


@final
class Lines(Callback):
    """Progress where there is no terminal: a line every few seconds, and one for each validation."""

    def __init__(self, every: float = 15.0) -> None:
        self.every, self.last = every, time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self.last > self.every:
            self._say(trainer, pl_module, "train/", "")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._say(trainer, pl_module, "val/", "validation: ")

    def _say(self, trainer: pl.Trainer, pl_module: pl.LightningModule, prefix: str, said: str) -> None:
        assert isinstance(pl_module, Unifier)
        self.last = time.monotonic()
        shown = {
            name.removeprefix(prefix): float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith(prefix) and name not in ("val/score", "train/learning_rate")
        }
        figures = "  ".join(f"{name} {value:.3f}" for name, value in shown.items())
        ledger = pl_module.ledger
        speed = ledger.tokens / max(ledger.seconds, 1e-9)
        step = f"step {trainer.global_step}/{pl_module.total_steps}"
        print(f"  {step}  {ledger.seconds:.0f} s  {speed:,.0f} tokens/s  {said}{figures}", flush=True)


def progress() -> Callback:
    """Lightning's rich progress bar on a terminal, plain lines elsewhere."""
    return RichProgressBar() if sys.stdout.isatty() else Lines()
