"""The case that trains a vision transformer."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases.classification import ClassifierPeer, LabeledBatch, classifier_variants
from benchmarks.models import encoder_weights, encoders
from benchmarks.models.encoders import Shape
from benchmarks.runner.case import SEED, Case, Workload, our_variants, with_our_allocator
from benchmarks.runner.peak import peak_variants
from benchmarks.runner.tolerance import number_mismatch
from unifier.experiment import Precision

SHAPE = Shape(
    height=28,
    width=28,
    patch=(4, 4),
    class_token=True,
    dim=192,
    depth=6,
    heads=3,
    ffn_dim=768,
    classes=10,
    batch=128,
    steps=4,
)
MEAN, STD = 0.5, 0.25
"""The mean and standard deviation of our tokenizer before `fit`."""

TIMM = ClassifierPeer(
    "timm", "timm.models.vision_transformer", encoders.create_timm_vit, encoder_weights.convert_for_timm
)
TIMM_PLAIN = TIMM._replace(name=f"{TIMM.name}, plain attention", create=partial(encoders.create_timm_vit, plain=True))
TRANSFORMERS = ClassifierPeer(
    "transformers",
    "transformers.models.vit.modeling_vit",
    encoders.create_transformers_vit,
    encoder_weights.convert_for_transformers,
)
TRANSFORMERS_PLAIN = TRANSFORMERS._replace(
    name=f"{TRANSFORMERS.name}, plain attention", create=partial(encoders.create_transformers_vit, plain=True)
)
# Outputs are not compared, because x-transformers normalizes patches twice and averages all tokens.
X_TRANSFORMERS = ClassifierPeer("x-transformers", "x_transformers", encoders.create_x_transformers_vit, None)
TORCH = ClassifierPeer("torch.nn", "torch", encoders.TorchClassifier, encoder_weights.convert_for_torch)

PEERS = (
    (TIMM, TIMM_PLAIN, TIMM_PLAIN.with_compile()),
    (TRANSFORMERS, TRANSFORMERS_PLAIN, TRANSFORMERS_PLAIN.with_compile()),
    (X_TRANSFORMERS, X_TRANSFORMERS.with_compile()),
    (TORCH,),
)


def vit_case(shape: Shape = SHAPE) -> Case:
    """Create the case that trains a small vision transformer."""
    return Case(
        "vit",
        "train",
        "Training a vision transformer on 28 x 28 pictures",
        "pictures",
        (
            *our_variants(partial(build_our_vit, shape), "bf16", "float32"),
            *our_variants(partial(build_our_vit, shape, compiled=True), "bf16", compiled=True),
            *with_our_allocator(
                classifier_variants(PEERS, shape, normalized_pictures), "timm, plain attention, compiled"
            ),
            *peak_variants("cpu", "bf16", "float32"),
        ),
        number_mismatch,
    )


def random_pictures(shape: Shape) -> tuple[Tensor, Tensor]:
    """Create random uint8 pictures (count, channels, height, width) and random labels (count,)."""
    generator = torch.Generator().manual_seed(SEED)
    count = shape.batch * shape.steps
    size = (count, shape.channels, shape.height, shape.width)
    pictures = torch.randint(256, size, dtype=torch.uint8, generator=generator)
    return pictures, torch.randint(shape.classes, (count,), generator=generator)


def normalized_pictures(shape: Shape) -> list[LabeledBatch]:
    """Create the batches of the peers, with normalized pictures."""
    pictures, labels = random_pictures(shape)
    normalized = (pictures / 255 - MEAN) / STD
    return [LabeledBatch(*pair) for pair in zip(normalized.split(shape.batch), labels.split(shape.batch), strict=True)]


def build_our_vit(shape: Shape, precision: Precision, weights: Path, *, compiled: bool = False) -> Workload:
    """Build the training of our vision transformer."""
    from benchmarks.cases.ours import build_our_classifier
    from unifier_tokenizers import PatchTokenizer

    torch.manual_seed(SEED)
    side = shape.patch[0]
    tokenizer = PatchTokenizer(
        shape.dim, patch=side, channels=shape.channels, class_token=True, length=shape.height // side
    )
    pictures, labels = random_pictures(shape)
    units = [tokenizer.encode(picture) for picture in pictures.permute(0, 2, 3, 1)]
    return build_our_classifier(tokenizer, units, list(labels), shape, precision, weights, compiled=compiled)
