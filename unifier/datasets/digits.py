"""Handwritten digits: images of 8 x 8 pixels that are included in scikit-learn."""

import hashlib
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, cast, final

import numpy as np

from unifier.data.inputs import ImageReader
from unifier.data.source import SPLITS, Example, SplitName, accuracy_range
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

NUM_DIGITS = 1797
"""Number of images."""

INK_LEVELS = 16
"""Largest pixel value in scikit-learn's copy of the digits. The value of a pixel is the number of black dots in a block
of 4 x 4 dots."""


@final
class Digits:
    """The 1,797 handwritten digits of the UCI optical recognition test set (Alpaydin & Kaynak, 1998).

    The digits are split at random, stratified by label. The input is an image (8, 8) uint8, with 0 for paper and 255
    for ink. The target is the digit, from "0" to "9".
    """

    name = "digits"
    labels = tuple("0123456789")
    reader = ImageReader(channels=1, size=8)
    score_range = accuracy_range(
        labels, 97.0, "support vector machine on pixels, tested on half of the digits, scikit-learn's documentation"
    )

    def __init__(self, *, val: int = 200, test: int = 300, seed: int = 0) -> None:
        """Choose the sizes of val and test. All remaining images are in train.

        Args:
            val: Number of images in val.
            test: Number of images in test.
            seed: Seed of the random splits.

        Raises:
            InputError: A split is too small to contain every digit.
        """
        max_held_out = NUM_DIGITS - len(self.labels)
        if min(val, test) < len(self.labels) or val + test > max_held_out:
            raise InputError(
                f"val={val}, test={test}: give each at least {len(self.labels)} images, "
                f"and both together at most {max_held_out} images"
            )
        self._val, self._test, self._seed = val, test, seed

    def split(self, name: SplitName) -> Sequence[Example]:
        """Return the images of one split."""
        return self._splits[check_choice("split", name, SPLITS)]

    @property
    def sha256(self) -> str:
        """The hash of all images and labels in the order of the splits."""
        digest = hashlib.sha256()
        for name, examples in self._splits.items():
            digest.update(name.encode())
            for image, label in examples:
                digest.update(image.tobytes() + label.encode())
        return digest.hexdigest()

    @cached_property
    def _splits(self) -> dict[SplitName, list[Example]]:
        from sklearn.model_selection import train_test_split

        def draw(pool: list[Example], size: int) -> Any:
            targets = [example.target for example in pool]
            return train_test_split(pool, test_size=size, stratify=targets, random_state=self._seed)

        rest, test = draw(_load_digits(), self._test)
        train, val = draw(rest, self._val)
        return {"train": train, "val": val, "test": test}


@cache
def _load_digits() -> list[Example]:
    """Return all images with their labels. The images are read once per process."""
    from sklearn.datasets import load_digits  # The import takes 20 MB of memory, which other data sets do not need.

    digits = cast(Any, load_digits())
    images = (digits.images * 255 / INK_LEVELS).round().astype(np.uint8)
    return [Example(image, str(label)) for image, label in zip(images, digits.target, strict=True)]
