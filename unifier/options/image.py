"""Settings of pictures: the tokenizer and the augmentation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from unifier.augmentation.image import augment_images, image_tta
from unifier.data.dataloader import Augmentation, TestTimeAugmentation
from unifier.data.packed import load_statistics
from unifier.data.source import BadExamples, LabeledSource, readable_examples
from unifier.data.statistics import median_side
from unifier.experiment import fitted
from unifier.heads.classification import Pooling
from unifier.options.trunk import TrunkConfig
from unifier_tokenizers import InputError, PatchTokenizer
from unifier_tokenizers.stems import StemKind

MAX_FITTED_IMAGES = 2000
"""The largest number of pictures for the pixels' mean and standard deviation, evenly spaced in the split."""
NUM_VIEWS = 5
"""The default number of views in validation and test if training shifts pictures."""


@final
@dataclass(frozen=True)
class ImageFrontend:
    """Settings of the tokenizer for pictures."""

    size: int = 64
    """Longest side of your own pictures, in pixels; larger pictures are shrunk."""
    patch: int | None = None
    """Side of a patch, in pixels; with None, a picture of median size is cut into about 8 x 8 patches."""
    stem: StemKind | None = "pooled"
    """Layers that read a patch: pooled or strided convolutions, or none for a single linear projection."""

    def build(
        self, source: LabeledSource, trunk: TrunkConfig, pooling: Pooling, bad_examples: BadExamples
    ) -> PatchTokenizer:
        """Create a tokenizer, and compute its normalization from the training split."""

        def pictures() -> Iterator[Any]:
            train = readable_examples(source.split("train"), bad_examples=bad_examples, max_examples=MAX_FITTED_IMAGES)
            return (example.input for example in train)

        first = next(pictures(), None)
        if first is None:
            raise InputError(
                f"{source.name}: no picture in the training split can be read; check the files of the data set"
            )
        patch = self.patch
        if patch is None:
            patch = fitted(
                f"{source.name}-patch", lambda: 2 ** round(math.log2(max(median_side(source), 16) / 8)), source
            )
        tokenizer = PatchTokenizer(
            trunk.dim,
            patch=patch,
            channels=3 if first.ndim == 3 else 1,
            stem=self.stem,
            class_token=pooling == "cls",
            positions=trunk.input_positions,
            length=max(64, -(-self.size // max(patch, 1))),
            dropout=trunk.dropout,
        )
        return tokenizer if load_statistics(tokenizer, source) else tokenizer.fit(pictures())


@final
@dataclass(frozen=True)
class ImageAugmentationConfig:
    """Settings for the random changes of training pictures, and for the views in validation and test."""

    crop: int | None = None
    """Largest random shift, in pixels; None means an eighth of each side, and 0 means no shift."""
    flip: bool = False
    """Mirror half of the pictures left to right."""
    randaugment: int = 0
    """Magnitude of RandAugment, from 1 to 9; 0 turns RandAugment off."""
    random_erasing: float = 0.0
    """Probability that a random rectangle of a picture is erased."""
    mixup: float = 0.0
    """Parameter alpha of mixup; 0 turns mixup off."""
    cutmix: float = 0.0
    """Parameter alpha of CutMix; 0 turns CutMix off."""
    num_crops: int | None = None
    """Number of views that validation and test average; None means 5 if training shifts pictures, else 1."""

    def build(self, tokenizer: PatchTokenizer, num_classes: int) -> Augmentation | None:
        """Create the augmentation of training batches. Return None if every change is turned off."""
        return augment_images(
            tokenizer,
            num_classes,
            crop=self.crop,
            flip=self.flip,
            randaugment=self.randaugment,
            random_erasing=self.random_erasing,
            mixup=self.mixup,
            cutmix=self.cutmix,
        )

    def tta(self, tokenizer: PatchTokenizer) -> TestTimeAugmentation | None:
        """Create the views for validation and test. Return None if only the picture itself is used."""
        num_crops = (1 if self.crop == 0 else NUM_VIEWS) if self.num_crops is None else self.num_crops
        return image_tta(tokenizer, num_crops, crop=self.crop, flip=self.flip)
