"""The digits: every label in every split."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from unifier.data.source import SPLITS
from unifier.datasets.digits import Digits


def test_digits_keep_contract(check_generated: Callable[..., None]) -> None:
    check_generated(Digits)


def test_digits_splits_are_stratified() -> None:
    digits = Digits()
    assert sum(len(digits.split(name)) for name in SPLITS) == 1797
    for name in SPLITS:
        examples = digits.split(name)
        counts = [sum(example.target == label for example in examples) for label in digits.labels]
        assert max(counts) - min(counts) <= 0.03 * len(examples)
        assert all((image.shape, image.dtype) == ((8, 8), np.uint8) for image, _ in examples)
    assert max(image.max() for image, _ in digits.split("train")) == 255


def test_digits_reference_is_that_of_scikit_learn() -> None:
    pictures, labels = cast(Any, load_digits(return_X_y=True))
    halves: Any = train_test_split(pictures, labels, test_size=0.5, shuffle=False)
    accuracy = cast(Any, SVC)(gamma=0.001).fit(halves[0], halves[2]).score(halves[1], halves[3])
    assert Digits.score_range.reference == round(100 * accuracy)
