"""Variants of peers that train a classifier of pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cases.peers import peer_training
from benchmarks.models.encoders import Shape
from benchmarks.models.weights import State, copy_weights, load_state
from benchmarks.runner.case import Compiled, Role, Variant, Workload
from unifier.experiment import Precision


class LabeledBatch(NamedTuple):
    """A batch for peers."""

    pictures: Tensor
    """(B, channels, height, width), normalized."""
    labels: Tensor
    """(B,)."""


BatchesFn = Callable[[Shape], list[LabeledBatch]]


@final
class ClassifierPeer(NamedTuple):
    """A library's classifier and its settings."""

    name: str
    library: str
    create: Callable[[Shape], nn.Module]
    convert: Callable[[State, Shape], State] | None
    """Converts our weights to the peer's names; None if the peer computes another function with the same work."""
    compiled: Compiled | None = None

    def with_compile(self, part: Compiled = "model") -> "ClassifierPeer":
        """Return the same peer, compiled."""
        return self._replace(name=f"{self.name}, compiled", compiled=part)


def classifier_variants(
    peers: Sequence[Sequence[ClassifierPeer]], shape: Shape, create_batches: BatchesFn
) -> tuple[Variant, ...]:
    """Return each peer with its default settings, tuned, and with its default settings in float32.

    Args:
        peers: Groups that contain a peer with its default settings, followed by its tuned settings.
        shape: Sizes of pictures, model and batches.
        create_batches: Creates the batches of a round.
    """
    create = partial(classifier_variant, shape=shape, create_batches=create_batches)
    variants: list[Variant] = []
    for peer, *tuned in peers:
        variants += [create(peer, "default"), *(create(setting, "tuned") for setting in tuned)]
        variants.append(create(peer, "float32", "float32"))
    return tuple(variants)


def classifier_variant(
    peer: ClassifierPeer, role: Role, precision: Precision = "bf16", *, shape: Shape, create_batches: BatchesFn
) -> Variant:
    """Return a variant of one peer."""
    build = partial(_build_classifier, peer, shape, create_batches)
    return Variant(peer.name, role, precision, peer.library, build, peer.compiled is not None)


def _build_classifier(
    peer: ClassifierPeer, shape: Shape, create_batches: BatchesFn, precision: Precision, weights: Path
) -> Workload:
    """Build a peer with a copy of our weights."""
    model = peer.create(shape)
    batches = create_batches(shape)
    outputs = None
    if peer.convert is not None:
        copy_weights(model, peer.convert(load_state(weights), shape))
        with torch.no_grad():
            outputs = _logits(model.eval(), batches[0].pictures)
    units = shape.batch * shape.steps
    return peer_training(
        model, _loss, batches, shape.device, precision, compiled=peer.compiled, units=units, outputs=outputs
    )


def _loss(model: nn.Module, batch: LabeledBatch) -> Tensor:
    return functional.cross_entropy(_logits(model, batch.pictures).float(), batch.labels)


def _logits(model: nn.Module, pictures: Tensor) -> Tensor:
    """Compute the logits (B, classes) of pictures (B, channels, height, width)."""
    outputs = model(pictures)
    # transformers returns an object with the logits as an attribute.
    return outputs if isinstance(outputs, Tensor) else outputs.logits
