"""Muon for many small matrices: those of one shape are stepped together.

AdamW, and Muon with AdamW for what it does not take."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from unifier.experiment import Training
from unifier.nn.block import Block
from unifier.nn.precision import has_fast_bfloat16


@final
class Muon(torch.optim.Muon):
    """The steps of torch's Muon (Jordan et al. 2024), as long as AdamW's (Liu et al. 2025, section 2.2).

    torch orthogonalizes one matrix after another; here a batched product does so with all of one shape, which for
    matrices of 128 x 128 takes about half the time.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], *, lr: float, weight_decay: float) -> None:
        super().__init__(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  the gradients are found already
        """Make a step by the gradients there are."""
        for group in self.param_groups:
            alike = defaultdict[torch.Size, list[tuple[nn.Parameter, Tensor]]](list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    state = self.state[matrix]
                    if not state:
                        state["momentum_buffer"] = torch.zeros_like(matrix)
                    mean = state["momentum_buffer"]
                    mean.lerp_(matrix.grad, 1 - group["momentum"])
                    alike[matrix.shape].append((matrix, matrix.grad.lerp(mean, group["momentum"])))
            for shape, found in alike.items():
                matrices, ahead = zip(*found, strict=True)
                steps = orthogonalize(torch.stack(ahead), group["ns_coefficients"], group["ns_steps"], group["eps"])
                for matrix, step in zip(matrices, steps, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(step, alpha=-group["lr"] * 0.2 * max(shape) ** 0.5)


def orthogonalize(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Matrices (K, A, B), singular values brought near 1 by Newton and Schulz's iteration: (K, A, B).

    In bfloat16, as torch does, but where its products are slow: many times as slow as those of float32.
    """
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    dtype = torch.bfloat16 if has_fast_bfloat16(matrices.device.type) else torch.float32
    found = (matrices.mT if tall else matrices).to(dtype)
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.mT if tall else found


def create_optimizer(training: Training, model: nn.Module, trunk: nn.Module) -> Optimizer:
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
    return MuonWithAdamW(Muon(matrices, lr=training.learning_rate, weight_decay=training.weight_decay), adamw)


def create_schedule(training: Training, optimizer: Optimizer, total: Callable[[], int]) -> LambdaLR:
    """The learning rate of each step, of so many in `total` as is known by then."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(training, step, total()))


def learning_rate_factor(training: Training, step: int, total: int) -> float:
    """The learning rate of a step, counted from 0, as a share of the highest one: warm-up, then the schedule."""
    warm = max(round(training.warmup_ratio * total), 1)
    if step < warm:
        return (step + 1) / warm
    if training.schedule == "cosine":
        return (1 + math.cos(math.pi * (step - warm) / max(total - warm, 1))) / 2
    return math.sqrt(warm / (step + 1)) if training.schedule == "inverse_sqrt" else 1.0


@final
class MuonWithAdamW(Optimizer):
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
