"""The digits: every label in every split."""

from collections.abc import Callable

import numpy as np
import pytest

from unifier.data.source import SPLITS
from unifier.datasets.digits import Digits
from unifier_tokenizers import InputError


def test_digits_keep_contract(check_generated: Callable[..., None]) -> None:
    check_generated(Digits)


def test_digits_refuse_sizes() -> None:
    with pytest.raises(InputError, match=r"val=0.*10"):
        Digits(val=0)
    with pytest.raises(InputError, match=r"test=1700.*1,?787"):
        Digits(test=1700)


def test_digits_splits_are_stratified() -> None:
    digits = Digits()
    assert sum(len(digits.split(name)) for name in SPLITS) == 1797
    for name in SPLITS:
        examples = digits.split(name)
        counts = [sum(example.target == label for example in examples) for label in digits.labels]
        assert max(counts) - min(counts) <= 0.03 * len(examples)
        assert all((image.shape, image.dtype) == ((8, 8), np.uint8) for image, _ in examples)
    assert max(image.max() for image, _ in digits.split("train")) == 255
