"""Classes of pictures: patches in, a label out."""

import math
from collections.abc import Iterator
from typing import Any

from unifier.augmentation.image import augment_images, image_tta
from unifier.data.source import BadExamples, readable_examples
from unifier.data.statistics import median_side
from unifier.datasets.factory import create_image_dataset
from unifier.experiment import (
    CompileMode,
    Experiment,
    OptimizerName,
    Precision,
    Schedule,
    Task,
    Training,
    fitted,
    sufficient_epochs,
)
from unifier.heads.classification import ClassificationHead, Pooling
from unifier.trunks.factory import Positions, create_trunk, input_positions
from unifier_tokenizers import InputError, PatchTokenizer
from unifier_tokenizers.stems import StemKind


def pictures(
    *,
    data: str = "embedded",
    fold: int | None = None,
    size: int = 64,
    patch: int | None = None,
    stem: StemKind | None = "pooled",
    pooling: Pooling = "mean",
    trunk: str = "transformer",
    positions: Positions = "learned",
    dim: int = 128,
    depth: int = 4,
    heads: int = 4,
    ffn_dim: int = 256,
    dropout: float = 0.1,
    drop_path: float = 0.0,
    label_smoothing: float = 0.0,
    crop: int | None = None,
    flip: bool = False,
    randaugment: int = 0,
    random_erasing: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    crops: int | None = None,
    epochs: float | None = None,
    tokens: int | None = None,
    batch_tokens: int = 4096,
    optimizer: OptimizerName = "muon",
    learning_rate: float = 5e-3,
    schedule: Schedule = "cosine",
    warmup_ratio: float = 0.1,
    weight_decay: float = 0.01,
    ema_decay: float = 0.0,
    num_validations: int = 8,
    refit: bool = False,
    precision: Precision = "bf16",
    compile: CompileMode | None = None,
    bad_examples: BadExamples = "stop",
) -> Experiment:
    """Classify `data`: "embedded" (8 x 8 digits), one of "mnist", "fashion_mnist", "cifar10", or a folder of your own.

    A folder of your own has a folder of pictures for each class, which are shrunk where a side is above `size` pixels;
    it may have folds.csv, of which `fold` is tested on. "cifar10_jpg" is a copy of CIFAR-10 that went through JPEG.
    `patch` is in pixels; None takes the power of 2 that cuts a `usual_side` into about eight, and at least 2. `stem`
    reads patches by convolutions over the picture, None by one linear map. `trunk` is a name that `make_trunk` knows,
    and takes of the settings those that it has. `crop` (None is an eighth of a picture's sides) to `cutmix` are what
    `augment_pictures` does to training pictures, and `crops` says how many views of each picture are averaged in
    validation and test (None is 5 where pictures are shifted in training, else 1). `epochs` are as many as
    `enough_epochs` says, and `tokens`, where given, end training in their place. `refit` trains on the validation split
    too, once settings are chosen on it.
    """
    source = create_image_dataset(data, fold=fold, size=size)

    def some() -> Iterator[Any]:
        return (
            example.input for example in readable_examples(source.split("train"), bad_examples=bad_examples, max_examples=2000)
        )

    def an_eighth() -> int:
        return 2 ** round(math.log2(max(median_side(source), 16) / 8))

    if (first := next(some(), None)) is None:
        raise InputError(f"{data}: none of the pictures to train on can be read")
    patch = fitted(f"{source.name}-patch", an_eighth) if patch is None else patch
    epochs = sufficient_epochs(source) if epochs is None else epochs
    tokenizer = PatchTokenizer(
        dim,
        patch=patch,
        channels=3 if first.ndim == 3 else 1,
        stem=stem,
        class_token=pooling == "first",
        positions=input_positions(positions),
        length=max(64, -(-size // max(patch, 1))),
        dropout=dropout,
    ).fit(some())
    head = ClassificationHead(source.labels, dim, pooling=pooling, label_smoothing=label_smoothing)
    augment = augment_images(
        tokenizer,
        len(source.labels),
        crop=crop,
        flip=flip,
        randaugment=randaugment,
        random_erasing=random_erasing,
        mixup=mixup,
        cutmix=cutmix,
    )
    crops = (1 if crop == 0 else 5) if crops is None else crops
    views = image_tta(tokenizer, crops, crop=crop, flip=flip)
    return Experiment(
        create_trunk(trunk, dim, depth, heads, ffn_dim, dropout, positions=positions, drop_path=drop_path),
        {source.name: Task(source, tokenizer, head, augmentation=augment, tta=views)},
        Training(
            epochs=epochs if tokens is None else None,
            tokens=tokens,
            batch_tokens=batch_tokens,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup_ratio=warmup_ratio,
            weight_decay=weight_decay,
            ema_decay=ema_decay,
            num_validations=num_validations,
            refit=refit,
            precision=precision,
            compile=compile,
            bad_examples=bad_examples,
        ),
        name="pictures",
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
