"""Training of a torch model with the optimizer, gradient clipping and precision of our training."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.runner.case import GRAD_CLIP, LEARNING_RATE, Compiled, Workload, autocast
from benchmarks.runner.device import Device, move_batch
from unifier.experiment import Precision

BatchT = TypeVar("BatchT", bound=NamedTuple)


def peer_training(
    model: nn.Module,
    loss: Callable[[nn.Module, BatchT], Tensor],
    batches: Sequence[BatchT],
    device: Device,
    precision: Precision,
    *,
    compiled: Compiled | None = None,
    units: float,
    outputs: Tensor | None,
) -> Workload:
    """Create a workload that performs one training step per batch.

    The first round is not timed and contains all batch shapes. At the second batch shape, torch compiles again, with
    dynamic shapes.

    Args:
        model: The peer's model.
        loss: Function from the model and a batch to the loss.
        batches: The batches of a round.
        device: Device of the model and the batches.
        precision: Precision of the forward pass.
        compiled: The part of the peer that torch compiles, or None.
        units: Number of pictures or tokens per round.
        outputs: Outputs of the peer, for comparison with our outputs, or None.
    """
    model.to(device).train()
    moved_batches = [move_batch(batch, device) for batch in batches]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01, fused=True
    )
    forward: nn.Module = torch.compile(model) if compiled == "model" else model  # pyright: ignore[reportAssignmentType]
    compute_loss = torch.compile(loss) if compiled == "loss" else loss

    def run_round() -> None:
        for batch in moved_batches:
            with autocast(device, precision):
                value = compute_loss(forward, batch)
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
            optimizer.step()
            optimizer.zero_grad()

    return Workload(run_round, units, outputs)
