"""A plane cut into columns is put together again to the last bit, with padding or without."""

import math

import pytest
import torch

from unifier_tokenizers import Units, pad_columns
from unifier_tokenizers.patches import Tiles

TILES = [
    Tiles(6, (1, 6), (1, 6), -9.0),
    Tiles(6, (4, 6), (4, 6), -9.0),
    Tiles(6, (2, 3), (2, 3), -9.0),
    Tiles(7, (4, 3), (3, 2), -9.0),
    Tiles(7, (5, 4), (1, 4), -9.0),
    Tiles(7, (3, 5), (2, 1), -9.0),
    Tiles(1, (11, 1), (4, 1), 0.0),
]


def plane(tiles: Tiles, frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(frames, tiles.bands, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("frames", [1, 4, 5, 23])
def test_a_plane_cut_and_joined_is_the_plane_and_silence_after_it(tiles: Tiles, frames: int) -> None:
    given = plane(tiles, frames)
    columns = tiles.cut(given)
    times = tiles.times(torch.tensor([frames]))
    assert columns.shape == (math.prod(tiles.patch), int(times) * tiles.across)
    assert columns.is_contiguous()
    (joined,) = tiles.join(columns[None], times)
    assert len(joined) == int(tiles.frames(times))
    assert torch.equal(joined[:frames], given)
    assert (joined[frames:] == tiles.silence).all()
    assert frames <= len(joined) < frames + max(tiles.stride[0], tiles.patch[0])
    assert torch.equal(tiles.cut(joined), columns)


@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_each_example_of_a_padded_batch_is_joined_as_it_is_alone(tiles: Tiles) -> None:
    planes = [plane(tiles, frames, seed=frames) for frames in (23, 4, 40, 11)]
    columns = [tiles.cut(one) for one in planes]
    values, _, _ = pad_columns([Units(one, torch.zeros(1, one.shape[1], dtype=torch.int64)) for one in columns])
    times = torch.tensor([one.shape[1] // tiles.across for one in columns])
    joined = tiles.join(values, times)
    for own, count, frames in zip(joined, times, tiles.frames(times).tolist(), strict=True):
        alone = tiles.join(columns.pop(0)[None], count[None])[0]
        assert torch.equal(own[:frames], alone)
        assert not own[frames:].any(), "padding is 0"


def test_batches_are_cut_as_their_examples_are() -> None:
    tiles = TILES[3]
    planes = torch.stack([plane(tiles, 17, seed) for seed in range(3)])
    assert torch.equal(tiles.cut(planes), torch.stack([tiles.cut(one) for one in planes]))
