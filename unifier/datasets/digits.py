"""Handwritten digits of 8 x 8 pixels, which come with scikit-learn."""

import hashlib
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, cast, final

import numpy as np

from unifier.data.source import SPLITS, Example, SplitName, accuracy_range
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

TOTAL = 1797


GREY_LEVELS = 16
"""The darkest value of scikit-learn's copy, whose pixels count 0 to 16 dots of ink."""


@cache
def _all() -> list[Example]:
    """Every picture with its label, read once by a process."""
    from sklearn.datasets import load_digits  # 20 MB that other sets do without

    digits = cast(Any, load_digits())
    pictures = (digits.images * 255 / GREY_LEVELS).round().astype(np.uint8)
    return [Example(picture, str(label)) for picture, label in zip(pictures, digits.target, strict=True)]


@final
class Digits:
    """The 1,797 digits of the UCI optical recognition test set (Alpaydin & Kaynak, 1998), split by stratified draw.

    The input is a picture (8, 8) uint8, 0 paper and 255 ink; the target is its label, "0" to "9". `val` and `test`
    are numbers of pictures, training has the rest, and `seed` names the draw.

    Raises InputError where a split would be too small to show every digit.
    """

    name = "digits"
    labels = tuple("0123456789")
    score_range = accuracy_range(
        labels, 97.0, "support vector machine on pixels, half of the digits tested, scikit-learn's documentation"
    )

    def __init__(self, *, val: int = 200, test: int = 300, seed: int = 0) -> None:
        most = TOTAL - len(self.labels)
        if min(val, test) < len(self.labels) or val + test > most:
            raise InputError(
                f"digits cannot be split with val={val} and test={test}: "
                f"give at least {len(self.labels)} of each and at most {most} together"
            )
        self._val, self._test, self._seed = val, test, seed

    def split(self, name: SplitName) -> Sequence[Example]:
        """The pictures of one split."""
        return self._splits[check_choice("split", name, SPLITS)]

    @property
    def sha256(self) -> str:
        """The hash of every picture and label of every split, in order."""
        digest = hashlib.sha256()
        for name, examples in self._splits.items():
            digest.update(name.encode())
            for picture, label in examples:
                digest.update(picture.tobytes() + label.encode())
        return digest.hexdigest()

    @cached_property
    def _splits(self) -> dict[SplitName, list[Example]]:
        from sklearn.model_selection import train_test_split

        def draw(pool: list[Example], size: int) -> Any:
            targets = [example.target for example in pool]
            return train_test_split(pool, test_size=size, stratify=targets, random_state=self._seed)

        rest, test = draw(_all(), self._test)
        train, val = draw(rest, self._val)
        return {"train": train, "val": val, "test": test}
