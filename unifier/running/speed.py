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
        self.start = self.paused = 0.0
        self.pause: float | None = None
        """When training stopped for a validation, until it goes on."""
        self.found: dict[str, float] = {}
        """What result.json holds under "speed", once trained."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        self.start = time.perf_counter()
        self.before = pl_module.ledger.read()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.pause = time.perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._resume()  # a validation's checkpoints are written after its end

    def _resume(self) -> None:
        if self.pause is not None:
            self.paused += time.perf_counter() - self.pause
            self.pause = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        self._resume()
        whole = time.perf_counter() - self.start - self.paused
        spent = {name: value - self.before[name] for name, value in pl_module.ledger.read().items()}
        self.found = {
            "tokens_per_second": spent["tokens"] / whole,
            "flops_per_second": spent["flops"] / whole,
            "peak_flops_per_second": self.peak,
            "mfu": spent["flops"] / whole / self.peak,
            "share_waiting_for_data": self.batches.seconds / whole,
            "share_outside_steps": 1 - pl_module.seconds_in_steps / whole,
        }
