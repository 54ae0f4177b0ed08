"""Peers: how anyone's torch model is stepped here, with the same optimizer, clipping and precision as ours."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from benchmarks.racing.contest import CLIP, LEARNING_RATE, Workload, autocast
from unifier.study.experiment import Precision

B = TypeVar("B")


def training(
    model: nn.Module,
    loss: Callable[[nn.Module, B], Tensor],
    batches: Sequence[B],
    precision: Precision,
    *,
    compiled: bool = False,
    units: float,
    outputs: Tensor | None,
) -> Workload:
    """A round of training steps, one for each batch."""
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01, fused=True
    )
    run: nn.Module = torch.compile(model) if compiled else model  # pyright: ignore[reportAssignmentType]

    def work() -> None:
        for batch in batches:
            with autocast(precision):
                value = loss(run, batch)
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()

    return Workload(work, units, outputs)
