"""Patches become the pictures they were cut from, and those the same patches again, bit by bit."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from unifier_tokenizers import NO_POSITION, PatchTokenizer, pad_columns

SIZES = [(8, 12), (9, 5), (3, 2), (17, 12), (8, 12)]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize(("patch", "stride"), [(4, 4), (4, 2), (5, 3), (1, 1)])
def test_pictures_of_unlike_size_come_back_and_their_patches_too(
    patch: int, stride: int, class_token: bool, channels: int
) -> None:
    draw = np.random.default_rng(0)
    raws = [draw.integers(0, 256, (*size, channels), dtype=np.uint8) for size in SIZES]
    tokenizer = PatchTokenizer(8, patch=patch, stride=stride, channels=channels, class_token=class_token)
    values, positions, _ = pad_columns([tokenizer.encode(raw) for raw in raws])
    pixels, sizes = tokenizer.to_images(values, positions)
    assert pixels.dtype == torch.uint8
    assert pixels.shape[2:] == tuple(sizes.amax(0))
    for raw, found, (height, width) in zip(raws, pixels, sizes.tolist(), strict=True):
        picture = torch.from_numpy(raw).permute(2, 0, 1)
        filled = (0, width - picture.shape[2], 0, height - picture.shape[1])
        assert 0 <= min(filled) <= max(filled) < max(patch, 2)
        assert torch.equal(found[:, :height, :width], functional.pad(picture, filled))
        assert not found[:, height:].any()
        assert not found[:, :, width:].any()
    back = tokenizer.to_patches(pixels, positions)
    assert back.dtype == torch.uint8
    assert torch.equal(back, values)
    dirty = pixels.clone()
    for found, (height, width) in zip(dirty, sizes.tolist(), strict=True):
        found[:, height:] = found[:, :, width:] = 7
    assert torch.equal(tokenizer.to_patches(dirty, positions), values)  # what lies beyond a picture is not its own
    assert not tokenizer.to_patches(dirty, positions).permute(0, 2, 1)[positions[:, 0] == NO_POSITION].any()
