"""The case that trains a classifier on long spectrograms, with one token per frame."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases import vit
from benchmarks.cases.classification import LabeledBatch, classifier_variants
from benchmarks.models import encoder_weights, encoders
from benchmarks.models.encoders import Shape
from benchmarks.runner.case import SEED, Case, Workload, our_variants, with_our_allocator
from benchmarks.runner.peak import peak_variants
from benchmarks.runner.tolerance import number_mismatch
from unifier.experiment import Precision

SHAPE = Shape(
    height=64,
    width=500,
    patch=(64, 1),
    class_token=False,
    dim=192,
    depth=4,
    heads=3,
    ffn_dim=768,
    classes=10,
    batch=16,
    steps=4,
)
MEAN, STD = -4.0, 4.0
"""The mean and standard deviation of our tokenizer before `fit`."""

_timm, _transformers, _x_transformers, _torch = vit.PEERS
PEERS = (
    _timm,
    # Outputs are not compared, because the ViT of transformers always has a class token.
    [peer._replace(convert=None) for peer in _transformers],
    [
        peer._replace(create=encoders.XTransformersFrames, convert=encoder_weights.convert_for_x_transformers)
        for peer in _x_transformers
    ],
    _torch,
)


def spectrogram_case(shape: Shape = SHAPE) -> Case:
    """Create the case that trains a classifier on spectrograms."""
    return Case(
        "spectrogram",
        "train",
        "Training a classifier of spectrograms of 500 frames",
        "clips",
        (
            *our_variants(partial(_build_ours, shape), "bf16", "float32"),
            *our_variants(partial(_build_ours, shape, compiled=True), "bf16", compiled=True),
            *with_our_allocator(
                classifier_variants(PEERS, shape, normalized_spectrograms), "timm, plain attention, compiled"
            ),
            *peak_variants("cpu", "bf16", "float32"),
        ),
        number_mismatch,
    )


def random_spectrograms(shape: Shape) -> tuple[Tensor, Tensor]:
    """Create random log-mel spectrograms (clips, bands, frames) and random labels (clips,)."""
    generator = torch.Generator().manual_seed(SEED)
    count = shape.batch * shape.steps
    noise = MEAN + STD * torch.randn(count, shape.height, shape.width, generator=generator)
    return noise, torch.randint(shape.classes, (count,), generator=generator)


def normalized_spectrograms(shape: Shape) -> list[LabeledBatch]:
    """Create the batches of the peers. A spectrogram is a normalized picture with one channel."""
    noise, labels = random_spectrograms(shape)
    normalized = (noise[:, None] - MEAN) / STD
    return [LabeledBatch(*pair) for pair in zip(normalized.split(shape.batch), labels.split(shape.batch), strict=True)]


def _build_ours(shape: Shape, precision: Precision, weights: Path, *, compiled: bool = False) -> Workload:
    """Build the training of our classifier on random spectrograms."""
    from benchmarks.cases.ours import build_our_classifier
    from unifier_tokenizers import FrameTokenizer, Units

    torch.manual_seed(SEED)
    tokenizer = FrameTokenizer(shape.dim, n_mels=shape.height, positions="learned", length=shape.width)
    noise, labels = random_spectrograms(shape)
    frames = torch.arange(shape.width)[None]
    units = [Units(spectrogram, frames) for spectrogram in noise]
    return build_our_classifier(
        tokenizer, units, list(labels), shape, precision, weights, compiled=compiled, all_biases=False
    )
