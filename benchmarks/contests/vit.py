"""Training a vision transformer on pictures: of 28 x 28, and of any other size."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.contests import classifying
from benchmarks.contests.classifying import Labeled, Peer, compiled
from benchmarks.models import encoder_weights, encoders
from benchmarks.models.encoders import Shape
from benchmarks.racing.agreement import far_apart
from benchmarks.racing.contest import SEED, Contest, Workload, ours, with_memory_kept
from benchmarks.racing.peak import peaks
from unifier.experiment import Precision

SHAPE = Shape(
    height=28,
    width=28,
    patch=(4, 4),
    class_token=True,
    dim=192,
    depth=6,
    heads=3,
    hidden=768,
    classes=10,
    batch=128,
    steps=4,
)
MEAN, STD = 0.5, 0.25
"""The tokenizer's, before it is fitted."""

TIMM = Peer("timm", "timm.models.vision_transformer", encoders.timm_vit, encoder_weights.for_timm)
TIMM_PLAIN = TIMM._replace(name=f"{TIMM.name}, plain attention", build=partial(encoders.timm_vit, plain=True))
TRANSFORMERS = Peer(
    "transformers",
    "transformers.models.vit.modeling_vit",
    encoders.transformers_vit,
    encoder_weights.for_transformers,
)
TRANSFORMERS_PLAIN = TRANSFORMERS._replace(
    name=f"{TRANSFORMERS.name}, plain attention", build=partial(encoders.transformers_vit, plain=True)
)
# Its patches pass two norms and its head reads the mean of all columns: the same work, and other numbers.
X = Peer("x-transformers", "x_transformers", encoders.x_pictures, None)
TORCH = Peer("torch.nn", "torch", encoders.TorchClassifier, encoder_weights.for_torch)

PEERS = (
    (TIMM, TIMM_PLAIN, compiled(TIMM_PLAIN)),
    (TRANSFORMERS, TRANSFORMERS_PLAIN, compiled(TRANSFORMERS_PLAIN)),
    (X, compiled(X)),
    (TORCH,),
)


def pictures(shape: Shape) -> tuple[Tensor, Tensor]:
    """Noise as uint8 (pictures, channels, height, width), and labels (pictures,)."""
    generator = torch.Generator().manual_seed(SEED)
    count = shape.batch * shape.steps
    size = (count, shape.channels, shape.height, shape.width)
    noise = torch.randint(256, size, dtype=torch.uint8, generator=generator)
    return noise, torch.randint(shape.classes, (count,), generator=generator)


def batches(shape: Shape) -> list[Labeled]:
    """For the peers, normalized beforehand."""
    noise, labels = pictures(shape)
    normal = (noise / 255 - MEAN) / STD
    return [Labeled(*pair) for pair in zip(normal.split(shape.batch), labels.split(shape.batch), strict=True)]


def unifier(shape: Shape, precision: Precision, weights: Path, *, compiled: bool = False) -> Workload:
    """Through our tokenizer, trunk and head."""
    from benchmarks.contests.ours import classifier
    from unifier_tokenizers import PatchTokenizer

    torch.manual_seed(SEED)
    side = shape.patch[0]
    tokenizer = PatchTokenizer(
        shape.dim, patch=side, channels=shape.channels, class_token=True, length=shape.height // side
    )
    noise, labels = pictures(shape)
    units = [tokenizer.encode(picture) for picture in noise.permute(0, 2, 3, 1)]
    return classifier(tokenizer, units, list(labels), shape, precision, weights, compiled=compiled)


def contest(shape: Shape = SHAPE) -> Contest:
    return Contest(
        "vit",
        "train",
        "Training a vision transformer on 28 x 28 pictures",
        "pictures",
        (
            *ours(partial(unifier, shape), "bf16", "float32"),
            *ours(partial(unifier, shape, compiled=True), "bf16", compiled=True),
            *with_memory_kept(classifying.contestants(PEERS, shape, batches), "timm, plain attention, compiled"),
            *peaks("cpu", "bf16", "float32"),
        ),
        far_apart,
    )
