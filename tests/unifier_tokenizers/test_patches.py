import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from unifier_tokenizers import NO_POSITION, PatchTokenizer, Units, pad_columns
from unifier_tokenizers.patches import Tiles

SIZES = [(8, 12), (9, 5), (3, 2), (17, 12), (8, 12)]
TILES = [
    *[Tiles(6, (1, 6), (1, 6), -9.0), Tiles(6, (4, 6), (4, 6), -9.0), Tiles(6, (2, 3), (2, 3), -9.0)],
    *[Tiles(7, (4, 3), (3, 2), -9.0), Tiles(7, (5, 4), (1, 4), -9.0), Tiles(7, (3, 5), (2, 1), -9.0)],
    Tiles(1, (11, 1), (4, 1), 0.0),
]


def make_plane(tiles: Tiles, frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(frames, tiles.bands, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("frames", [1, 4, 5, 23])
def test_tiles_join_inverts_cut(tiles: Tiles, frames: int) -> None:
    plane = make_plane(tiles, frames)
    columns = tiles.cut(plane)
    steps = tiles.num_steps(torch.tensor([frames]))
    assert columns.shape == (math.prod(tiles.patch), int(steps) * tiles.tiles_per_step)
    assert columns.is_contiguous()
    (joined,) = tiles.join(columns[None], steps)
    assert len(joined) == int(tiles.num_frames(steps))
    assert torch.equal(joined[:frames], plane)
    assert (joined[frames:] == tiles.pad_value).all()
    assert frames <= len(joined) < frames + max(tiles.stride[0], tiles.patch[0])
    assert torch.equal(tiles.cut(joined), columns)


@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_tiles_join_padded_batch_as_alone(tiles: Tiles) -> None:
    columns = [tiles.cut(make_plane(tiles, frames, seed=frames)) for frames in (23, 4, 40, 11)]
    units = [Units(values, torch.zeros(1, values.shape[1], dtype=torch.int64)) for values in columns]
    steps = torch.tensor([values.shape[1] // tiles.tiles_per_step for values in columns])
    planes = tiles.join(pad_columns(units)[0], steps)
    for plane, values, count, frames in zip(planes, columns, steps, tiles.num_frames(steps).tolist(), strict=True):
        assert torch.equal(plane[:frames], tiles.join(values[None], count[None])[0])
        assert not plane[frames:].any(), "padding must be 0"


def test_tiles_cut_batch_as_alone() -> None:
    tiles = TILES[3]
    planes = torch.stack([make_plane(tiles, 17, seed) for seed in range(3)])
    assert torch.equal(tiles.cut(planes), torch.stack([tiles.cut(plane) for plane in planes]))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize(("patch", "stride"), [(4, 4), (4, 2), (5, 3), (1, 1)])
def test_patches_and_images_round_trip(patch: int, stride: int, class_token: bool, channels: int) -> None:
    draw = np.random.default_rng(0)
    raws = [draw.integers(0, 256, (*size, channels), dtype=np.uint8) for size in SIZES]
    tokenizer = PatchTokenizer(8, patch=patch, stride=stride, channels=channels, class_token=class_token)
    values, positions, _ = pad_columns([tokenizer.encode(raw) for raw in raws])
    pixels, sizes = tokenizer.to_images(values, positions)
    assert (pixels.dtype, pixels.shape[2:]) == (torch.uint8, tuple(sizes.amax(0)))
    for raw, canvas, (height, width) in zip(raws, pixels, sizes.tolist(), strict=True):
        image = torch.from_numpy(raw).permute(2, 0, 1)
        fill = (0, width - image.shape[2], 0, height - image.shape[1])
        assert 0 <= min(fill) <= max(fill) < max(patch, 2)
        assert torch.equal(canvas[:, :height, :width], functional.pad(image, fill))
        assert not canvas[:, height:].any()
        assert not canvas[:, :, width:].any()
    patches = tokenizer.to_patches(pixels, positions)
    assert patches.dtype == torch.uint8
    assert torch.equal(patches, values)
    for canvas, (height, width) in zip(pixels, sizes.tolist(), strict=True):
        canvas[:, height:] = canvas[:, :, width:] = 7
    patches = tokenizer.to_patches(pixels, positions)
    assert torch.equal(patches, values), "pixels beyond a picture must not be read"
    assert not patches.permute(0, 2, 1)[positions[:, 0] == NO_POSITION].any()
