"""Averages of the weights, which are scored and kept in place of the latest ones."""

from collections import deque
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


@final
class Averaging(Callback):
    """Validations and checkpoints take a mean of the weights, and training goes on from the weights themselves.

    The mean is exponential, or that of the last few validations' weights (Vaswani et al. 2017, section 6.1).
    Lightning's own callback copies the whole module, its data too; this one holds what is trained alone.
    """

    def __init__(self, *, decay: float = 0.0, validations: int = 1) -> None:
        """A `decay` of 0 averages the weights of the last `validations`."""
        self.decay = decay
        self.steps = 0
        self.mean: list[Tensor] = []
        self.past: deque[list[Tensor]] = deque(maxlen=validations)
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
            put(self.own, pl_module)
            self.own = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        if not self.decay or trainer.global_step == self.steps:
            return
        self.steps = trainer.global_step
        if not self.mean:
            self.mean = copies(trained(pl_module))
        # The first weights are forgotten fast, or a short run's mean would stay near them.
        decay = min(self.decay, self.steps / (self.steps + 9))
        get_ema_multi_avg_fn(decay)(self.mean, trained(pl_module), self.steps)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self.own = copies(trained(pl_module))
        if not self.decay:
            self.past.append(self.own)
        past = self.past if not self.decay else [self.mean or self.own]  # a validation may come before the first step
        put([torch.stack(same).mean(0) for same in zip(*past, strict=True)], pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "mean": self.mean, "past": list(self.past), "own": self.own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.mean, self.own = (state_dict[name] for name in ("steps", "mean", "own"))
        self.past.extend(state_dict["past"])


def trained(module: nn.Module) -> list[Tensor]:
    """The weights that training changes."""
    return [weight.detach() for weight in module.parameters() if weight.requires_grad]


def copies(weights: list[Tensor]) -> list[Tensor]:
    """The weights as they are now."""
    return [weight.clone() for weight in weights]


def put(weights: list[Tensor], module: nn.Module) -> None:
    """Give the module weights in the order of `trained`."""
    for own, weight in zip(trained(module), weights, strict=True):
        own.copy_(weight)
