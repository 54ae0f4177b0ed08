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
from benchmarks.racing.contest import Compiled, Contestant, Role, Workload
from unifier.study.experiment import Precision


class Labelled(NamedTuple):
    """A batch as peers take it."""

    pictures: Tensor
    """(B, channels, height, width), normalised."""
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
    """(B, channels, height, width) -> (B, C); transformers wraps it."""
    answer = model(pictures)
    return answer if isinstance(answer, Tensor) else answer.logits


def _loss(model: nn.Module, batch: Labelled) -> Tensor:
    return functional.cross_entropy(logits(model, batch.pictures).float(), batch.labels)


def build(
    peer: Peer,
    shape: Shape,
    batches: Callable[[Shape], list[Labelled]],
    plain: bool,
    compiled: Compiled | None,
    precision: Precision,
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
    units = shape.batch * shape.steps
    return training(model, _loss, ready, shape.device, precision, compiled=compiled, units=units, outputs=outputs)


def contestant(
    peer: Peer,
    how: str,
    shape: Shape,
    batches: Callable[[Shape], list[Labelled]],
    role: Role,
    precision: Precision = "bf16",
    *,
    plain: bool = False,
    compiled: Compiled | None = None,
) -> Contestant:
    """A peer, and how it is entered: what comes after its name."""
    made = partial(build, peer, shape, batches, plain, compiled)
    return Contestant(peer.name + how, role, precision, peer.library, made, compiled is not None)


def contestants(peers: list[Peer], shape: Shape, batches: Callable[[Shape], list[Labelled]]) -> tuple[Contestant, ...]:
    """Every peer as it comes, in float32, and with the best of its settings."""
    found: list[Contestant] = []
    for peer in peers:
        found.append(contestant(peer, "", shape, batches, "as it comes"))
        plain = ", plain attention" if peer.choice else ""
        if peer.choice:
            found.append(contestant(peer, plain, shape, batches, "best", plain=True))
        if peer.compiled:
            how = f"{plain}, compiled"
            found.append(contestant(peer, how, shape, batches, "best", plain=peer.choice, compiled="model"))
        found.append(contestant(peer, "", shape, batches, "float32", "float32"))
    return tuple(found)
