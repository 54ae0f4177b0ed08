"""The peers' side of a contest in training a classifier of pictures."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.contests.peers import training
from benchmarks.models.copying import State, fill, read
from benchmarks.models.encoders import Shape
from benchmarks.racing.contest import Contestant, Role, Workload
from unifier.study.experiment import Precision


class Labelled(NamedTuple):
    """A batch as peers take it."""

    pictures: Tensor
    """(B, 1, height, width), normalised."""
    labels: Tensor
    """(B,)."""


@final
class Peer(NamedTuple):
    """A library's model."""

    name: str
    library: str
    build: Callable[[Shape, bool], nn.Module]
    weights: Callable[[State, Shape], State] | None
    """Ours under its names; None where it computes something else, and only its work is the same."""
    choice: bool
    """Whether attention can be written out."""
    compiled: bool
    """Whether it is also raced compiled."""


def logits(model: nn.Module, pictures: Tensor) -> Tensor:
    """(B, 1, height, width) -> (B, C); transformers wraps it."""
    answer = model(pictures)
    return answer if isinstance(answer, Tensor) else answer.logits


def _loss(model: nn.Module, batch: Labelled) -> Tensor:
    return functional.cross_entropy(logits(model, batch.pictures).float(), batch.labels)


def build(
    peer: Peer,
    shape: Shape,
    batches: Callable[[Shape], list[Labelled]],
    precision: Precision,
    plain: bool,
    compiled: bool,
    weights: Path,
) -> Workload:
    """One peer in one precision, with a copy of our weights."""
    model = peer.build(shape, plain)
    ready = batches(shape)
    outputs = None
    if peer.weights is not None:
        fill(model, peer.weights(read(weights), shape))
        with torch.no_grad():
            outputs = logits(model.eval(), ready[0].pictures)
    return training(model, _loss, ready, precision, compiled=compiled, units=shape.batch * shape.steps, outputs=outputs)


def contestants(peers: list[Peer], shape: Shape, batches: Callable[[Shape], list[Labelled]]) -> tuple[Contestant, ...]:
    """Every peer as it comes, in float32, and with the best of its settings."""
    found: list[Contestant] = []

    def enter(
        peer: Peer, name: str, role: Role, precision: Precision, plain: bool = False, compiled: bool = False
    ) -> None:
        made = partial(build, peer, shape, batches, precision, plain, compiled)
        found.append(Contestant(name, role, precision, peer.library, made, compiled))

    for peer in peers:
        enter(peer, peer.name, "as it comes", "bf16")
        if peer.choice:
            enter(peer, f"{peer.name}, plain attention", "best", "bf16", plain=True)
        if peer.compiled:
            name = f"{peer.name}, plain attention, compiled" if peer.choice else f"{peer.name}, compiled"
            enter(peer, name, "best", "bf16", plain=peer.choice, compiled=True)
        enter(peer, peer.name, "float32", "float32")
    return tuple(found)
