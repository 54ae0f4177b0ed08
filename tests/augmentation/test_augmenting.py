"""Pictures changed in training: as torchvision shifts and mirrors them, and as their new targets say."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from unifier import run
from unifier.augmentation.image import (
    RandAugment,
    augment_images,
    erase_rectangle,
    image_tta,
    max_shift,
    shift_and_mirror,
    shift_images,
)
from unifier.config import load_experiment
from unifier.data.dataloader import Batch, collate
from unifier.data.encoding import encode_split
from unifier_tokenizers import NO_POSITION, InputError, PatchTokenizer, pad_columns
from unifier_tokenizers.patches import ImageBatch
from unifier_tokenizers.stems import LinearProjection, Stem

SIZES = [(8, 12), (12, 8), (4, 4), (8, 12), (8, 12), (12, 8)]
ALL: list[dict[str, Any]] = [
    {"crop": 2},
    {"flip": True},
    {"randaugment": 9},
    {"random_erasing": 0.5},
    {"mixup": 1.0},
    {"cutmix": 1.0},
    {"crop": 1, "flip": True, "randaugment": 1, "random_erasing": 1.0, "mixup": 0.2, "cutmix": 1.0},
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(tokenizer: PatchTokenizer, sizes: list[tuple[int, int]] = SIZES, constant: bool = False) -> Batch:
    """Pictures of noise, or each of its place + 1 alone; a picture's label is its place."""
    draw = np.random.default_rng(0)
    units = [
        tokenizer.encode(
            np.full((*size, tokenizer.channels), place + 1, np.uint8)
            if constant
            else draw.integers(0, 256, (*size, tokenizer.channels), dtype=np.uint8)
        )
        for place, size in enumerate(sizes)
    ]
    places = torch.arange(len(sizes))
    return Batch(*pad_columns(units), places, places)


def noise(examples: int, side: int = 16) -> ImageBatch:
    pixels = torch.randint(256, (examples, 1, side, side), dtype=torch.uint8, generator=seeded())
    return ImageBatch(pixels, torch.full((examples, 2), side))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("settings", ALL, ids=str)
def test_a_changed_batch_is_one_of_the_same_kind_and_the_generator_decides(
    settings: dict[str, Any], channels: int
) -> None:
    tokenizer = PatchTokenizer(8, patch=4, stride=2, channels=channels, class_token=True)
    one = batch(tokenizer)
    kept = one.values.clone()
    change = augment_images(tokenizer, len(SIZES), **settings)
    assert change is not None
    random.seed(0)
    np.random.seed(0)
    first = change(one, seeded())
    after = (random.random(), np.random.random())
    random.seed(1)
    np.random.seed(1)
    assert all(map(torch.equal, first, change(one, seeded())))
    random.seed(0)
    np.random.seed(0)
    assert after == (random.random(), np.random.random())
    assert any(not torch.equal(first.values, change(one, seeded(seed)).values) for seed in (1, 2, 3))
    assert torch.equal(one.values, kept)
    assert (first.values.dtype, first.values.shape) == (torch.uint8, kept.shape)
    for part in ("positions", "mask", "example_indices"):
        assert torch.equal(getattr(first, part), getattr(one, part))
    assert not first.values.mT[one.positions[:, 0] == NO_POSITION].any()
    pictures = tokenizer.to_images(first.values, first.positions)  # overlapping patches still agree
    assert torch.equal(tokenizer.to_patches(pictures.pixels, first.positions), first.values)


def test_all_off_is_no_change() -> None:
    assert augment_images(PatchTokenizer(8), 10) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"crop": -1}, "crop=-1: 0 or more is needed"),
        ({"randaugment": 10}, "randaugment=10: 0 to 9 is expected"),
        ({"random_erasing": 1.5}, "random_erasing=1.5: 0 to 1 is expected"),
        ({"mixup": -0.1}, "mixup=-0.1: 0 or more"),
        ({"mixup": float("inf")}, "mixup=inf: 0 or more"),
        ({"cutmix": float("nan")}, "cutmix=nan: 0 or more"),
    ],
)
def test_numbers_that_are_none(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        augment_images(PatchTokenizer(8), 10, **settings)


def test_pictures_move_as_in_torchvision() -> None:
    tokenizer = PatchTokenizer(8, patch=4)
    one = batch(tokenizer)
    pixels, sizes = tokenizer.to_images(one.values, one.positions)
    shift = torch.randint(-5, 6, (len(SIZES), 2), generator=seeded())
    mirrored = torch.arange(len(SIZES)) % 2 == 0
    moved = shift_images(ImageBatch(pixels, sizes), shift, mirrored).pixels
    for b, (height, width) in enumerate(SIZES):
        own = pixels[b, :, :height, :width]
        own = functional.horizontal_flip(own) if mirrored[b] else own
        down, right = shift[b].tolist()
        expected = functional.crop(own, -down, -right, height, width)
        assert torch.equal(moved[b, :, :height, :width], expected)


def test_shifts_are_all_as_likely_and_half_of_the_pictures_are_mirrored() -> None:
    side, crop, examples = 9, 2, 5000
    pixels = torch.zeros(examples, 1, side, side, dtype=torch.uint8)
    pixels[:, :, 4, 4], pixels[:, :, 4, 5] = 2, 1  # the neighbor shows which way it looks
    found = shift_and_mirror(ImageBatch(pixels, torch.full((examples, 2), side)), seeded(), crop=crop, flip=True).pixels
    where = (found == 2).flatten(1).int().argmax(1)
    counts = where.bincount(minlength=side**2).view(side, side)
    inner = slice(4 - crop, 5 + crop)
    assert counts[inner, inner].sum() == examples
    assert counts[inner, inner].min() > examples / 25 * 0.7
    left = (found.flatten(1).gather(1, where[:, None] - 1) == 1).float().mean()
    assert left.item() == pytest.approx(0.5, abs=0.03)
    still = shift_and_mirror(noise(8), seeded(), crop=0, flip=False)
    assert torch.equal(still.pixels, noise(8).pixels)


def test_a_rectangle_of_noise_in_a_share_of_the_pictures() -> None:
    examples, side = 3000, 16
    before = ImageBatch(torch.zeros(examples, 1, side, side, dtype=torch.uint8), torch.full((examples, 2), side))
    lost = erase_rectangle(before, seeded(), share=0.4).pixels[:, 0] > 0
    chosen = lost.flatten(1).any(1)
    assert chosen.float().mean().item() == pytest.approx(0.4, abs=0.04)
    rows, columns = lost[chosen].any(2), lost[chosen].any(1)
    box = rows[:, :, None] & columns[:, None]
    filled = lost[chosen].flatten(1).sum(1) / box.flatten(1).sum(1)
    assert filled.mean() > 0.98  # but for noise that is black by chance
    area = box.flatten(1).float().mean(1)
    assert area.max() < 0.37
    assert area.mean().item() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)
    assert (rows.sum(1).max(), columns.sum(1).max()) == (side, side)  # 3.3 times as high as wide, cut to fit
    assert torch.equal(erase_rectangle(noise(9), seeded(), share=0.0).pixels, noise(9).pixels)


def test_cut_pictures_have_as_much_of_each_label_as_of_its_pixels() -> None:
    tokenizer = PatchTokenizer(8, patch=4, channels=1, class_token=True)
    one = batch(tokenizer, SIZES * 5, constant=True)
    cut = augment_images(tokenizer, len(one.mask), cutmix=1.0)
    assert cut is not None
    mixed = cut(one, seeded())
    pixels, sizes = tokenizer.to_images(mixed.values, mixed.positions)
    for picture, target, (height, width) in zip(pixels, mixed.target, sizes.tolist(), strict=True):
        counts = picture[0, :height, :width].flatten().long().bincount(minlength=len(target) + 1)[1:]
        torch.testing.assert_close(target[:, 0], counts / (height * width))
    own = mixed.target[..., 0].diagonal()
    assert (own < 1).sum() > len(own) / 4
    kinds = torch.tensor([SIZES.index(size) for size in SIZES] * 5)
    first, second = (mixed.target[..., 0] > 0).nonzero().T
    assert (kinds[first] == kinds[second]).all()


def test_with_both_a_batch_has_the_one_mixture_or_the_other() -> None:
    tokenizer = PatchTokenizer(8, patch=4, channels=1)
    one = batch(tokenizer, [(8, 8)] * 20, constant=True)
    both = augment_images(tokenizer, 20, mixup=1.0, cutmix=1.0)
    assert both is not None
    values = [both(one, seeded(seed)).values.float() for seed in range(30)]
    means = [bool((some.std((1, 2)) == 0).all()) for some in values]  # of two even pictures, each even again
    assert 5 < sum(means) < 25


def test_views_are_the_picture_its_mirror_image_and_both_shifted() -> None:
    tokenizer = PatchTokenizer(8, patch=4, class_token=True)
    one = batch(tokenizer)
    seen = image_tta(tokenizer, 10, crop=3, flip=True)
    assert seen is not None
    found = list(seen(one))
    assert torch.equal(found[0].values, one.values)
    assert len({view.values.numpy().tobytes() for view in found}) == 10
    pixels, sizes = tokenizer.to_images(one.values, one.positions)
    for view, (down, right) in zip(found[::2], [(0, 0), (-2, -2), (2, 2), (-2, 2), (2, -2)], strict=True):
        assert torch.equal(view.example_indices, one.example_indices)
        assert torch.equal(view.target, one.target)
        moved = tokenizer.to_images(view.values, view.positions).pixels
        for before, after, (height, width) in zip(pixels, moved, sizes.tolist(), strict=True):
            share = 2 if (height, width) == (4, 4) else 1  # training shifts it by no more than half of it
            expected = functional.crop(before[:, :height, :width], -down // share, -right // share, height, width)
            assert torch.equal(after[:, :height, :width], expected)
    first, mirrored = (tokenizer.to_images(view.values, view.positions).pixels[2, :, :4, :4] for view in found[:2])
    assert torch.equal(functional.horizontal_flip(first), mirrored)
    few = image_tta(tokenizer, 3, crop=3, flip=True)
    assert few is not None
    assert len(list(few(one))) == 3
    assert image_tta(tokenizer, 1, crop=3, flip=True) is None


@pytest.mark.parametrize(("crop", "flip", "most"), [(0, False, 1), (0, True, 2), (2, False, 5), (2, True, 10)])
def test_more_views_than_there_are(crop: int, flip: bool, most: int) -> None:
    for count in (0, most + 1):
        with pytest.raises(
            InputError, match=f"num_crops={count}: with crop={crop} and flip={flip} there are 1 to {most} "
        ):
            image_tta(PatchTokenizer(8), count, crop=crop, flip=flip)


@pytest.mark.parametrize(("crop", "most"), [(None, [(5, 2), (1, 1)]), (3, [(3, 3), (3, 3)]), (99, [(20, 8), (4, 4)])])
def test_shifts_reach_what_suits_each_picture_and_nothing_else(crop: int | None, most: list[tuple[int, int]]) -> None:
    sizes = torch.tensor([(40, 16), (8, 8)])
    assert max_shift(sizes, crop).tolist() == [list(one) for one in most]
    pixels = torch.zeros(2, 1, 40, 16, dtype=torch.uint8)
    pixels[0, 0, 20, 8] = pixels[1, 0, 4, 4] = 1  # the middles
    found: list[set[tuple[int, int]]] = [set(), set()]
    for seed in range(200):
        moved = shift_and_mirror(ImageBatch(pixels, sizes), seeded(seed), crop=crop, flip=False).pixels
        for k, row, column in moved[:, 0].nonzero().tolist():
            found[k].add((row - [20, 4][k], column - [8, 4][k]))
    for shifts, ends in zip(found, most, strict=True):
        for axis, end in enumerate(ends):
            assert {shift[axis] for shift in shifts} <= set(range(-end, end + 1))
            if end <= 5:
                assert {shift[axis] for shift in shifts} == set(range(-end, end + 1))


def test_by_default_pictures_go_through_a_stem_and_are_shifted() -> None:
    pictures: Any = load_experiment(str(Path(__file__).parents[2] / "experiments" / "pictures.py"))
    (task,) = pictures().tasks.values()
    assert isinstance(task.tokenizer.project, Stem)
    assert any(isinstance(part, torch.nn.MaxPool2d) for part in task.tokenizer.modules()), "not pooled"
    batch = collate(encode_split(list(task.source.split("train")[:8]), task.tokenizer, task.head)[0], range(8))
    (eighth,), (quarter,) = (pictures(crop=crop).tasks.values() for crop in (1, 2))  # of 8 pixels
    moved, by_1, by_2 = (
        one.augmentation(batch, torch.Generator().manual_seed(0)).values for one in (task, eighth, quarter)
    )
    assert torch.equal(moved, by_1)
    assert not torch.equal(moved, by_2)
    with pytest.raises(InputError, match="epochs=0: a number above 0"):
        pictures(epochs=0)
    (plain,) = pictures(stem=None, crop=0).tasks.values()
    assert isinstance(plain.tokenizer.project, LinearProjection)
    assert plain.augmentation is None


def test_the_experiment_trains_with_every_setting(tmp_path: Path) -> None:
    pictures: Any = load_experiment(str(Path(__file__).parents[2] / "experiments" / "pictures.py"))
    settings: dict[str, Any] = {
        "crop": 1,
        "flip": True,
        "randaugment": 9,
        "random_erasing": 0.5,
        "mixup": 0.8,
        "cutmix": 1.0,
        "num_crops": 3,
    }
    regular: dict[str, Any] = {
        "drop_path": 0.1,
        "label_smoothing": 0.1,
        "stem": "pooled",
        "pooling": "attention",
    }
    small: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2, "ffn_dim": 16, "tokens": 5000, "num_validations": 1}
    (result,) = run(pictures, **settings, **regular, **small, out=tmp_path, track="off")
    assert result.status == "finished"


@pytest.mark.parametrize(
    "given",
    [{"crop": 2}, {"flip": True}, {"randaugment": 9}, {"random_erasing": 0.5}, {"mixup": 0.8}, {"cutmix": 1.0}],
    ids=str,
)
def test_the_experiment_changes_pictures_as_each_setting_says(given: dict[str, Any]) -> None:
    pictures: Any = load_experiment(str(Path(__file__).parents[2] / "experiments" / "pictures.py"))
    (task,) = pictures(**{"crop": 0, **given}).tasks.values()
    batch = collate(encode_split(list(task.source.split("train")[:20]), task.tokenizer, task.head)[0], range(20))
    change = augment_images(task.tokenizer, 10, **given)
    assert change is not None
    expected = change(batch, seeded())
    assert all(map(torch.equal, task.augmentation(batch, seeded()), expected))
    assert not torch.equal(expected.values, batch.values)


@pytest.mark.parametrize(
    ("given", "count"),
    [({"num_crops": 3}, 3), ({"num_crops": 7, "flip": True}, 7), ({"num_crops": 1}, 1), ({}, 5), ({"crop": 0}, 1)],
    ids=str,
)
def test_the_experiment_shows_as_many_views_as_asked_for_or_five(given: dict[str, Any], count: int) -> None:
    pictures: Any = load_experiment(str(Path(__file__).parents[2] / "experiments" / "pictures.py"))
    (task,) = pictures(**{"crop": 2} | given).tasks.values()
    batch = collate(encode_split(list(task.source.split("test")[:4]), task.tokenizer, task.head)[0], range(4))
    seen = image_tta(task.tokenizer, count, crop=2, flip=given.get("flip", False))
    assert (task.tta is None) == (seen is None) == (count == 1)
    if seen is not None:
        views = list(task.tta(batch))
        assert len({view.values.numpy().tobytes() for view in views}) == count
        for view, expected in zip(views, seen(batch), strict=True):
            assert torch.equal(view.values, expected.values)


@pytest.mark.parametrize("channels", [1, 3])
def test_randaugment_changes_each_picture_by_itself_and_in_its_own_size(channels: int) -> None:
    change, examples = RandAugment(9, channels), 40
    slope = 5 * torch.arange(16, dtype=torch.uint8)
    pixels = (50 + slope[:, None] + slope).expand(examples, channels, -1, -1).clone()
    pixels[:, :, 12:] = pixels[:, :, :, 8:] = 0
    sizes = torch.tensor([[12, 8]]).repeat(examples, 1)
    kept = pixels.clone()
    changed = change(ImageBatch(pixels, sizes), seeded()).pixels
    assert torch.equal(pixels, kept)
    assert len({one.numpy().tobytes() for one in changed}) > examples / 4
    assert not changed[:, :, 12:].any()
    assert not changed[:, :, :, 8:].any()
    little = RandAugment(1, channels)(ImageBatch(pixels, sizes), seeded()).pixels
    assert (little.float() - kept).abs().mean() < (changed.float() - kept).abs().mean()


def test_randaugment_leaves_others_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    change = RandAugment(9, 1)
    monkeypatch.setattr(change, "change", lambda image: (torch.rand(1), image)[1])  # as a thread may at the same time
    np.random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    change(ImageBatch(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.tensor([[4, 4]])), seeded())
    assert not torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.rand() == np.random.RandomState(0).rand()
