"""Peers: how anyone's torch model is stepped here, with the same optimizer, clipping and precision as ours."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.racing.contest import CLIP, LEARNING_RATE, Compiled, Workload, autocast
from benchmarks.racing.device import Device, sent
from unifier.experiment import Precision

B = TypeVar("B", bound=NamedTuple)


def training(
    model: nn.Module,
    loss: Callable[[nn.Module, B], Tensor],
    batches: Sequence[B],
    device: Device,
    precision: Precision,
    *,
    compiled: Compiled | None = None,
    units: float,
    outputs: Tensor | None,
) -> Workload:
    """A round of training steps on a device, one for each batch.

    A compiler meets all shapes of batches in the first round, before anything is timed: at the second shape it compiles
    once more, for any, and the same for everybody.
    """
    model.to(device).train()
    ready = [sent(batch, device) for batch in batches]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01, fused=True
    )
    run: nn.Module = torch.compile(model) if compiled == "model" else model  # pyright: ignore[reportAssignmentType]
    value_of = torch.compile(loss) if compiled == "loss" else loss

    def work() -> None:
        for batch in ready:
            with autocast(device, precision):
                value = value_of(run, batch)
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()

    return Workload(work, units, outputs)
