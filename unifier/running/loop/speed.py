"""Where training time went, and the share of the machine's peak that was used."""

import time
from functools import lru_cache
from typing import final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from unifier.data.loading import TrainingBatches
from unifier.model import Unifier
from unifier.trunks.arithmetic.linear import product


@lru_cache
def peak_flops(device: str, dtype: torch.dtype) -> float:
    """Operations a second that this machine reaches in one large matrix product: the best of five."""
    side = 1024 if device == "cpu" else 8192
    generator = torch.Generator(device).manual_seed(0)  # training's own random numbers stay as they are
    factors = torch.randn(2, side, side, dtype=dtype, device=device, generator=generator)
    seconds: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        product(*factors)[0, 0].item()
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
        self.found: dict[str, float] = {}
        """What result.json holds under "speed", once trained."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        self.before = pl_module.ledger.all()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        spent = pl_module.ledger.all()
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
