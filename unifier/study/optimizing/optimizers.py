"""AdamW, and Muon with AdamW for what it does not take."""

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from unifier.study.experiment import Training
from unifier.study.optimizing.muon import Muon
from unifier.trunks.layers import Block


def make_optimizer(training: Training, model: nn.Module, trunk: nn.Module) -> Optimizer:
    """The optimizer of all that learns in a model; weight decay is for matrices only.

    With "muon" the matrices of the trunk and of other blocks are Muon's, and the rest AdamW's (Jordan et al. 2024), at
    one learning rate for both.
    """
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = set[nn.Parameter]()
    if training.optimizer == "muon":
        parts = [trunk, *(part for part in model.modules() if isinstance(part, Block))]
        hidden = {parameter for part in parts for parameter in part.parameters() if parameter.ndim == 2}
    groups = [
        {"params": [p for p in learned if p.ndim >= 2 and p not in hidden], "weight_decay": training.weight_decay},
        {"params": [p for p in learned if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = AdamW(groups, lr=training.learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=True)
    matrices = [parameter for parameter in learned if parameter in hidden]
    if not matrices:
        return adamw
    return Both(Muon(matrices, lr=training.learning_rate, weight_decay=training.weight_decay), adamw)


def make_schedule(training: Training, optimizer: Optimizer, total: Callable[[], int]) -> LambdaLR:
    """The learning rate of each step, of so many in `total` as is known by then."""
    return LambdaLR(optimizer, lambda step: learning_rate_share(training, step, total()))


def learning_rate_share(training: Training, step: int, total: int) -> float:
    """The learning rate of a step, counted from 0, as a share of the highest one: warm-up, then the schedule."""
    warm = max(round(training.warmup * total), 1)
    if step < warm:
        return (step + 1) / warm
    if training.schedule == "cosine":
        return (1 + math.cos(math.pi * (step - warm) / max(total - warm, 1))) / 2
    return math.sqrt(warm / (step + 1)) if training.schedule == "inverse_sqrt" else 1.0


@final
class Both(Optimizer):
    """Two optimizers of different parameters as one, for a schedule and a checkpoint of both."""

    def __init__(self, *parts: Optimizer) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, kept in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(kept)
        self.param_groups = [group for part in self.parts for group in part.param_groups]
