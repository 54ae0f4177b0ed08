"""Changed images: shifts as torchvision makes them, targets that agree with the pixels, and untouched padding."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from unifier.augmentation.image import (
    RandAugment,
    augment_images,
    erase_rectangle,
    image_tta,
    max_shift,
    shift_and_flip,
    shift_images,
)
from unifier.data.dataloader import Batch
from unifier_tokenizers import NO_POSITION, InputError, PatchTokenizer, pad_columns
from unifier_tokenizers.patches import ImageBatch

SIZES = [(8, 12), (12, 8), (4, 4), (8, 12), (8, 12), (12, 8)]
SETTINGS: list[dict[str, Any]] = [
    *[{"crop": 2}, {"flip": True}, {"randaugment": 9}, {"random_erasing": 0.5}, {"mixup": 1.0}],
    {"cutmix": 1.0},
    {"crop": 1, "flip": True, "randaugment": 1, "random_erasing": 1.0, "mixup": 0.2, "cutmix": 1.0},
]

Seeded = Callable[..., torch.Generator]


def make_batch(tokenizer: PatchTokenizer, sizes: list[tuple[int, int]] = SIZES, constant: bool = False) -> Batch:
    """Return images of noise, or of the constant index + 1, labeled with their index."""
    draw = np.random.default_rng(0)
    units = [
        tokenizer.encode(
            np.full((*size, tokenizer.channels), index + 1, np.uint8)
            if constant
            else draw.integers(0, 256, (*size, tokenizer.channels), dtype=np.uint8)
        )
        for index, size in enumerate(sizes)
    ]
    indices = torch.arange(len(sizes))
    return Batch(*pad_columns(units), indices, indices)


def square_images(pixels: torch.Tensor) -> ImageBatch:
    return ImageBatch(pixels, torch.full((len(pixels), 2), pixels.shape[-1]))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_augment_images_contract(settings: dict[str, Any], channels: int, seeded: Seeded) -> None:
    tokenizer = PatchTokenizer(8, patch=4, stride=2, channels=channels, class_token=True)
    batch = make_batch(tokenizer)
    before = batch.values.clone()
    augmentation = augment_images(tokenizer, len(SIZES), **settings)
    assert augmentation is not None
    global_draws: list[tuple[float, float]] = []
    for seed in (0, 1, 0):  # Neither reads nor changes the global generators.
        random.seed(seed)
        np.random.seed(seed)
        after = augmentation(batch, seeded())
        global_draws.append((random.random(), np.random.random()))
        assert all(map(torch.equal, after, augmentation(batch, seeded())))
    assert global_draws[0] == global_draws[2]
    after = augmentation(batch, seeded())
    assert any(not torch.equal(after.values, augmentation(batch, seeded(seed)).values) for seed in (1, 2, 3))
    assert torch.equal(batch.values, before)
    assert (after.values.dtype, after.values.shape) == (torch.uint8, before.shape)
    for part in ("positions", "mask", "example_indices"):
        assert torch.equal(getattr(after, part), getattr(batch, part))
    assert not after.values.mT[batch.positions[:, 0] == NO_POSITION].any()
    images = tokenizer.to_images(after.values, after.positions)
    assert torch.equal(tokenizer.to_patches(images.pixels, after.positions), after.values), "overlaps agree"


def test_augment_images_off_is_none() -> None:
    assert augment_images(PatchTokenizer(8), 10) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("crop", -1), ("randaugment", 10), ("random_erasing", 1.5)],
        *[("mixup", -0.1), ("mixup", float("inf")), ("cutmix", float("nan"))],
    ],
)
def test_augment_images_refuses_numbers(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name}={value}"):
        augment_images(PatchTokenizer(8), 10, **{name: value})  # pyright: ignore[reportArgumentType]


def test_shift_images_equals_torchvision(seeded: Seeded) -> None:
    tokenizer = PatchTokenizer(8, patch=4)
    batch = make_batch(tokenizer)
    images = tokenizer.to_images(batch.values, batch.positions)
    shift = torch.randint(-5, 6, (len(SIZES), 2), generator=seeded())
    flipped = torch.arange(len(SIZES)) % 2 == 0
    shifted = shift_images(images, shift, flipped).pixels
    for b, (height, width) in enumerate(SIZES):
        image = images.pixels[b, :, :height, :width]
        image = functional.horizontal_flip(image) if flipped[b] else image
        down, right = shift[b].tolist()
        expected = functional.crop(image, -down, -right, height, width)
        assert torch.equal(shifted[b, :, :height, :width], expected)


def test_shift_and_flip_is_uniform(seeded: Seeded) -> None:
    side, crop, examples = 9, 2, 5000
    pixels = torch.zeros(examples, 1, side, side, dtype=torch.uint8)
    pixels[:, :, 4, 4], pixels[:, :, 4, 5] = 2, 1  # The right neighbor shows the direction.
    shifted = shift_and_flip(square_images(pixels), seeded(), crop=crop, flip=True).pixels
    center = (shifted == 2).flatten(1).int().argmax(1)
    counts = center.bincount(minlength=side**2).view(side, side)
    inner = slice(4 - crop, 5 + crop)
    assert counts[inner, inner].sum() == examples
    assert counts[inner, inner].min() > examples / 25 * 0.7
    flipped = (shifted.flatten(1).gather(1, center[:, None] - 1) == 1).float().mean()
    assert flipped.item() == pytest.approx(0.5, abs=0.03)
    still = shift_and_flip(square_images(pixels), seeded(), crop=0, flip=False)
    assert torch.equal(still.pixels, pixels)


@pytest.mark.parametrize(("crop", "limits"), [(None, [(5, 2), (1, 1)]), (3, [(3, 3), (3, 3)]), (99, [(20, 8), (4, 4)])])
def test_max_shift_bounds_shifts(crop: int | None, limits: list[tuple[int, int]], seeded: Seeded) -> None:
    sizes = torch.tensor([(40, 16), (8, 8)])
    assert max_shift(sizes, crop).tolist() == [list(limit) for limit in limits]
    pixels = torch.zeros(2, 1, 40, 16, dtype=torch.uint8)
    pixels[0, 0, 20, 8] = pixels[1, 0, 4, 4] = 1  # The centers.
    shifts: list[set[tuple[int, int]]] = [set(), set()]
    for seed in range(200):
        shifted = shift_and_flip(ImageBatch(pixels, sizes), seeded(seed), crop=crop, flip=False).pixels
        for k, row, column in shifted[:, 0].nonzero().tolist():
            shifts[k].add((row - [20, 4][k], column - [8, 4][k]))
    for image_shifts, limit in zip(shifts, limits, strict=True):
        for axis, end in enumerate(limit):
            along_axis = {shift[axis] for shift in image_shifts}
            assert along_axis <= set(range(-end, end + 1))
            assert end > 5 or along_axis == set(range(-end, end + 1))


def test_erase_rectangle_share_and_size(seeded: Seeded) -> None:
    examples, side = 3000, 16
    black = square_images(torch.zeros(examples, 1, side, side, dtype=torch.uint8))
    noise = erase_rectangle(black, seeded(), share=0.4).pixels[:, 0] > 0
    chosen = noise.flatten(1).any(1)
    assert chosen.float().mean().item() == pytest.approx(0.4, abs=0.04)
    rows, columns = noise[chosen].any(2), noise[chosen].any(1)
    box = (rows[:, :, None] & columns[:, None]).flatten(1).float()
    filled = noise[chosen].flatten(1).sum(1) / box.sum(1)
    assert filled.mean() > 0.98, "noise is rarely black"
    assert box.mean(1).max() < 0.37
    assert box.mean().item() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)
    assert (rows.sum(1).max(), columns.sum(1).max()) == (side, side), "an aspect ratio of 3.3 is cut to the image"
    images = square_images(torch.randint(256, (9, 1, 16, 16), dtype=torch.uint8, generator=seeded()))
    assert torch.equal(erase_rectangle(images, seeded(), share=0.0).pixels, images.pixels)


def test_cutmix_labels_equal_pixel_shares(seeded: Seeded) -> None:
    tokenizer = PatchTokenizer(8, patch=4, channels=1, class_token=True)
    batch = make_batch(tokenizer, SIZES * 5, constant=True)
    cutmix = augment_images(tokenizer, len(batch.mask), cutmix=1.0)
    assert cutmix is not None
    mixed = cutmix(batch, seeded())
    pixels, sizes = tokenizer.to_images(mixed.values, mixed.positions)
    for image, target, (height, width) in zip(pixels, mixed.target, sizes.tolist(), strict=True):
        counts = image[0, :height, :width].flatten().long().bincount(minlength=len(target) + 1)[1:]
        torch.testing.assert_close(target[:, 0], counts / (height * width))
    weights = mixed.target[..., 0].diagonal()
    assert (weights < 1).sum() > len(weights) / 4
    kinds = torch.tensor([SIZES.index(size) for size in SIZES] * 5)
    first, second = (mixed.target[..., 0] > 0).nonzero().T
    assert (kinds[first] == kinds[second]).all(), "only images of equal size are mixed"


def test_mixup_and_cutmix_take_turns(seeded: Seeded) -> None:
    tokenizer = PatchTokenizer(8, patch=4, channels=1)
    batch = make_batch(tokenizer, [(8, 8)] * 20, constant=True)
    augmentation = augment_images(tokenizer, 20, mixup=1.0, cutmix=1.0)
    assert augmentation is not None
    values = [augmentation(batch, seeded(seed)).values.float() for seed in range(30)]
    constant = [bool((mixed.std((1, 2)) == 0).all()) for mixed in values]  # Mixup of constant images is constant.
    assert 5 < sum(constant) < 25


def test_image_tta_views_flip_and_shift() -> None:
    tokenizer = PatchTokenizer(8, patch=4, class_token=True)
    batch = make_batch(tokenizer)
    tta = image_tta(tokenizer, 10, crop=3, flip=True)
    assert tta is not None
    views = list(tta(batch))
    assert torch.equal(views[0].values, batch.values)
    assert len({view.values.numpy().tobytes() for view in views}) == 10
    pixels, sizes = tokenizer.to_images(batch.values, batch.positions)
    for view, (down, right) in zip(views[::2], [(0, 0), (-2, -2), (2, 2), (-2, 2), (2, -2)], strict=True):
        assert torch.equal(view.example_indices, batch.example_indices)
        assert torch.equal(view.target, batch.target)
        shifted = tokenizer.to_images(view.values, view.positions).pixels
        for before, after, (height, width) in zip(pixels, shifted, sizes.tolist(), strict=True):
            divisor = 2 if (height, width) == (4, 4) else 1  # A small image shifts by half of its side at most.
            expected = functional.crop(before[:, :height, :width], -down // divisor, -right // divisor, height, width)
            assert torch.equal(after[:, :height, :width], expected)
    first, flipped = (tokenizer.to_images(view.values, view.positions).pixels[2, :, :4, :4] for view in views[:2])
    assert torch.equal(functional.horizontal_flip(first), flipped)
    three = image_tta(tokenizer, 3, crop=3, flip=True)
    assert three is not None
    assert len(list(three(batch))) == 3
    assert image_tta(tokenizer, 1, crop=3, flip=True) is None


@pytest.mark.parametrize(("crop", "flip", "most"), [(0, False, 1), (0, True, 2), (2, False, 5), (2, True, 10)])
def test_image_tta_refuses_more_views(crop: int, flip: bool, most: int) -> None:
    for count in (0, most + 1):
        with pytest.raises(InputError, match=f"num_crops={count}.*crop={crop}.*{most}"):
            image_tta(PatchTokenizer(8), count, crop=crop, flip=flip)


@pytest.mark.parametrize("channels", [1, 3])
def test_randaugment_changes_real_pixels_only(channels: int, seeded: Seeded) -> None:
    strong, examples = RandAugment(9, channels), 40
    slope = 5 * torch.arange(16, dtype=torch.uint8)
    pixels = (50 + slope[:, None] + slope).expand(examples, channels, -1, -1).clone()
    pixels[:, :, 12:] = pixels[:, :, :, 8:] = 0
    images = ImageBatch(pixels, torch.tensor([[12, 8]]).repeat(examples, 1))
    before = pixels.clone()
    changed = strong(images, seeded()).pixels
    assert torch.equal(pixels, before)
    assert len({image.numpy().tobytes() for image in changed}) > examples / 4
    assert not changed[:, :, 12:].any()
    assert not changed[:, :, :, 8:].any()
    weak = RandAugment(1, channels)(images, seeded()).pixels
    assert (weak.float() - before).abs().mean() < (changed.float() - before).abs().mean()


def test_randaugment_leaves_torch_generator(monkeypatch: pytest.MonkeyPatch, seeded: Seeded) -> None:
    randaugment = RandAugment(9, 1)
    # A draw during the transform stands for another thread that trains.
    monkeypatch.setattr(randaugment, "transform", lambda image: (torch.rand(1), image)[1])
    np.random.seed(0)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    randaugment(square_images(torch.zeros(1, 1, 4, 4, dtype=torch.uint8)), seeded())
    assert not torch.equal(torch.get_rng_state(), torch_state), "the other thread's draw stays"
    assert (random.getstate(), np.random.rand()) == (python_state, np.random.RandomState(0).rand())
