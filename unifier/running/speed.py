"""Where the time of training went, and what share of the machine was used."""

import time
from functools import lru_cache
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from unifier.data.loading import TrainingBatches
from unifier.model import Unifier


@lru_cache
def peak_flops(device: str, dtype: torch.dtype) -> float:
    """Operations a second that this machine reaches in one large matrix product: the best of five."""
    side = 1024 if device == "cpu" else 8192
    factors = torch.ones(2, side, side, dtype=dtype, device=device)
    seconds: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        (factors[0] @ factors[1])[0, 0].item()
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds[1:])


@final
class Speed(Callback):
    """Times training, validations left out.

    On an accelerator, whose work goes on behind the program's back, only the whole is exact.
    """

    def __init__(self, batches: TrainingBatches, peak: float) -> None:
        """`peak` is what the machine could do, in operations a second."""
        self.batches, self.peak = batches, peak
        self.began = self.paused = 0.0, 0.0
        self.pause: tuple[float, float] | None = None
        """The clocks when training stopped for a validation, until it goes on."""
        self.found: dict[str, float] = {}
        """What result.json holds under "speed", once trained."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        self.began = self._clocks()
        self.before = pl_module.ledger.read()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.pause = self._clocks()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._resume()  # a validation's checkpoints are written after its end

    def _clocks(self) -> tuple[float, float]:
        """The time, and that spent putting batches together."""
        return time.perf_counter(), self.batches.seconds

    def _resume(self) -> None:
        if self.pause is not None:
            (now, built), (then, before) = self._clocks(), self.pause
            self.paused = self.paused[0] + now - then, self.paused[1] + built - before
            self.pause = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        self._resume()
        whole, waiting = (
            now - began - paused for now, began, paused in zip(self._clocks(), self.began, self.paused, strict=True)
        )
        spent = {name: value - self.before[name] for name, value in pl_module.ledger.read().items()}
        self.found = {
            "tokens_per_second": spent["tokens"] / whole,
            "flops_per_second": spent["flops"] / whole,
            "peak_flops_per_second": self.peak,
            "mfu": spent["flops"] / whole / self.peak,
            "share_waiting_for_data": waiting / whole,
            "share_outside_steps": 1 - pl_module.seconds_in_steps / whole,
        }
