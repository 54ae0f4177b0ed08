"""Training a classifier of long spectrograms, one column a frame."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.contests import classifying, vit
from benchmarks.contests.classifying import Labeled
from benchmarks.models import encoder_weights, encoders
from benchmarks.models.encoders import Shape
from benchmarks.racing.agreement import far_apart
from benchmarks.racing.contest import SEED, Contest, Workload, ours, with_memory_kept
from benchmarks.racing.peak import peaks
from unifier.experiment import Precision

SHAPE = Shape(
    height=64,
    width=500,
    patch=(64, 1),
    class_token=False,
    dim=192,
    depth=4,
    heads=3,
    hidden=768,
    classes=10,
    batch=16,
    steps=4,
)
MEAN, STD = -4.0, 4.0
"""The tokenizer's, before it is fitted."""

_timm, _transformers, _x, _torch = vit.PEERS
PEERS = (
    _timm,
    # Always with a class token: one column more, and the head reads that one.
    [peer._replace(weights=None) for peer in _transformers],
    [peer._replace(build=encoders.XColumns, weights=encoder_weights.for_x_columns) for peer in _x],
    _torch,
)


def spectrograms(shape: Shape) -> tuple[Tensor, Tensor]:
    """Noise as log-mel power (clips, bands, frames), and labels (clips,)."""
    generator = torch.Generator().manual_seed(SEED)
    count = shape.batch * shape.steps
    noise = MEAN + STD * torch.randn(count, shape.height, shape.width, generator=generator)
    return noise, torch.randint(shape.classes, (count,), generator=generator)


def batches(shape: Shape) -> list[Labeled]:
    """For the peers, as pictures, normalized beforehand."""
    noise, labels = spectrograms(shape)
    normal = (noise[:, None] - MEAN) / STD
    return [Labeled(*pair) for pair in zip(normal.split(shape.batch), labels.split(shape.batch), strict=True)]


def unifier(shape: Shape, precision: Precision, weights: Path, *, compiled: bool = False) -> Workload:
    """Through our tokenizer, trunk and head, from the spectrogram on."""
    from benchmarks.contests.ours import classifier
    from unifier_tokenizers import FrameTokenizer, Units

    torch.manual_seed(SEED)
    tokenizer = FrameTokenizer(shape.dim, n_mels=shape.height, positions="learned", length=shape.width)
    noise, labels = spectrograms(shape)
    frames = torch.arange(shape.width)[None]
    units = [Units(one, frames) for one in noise]
    return classifier(tokenizer, units, list(labels), shape, precision, weights, compiled=compiled, all_biases=False)


def contest(shape: Shape = SHAPE) -> Contest:
    return Contest(
        "spectrogram",
        "train",
        "Training a classifier of spectrograms of 500 frames",
        "clips",
        (
            *ours(partial(unifier, shape), "bf16", "float32"),
            *ours(partial(unifier, shape, compiled=True), "bf16", compiled=True),
            *with_memory_kept(classifying.contestants(PEERS, shape, batches), "timm, plain attention, compiled"),
            *peaks("cpu", "bf16", "float32"),
        ),
        far_apart,
    )
