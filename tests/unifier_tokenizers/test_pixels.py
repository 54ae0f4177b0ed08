"""The tokenizer for single pixels keeps the contract, reduces pictures to means, and refuses other sizes."""

from typing import Any

import numpy as np
import pytest
import torch

from unifier_tokenizers import InputError, check_tokenizer
from unifier_tokenizers.pixels import PixelTokenizer

PICTURES = np.random.default_rng(0).integers(0, 256, (3, 8, 8), np.uint8)


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
def test_contract(positions: Any) -> None:
    check_tokenizer(PixelTokenizer(8, side=4, grays=5, positions=positions), [*PICTURES])


def test_ids_are_the_nearest_grays_of_the_means() -> None:
    tokenizer = PixelTokenizer(8, side=4)
    ids, positions = tokenizer.encode(PICTURES[0])
    assert (int(ids[0]), positions[:, :6].T.tolist()) == (16, [[-1, -1], [0, 0], [0, 1], [0, 2], [0, 3], [1, 0]])
    for row in range(4):
        for column in range(4):
            mean = int(PICTURES[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].sum()) / 4
            nearest = min(range(16), key=lambda gray: abs(17 * gray - mean))
            assert abs(17 * int(ids[1 + 4 * row + column]) - mean) <= abs(17 * nearest - mean) + 0.5


@pytest.mark.parametrize("grays", [2, 3, 16, 256])
def test_pictures_of_ids_have_these_ids(grays: int) -> None:
    tokenizer = PixelTokenizer(8, side=16, grays=grays)
    ids = torch.arange(256) % grays
    assert torch.equal(tokenizer.encode(tokenizer.to_pixels(ids)).values[1:].long(), ids)


@pytest.mark.parametrize(
    ("given", "shape", "message"),
    [
        ({}, (13, 13), "13 x 13"),
        ({}, (28, 14), "28 x 14"),
        ({"side": 0}, (1, 1), "side=0"),
        ({"grays": 1}, (14, 14), "grays=1"),
        ({"grays": 257}, (14, 14), "grays=257"),
    ],
)
def test_picture_of_another_size_is_refused(given: dict[str, Any], shape: tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PixelTokenizer(8, **given).encode(np.zeros(shape, np.uint8))
