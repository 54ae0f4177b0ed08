"""Variants in which other libraries train an image classifier."""

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
    """A batch of normalized pictures and their labels."""

    pictures: Tensor
    """Normalized pictures (B, channels, height, width)."""
    labels: Tensor
    """Class indices (B,)."""


BatchesFn = Callable[[Shape], list[LabeledBatch]]


@final
class ClassifierPeer(NamedTuple):
    """The image classifier of another library, with its settings."""

    name: str
    library: str
    create: Callable[[Shape], nn.Module]
    convert: Callable[[State, Shape], State] | None
    """Function that converts our weights to the peer's names. None if the peer's architecture differs from ours."""
    compiled: Compiled | None = None

    def with_compile(self, part: Compiled = "model") -> "ClassifierPeer":
        """Return a copy of the peer with compilation."""
        return self._replace(name=f"{self.name}, compiled", compiled=part)


def classifier_variants(
    peers: Sequence[Sequence[ClassifierPeer]], shape: Shape, create_batches: BatchesFn
) -> tuple[Variant, ...]:
    """Create the variants of each peer: default settings, tuned settings, and default settings in float32.

    Args:
        peers: One group per library. A peer with default settings is followed by peers with tuned settings.
        shape: Sizes of pictures, model and batches.
        create_batches: Function that creates the batches of a round.
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
    """Create the variant of one peer."""
    build = partial(_build_classifier, peer, shape, create_batches)
    return Variant(peer.name, role, precision, peer.library, build, peer.compiled is not None)


def _build_classifier(
    peer: ClassifierPeer, shape: Shape, create_batches: BatchesFn, precision: Precision, weights: Path
) -> Workload:
    """Build the training of a peer, with a copy of our weights if the architectures match."""
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
    # Models of the library transformers return an object with the attribute `logits`.
    return outputs if isinstance(outputs, Tensor) else outputs.logits
