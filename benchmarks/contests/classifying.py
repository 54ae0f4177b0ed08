"""The peers' side of a contest in training a classifier of pictures."""

from collections.abc import Callable, Sequence
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
from unifier.experiment import Precision


class Labeled(NamedTuple):
    """A batch as peers take it."""

    pictures: Tensor
    """(B, channels, height, width), normalized."""
    labels: Tensor
    """(B,)."""


@final
class Peer(NamedTuple):
    """A library's model, and how it is raced."""

    name: str
    library: str
    build: Callable[[Shape], nn.Module]
    weights: Callable[[State, Shape], State] | None
    """Ours under its names; None where it computes something else, and only its work is the same."""
    compiled: Compiled | None = None


def compiled(peer: Peer, what: Compiled = "model") -> Peer:
    """The same, compiled."""
    return peer._replace(name=f"{peer.name}, compiled", compiled=what)


def logits(model: nn.Module, pictures: Tensor) -> Tensor:
    """(B, channels, height, width) -> (B, C); transformers wraps it."""
    answer = model(pictures)
    return answer if isinstance(answer, Tensor) else answer.logits


def _loss(model: nn.Module, batch: Labeled) -> Tensor:
    return functional.cross_entropy(logits(model, batch.pictures).float(), batch.labels)


def build(
    peer: Peer,
    shape: Shape,
    batches: Callable[[Shape], list[Labeled]],
    precision: Precision,
    weights: Path,
) -> Workload:
    """One peer in one precision, with a copy of our weights."""
    model = peer.build(shape)
    ready = batches(shape)
    outputs = None
    if peer.weights is not None:
        fill(model, peer.weights(read(weights), shape))
        with torch.no_grad():
            outputs = logits(model.eval(), ready[0].pictures)
    units = shape.batch * shape.steps
    return training(model, _loss, ready, shape.device, precision, compiled=peer.compiled, units=units, outputs=outputs)


def contestant(
    peer: Peer,
    role: Role,
    precision: Precision = "bf16",
    *,
    shape: Shape,
    batches: Callable[[Shape], list[Labeled]],
) -> Contestant:
    """A peer in one role."""
    made = partial(build, peer, shape, batches)
    return Contestant(peer.name, role, precision, peer.library, made, peer.compiled is not None)


def contestants(
    peers: Sequence[Sequence[Peer]], shape: Shape, batches: Callable[[Shape], list[Labeled]]
) -> tuple[Contestant, ...]:
    """Every peer as it comes, with the best of its settings, which stand after it, and in float32."""
    enter = partial(contestant, shape=shape, batches=batches)
    found: list[Contestant] = []
    for peer, *best in peers:
        found += [enter(peer, "as it comes"), *(enter(one, "best") for one in best), enter(peer, "float32", "float32")]
    return tuple(found)
