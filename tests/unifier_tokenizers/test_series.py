"""The tokenizer for time series keeps the contract, and returns to the values of the window."""

import numpy as np
import pytest
import torch

from unifier_tokenizers import InputError, check_tokenizer
from unifier_tokenizers.series import SeriesTokenizer

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
@pytest.mark.parametrize(("patch", "stride"), [(4, 2), (5, 5), (12, 12)])
def test_contract(positions: str, patch: int, stride: int) -> None:
    tokenizer = SeriesTokenizer(8, context=12, patch=patch, stride=stride, positions=positions)  # pyright: ignore[reportArgumentType]
    check_tokenizer(tokenizer, [RNG.normal(size=(channels, 12)) for channels in (1, 3, 1)])


def test_patches_and_moments_give_the_window() -> None:
    tokenizer = SeriesTokenizer(8, context=10, patch=4, stride=3)
    window = RNG.normal(1e3, 5, (2, 10))
    window[1] = 0.1
    values, positions = tokenizer.encode(window)
    assert positions.tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    np.testing.assert_allclose(values[4, ::3], window.mean(1), rtol=1e-6)
    np.testing.assert_allclose(values[5, ::3], [window[0].std(), 0.0], rtol=1e-5)
    raw = (values[:4] * values[5] + values[4]).T.reshape(2, 3, 4)
    for patch in range(3):
        np.testing.assert_allclose(raw[:, patch], window[:, 3 * patch : 3 * patch + 4], rtol=1e-5)


@pytest.mark.parametrize("raw", [np.ones((1, 9)), np.ones(12), np.full((2, 12), np.nan), np.ones((0, 12))])
def test_other_windows_are_refused(raw: np.ndarray) -> None:
    with pytest.raises(InputError):
        SeriesTokenizer(8, context=12, patch=4).encode(raw)


@pytest.mark.parametrize(("patch", "stride"), [(13, 1), (1, 1), (4, 0), (4, 5)])
def test_wrong_patches_are_refused(patch: int, stride: int) -> None:
    with pytest.raises(InputError, match="patch"):
        SeriesTokenizer(8, context=12, patch=patch, stride=stride)


def test_long_windows_need_more_learned_positions() -> None:
    with pytest.raises(InputError, match="positions"):
        SeriesTokenizer(8, context=12, patch=4, stride=2, length=4).encode(torch.ones(1, 12))
