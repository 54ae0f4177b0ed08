"""The tokenizer for video clips keeps the contract, and cuts clips into blocks of time, height and width."""

from typing import Any

import numpy as np
import pytest
import torch

from unifier_tokenizers import InputError, VideoTokenizer, check_tokenizer

RNG = np.random.default_rng(0)


def clip(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
@pytest.mark.parametrize("channels", [1, 3])
def test_contract(positions: Any, channels: int) -> None:
    tokenizer = VideoTokenizer(12, patch=3, frames=2, channels=channels, positions=positions)
    check_tokenizer(tokenizer, [clip(*size, channels) for size in ((4, 6, 9), (5, 4, 7), (4, 6, 9), (1, 1, 1))])


def test_blocks_lie_at_their_time_step_row_and_column() -> None:
    pixels = clip(5, 7, 6, 3)
    values, positions = VideoTokenizer(8, patch=4, frames=2).encode(pixels)
    assert values.shape == (3 * 2 * 4 * 4, 3 * 2 * 2)
    padded = np.pad(pixels, ((0, 1), (0, 1), (0, 2), (0, 0)))
    for column, (t, r, c) in zip(values.T, positions.T.tolist(), strict=True):
        block = padded[2 * t : 2 * t + 2, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4]
        assert np.array_equal(column.reshape(3, 2, 4, 4), block.transpose(3, 0, 1, 2))
    assert len({*map(tuple, positions.T.tolist())}) == positions.shape[1]


def test_time_changes_the_tokens() -> None:
    tokenizer = VideoTokenizer(8, patch=4, frames=1, channels=1)
    pixels = clip(2, 4, 4)
    forward, backward = tokenizer(pixels), tokenizer(pixels[::-1].copy())
    assert not torch.allclose(forward, backward.flip(1))


@pytest.mark.parametrize(
    "raw",
    [
        np.zeros((4, 8), np.uint8),
        np.zeros((4, 8, 8, 3), np.uint8),
        np.zeros((0, 8, 8), np.uint8),
        np.full((4, 8, 8), 2.0),
        np.zeros((4, 8, 8), np.int64),
    ],
    ids=lambda raw: f"{raw.dtype}{raw.shape}",
)
def test_other_arrays_are_refused(raw: np.ndarray) -> None:
    with pytest.raises(InputError):
        VideoTokenizer(8, channels=1).encode(raw)


def test_empty_blocks_and_long_clips_are_refused() -> None:
    with pytest.raises(InputError, match="frames=0"):
        VideoTokenizer(8, frames=0)
    with pytest.raises(InputError, match="axis 0"):
        VideoTokenizer(8, channels=1, frames=1, length=4).encode(clip(5, 7, 7))
