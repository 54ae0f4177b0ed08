"""Augmentation of pictures: shifts, mirroring, erasing, cutmix.

RandAugment by timm, with random numbers from a generator."""

import math
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from torch import Tensor

from unifier.augmentation.mixup import Compose, Mixup, RandomChoice, draw_partners, draw_shares, mixed_target
from unifier.data.dataloader import Augmentation, Batch, TestTimeAugmentation
from unifier_tokenizers import InputError, PatchTokenizer
from unifier_tokenizers.patches import ImageBatch

ImageTransform = Callable[[ImageBatch, torch.Generator], ImageBatch]
"""Makes pictures others of the same sizes."""


def augment_images(
    tokenizer: PatchTokenizer,
    classes: int,
    *,
    crop: int | None = 0,
    flip: bool = False,
    randaugment: int = 0,
    random_erasing: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
) -> Augmentation | None:
    """What is done to batches of a tokenizer's patches, in this order; None where all of it is off.

    `crop` is the most pixels that a picture is shifted by, as `reach` has it, `flip` mirrors half of the pictures,
    `randaugment` is a magnitude from 1 to 9, `erase` the share of pictures of which a rectangle is lost, and `mixup`
    and `cutmix` are the alphas of their Beta distributions; where both are on, a batch has the one or the other.
    """
    limited: dict[str, tuple[float, float]] = {"randaugment": (randaugment, 9), "random_erasing": (random_erasing, 1)}
    for name, (value, most) in limited.items():
        if not 0 <= value <= most:
            raise InputError(f"{name}={value}: 0 to {most} is expected")
    for name, value in {"crop": crop, "mixup": mixup, "cutmix": cutmix}.items():
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{name}={value}: 0 or more is needed")
    changes: list[ImageTransform] = []
    if crop != 0 or flip:
        changes.append(partial(shift_and_mirror, crop=crop, flip=flip))
    if randaugment:
        pass

        changes.append(RandAugment(randaugment, tokenizer.channels))
    if random_erasing:
        changes.append(partial(erase_rectangle, share=random_erasing))
    augments: list[Augmentation] = [RandomImageTransform(tokenizer, tuple(changes))] if changes else []
    mixing: list[Augmentation] = [Mixup(classes, mixup)] if mixup else []
    if cutmix:
        mixing.append(CutMix(tokenizer, classes, cutmix))
    if mixing:
        augments.append(RandomChoice(*mixing))
    return Compose(*augments) if augments else None


def image_tta(
    tokenizer: PatchTokenizer, num_crops: int, *, crop: int | None = 0, flip: bool = False
) -> TestTimeAugmentation | None:
    """`count` views of each picture for evaluation; None where that is one, the picture as it is.

    The others are its mirror image where training mirrors, and both shifted to four sides by half of what training
    shifts at most. Raises InputError where that makes fewer views.
    """
    sides = [(0, 0), *([(-1, -1), (1, 1), (-1, 1), (1, -1)] if crop != 0 else [])]
    ways = [(side, mirrored) for side in sides for mirrored in ((False, True) if flip else (False,))]
    if not 1 <= num_crops <= len(ways):
        raise InputError(
            f"num_crops={num_crops}: with crop={crop} and flip={flip} there are 1 to {len(ways)} views of a picture"
        )

    def seen(batch: Batch) -> Iterator[Batch]:
        pictures = tokenizer.to_images(batch.values, batch.positions)
        half = (max_shift(pictures.sizes, crop) + 1) // 2
        for side, mirrored in ways[:num_crops]:
            moved = shift_images(pictures, half * half.new_tensor(side), torch.tensor([mirrored]))
            yield batch._replace(values=tokenizer.to_patches(moved.pixels, batch.positions))

    return seen if num_crops > 1 else None


@final
@dataclass(frozen=True)
class RandomImageTransform(Augmentation):
    """Changes to the pictures that a batch of patches shows."""

    tokenizer: PatchTokenizer
    changes: tuple[ImageTransform, ...]

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        pictures = self.tokenizer.to_images(batch.values, batch.positions)
        for change in self.changes:
            pictures = change(pictures, generator)
        return batch._replace(values=self.tokenizer.to_patches(pictures.pixels, batch.positions))


@final
@dataclass(frozen=True)
class CutMix(Augmentation):
    """A rectangle of each picture shows another, whose label has as large a share (Yun et al. 2019, section 3.1).

    The rectangle has the picture's own proportions and lies within it wholly; its share is drawn from
    Beta(alpha, alpha).
    """

    tokenizer: PatchTokenizer
    classes: int
    alpha: float

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        partner, share = draw_partners(batch, generator), draw_shares(batch, self.alpha, generator)
        pixels, sizes = self.tokenizer.to_images(batch.values, batch.positions)
        cut = rectangles(pixels, sizes * share.sqrt()[:, None], sizes, generator)
        kept = 1 - cut.flatten(1).sum(1) / sizes.prod(1)
        values = self.tokenizer.to_patches(pixels[partner].where(cut[:, None], pixels), batch.positions)
        return batch._replace(values=values, target=mixed_target(batch.target, partner, kept, self.classes))


def shift_and_mirror(pictures: ImageBatch, generator: torch.Generator, *, crop: int | None, flip: bool) -> ImageBatch:
    """Each picture shifted by up to `reach` pixels in both directions, and mirrored half of the time where `flip`."""
    most = max_shift(pictures.sizes, crop)
    shift = (torch.rand(most.shape, generator=generator) * (2 * most + 1)).long() - most
    mirrored = torch.rand(len(most), generator=generator) < (0.5 if flip else 0)
    return shift_images(pictures, shift, mirrored)


def max_shift(sizes: Tensor, crop: int | None) -> Tensor:
    """The most pixels that pictures of `sizes` (B, 2) are shifted by, down and to the right: (B, 2).

    It is `crop`, and never more than half of a picture's own side; None takes an eighth of that.
    """
    return sizes // 8 if crop is None else (sizes // 2).clamp(max=crop)


def shift_images(pictures: ImageBatch, shift: Tensor, mirrored: Tensor) -> ImageBatch:
    """Pictures mirrored left to right where `mirrored` (B,), then shifted down and right by `shift` (B, 2) pixels.

    One of either may stand for all. What comes in from outside of a picture is black.
    """
    pixels, sizes = pictures
    height, width = pixels.shape[2:]
    shift, mirrored = shift.to(pixels.device), mirrored.to(pixels.device)
    rows = torch.arange(height, device=pixels.device) - shift[:, :1]
    columns = torch.arange(width, device=pixels.device) - shift[:, 1:]
    shown = _between(rows, 0, sizes[:, :1])[:, :, None] & _between(columns, 0, sizes[:, 1:])[:, None]
    columns = torch.where(mirrored[:, None], sizes[:, 1:] - 1 - columns, columns)
    origin = (rows[:, :, None] * width + columns[:, None]).where(shown, 0).flatten(1)
    found = pixels.flatten(2).gather(2, origin[:, None].expand(-1, pixels.shape[1], -1)).view_as(pixels)
    return ImageBatch(found * shown[:, None], sizes)


def erase_rectangle(pictures: ImageBatch, generator: torch.Generator, *, share: float) -> ImageBatch:
    """A rectangle of noise in a share of the pictures (Zhong et al. 2020, section 3.1, with random values).

    It has 2 to 33 % of a picture's area and is up to 3.3 times as high as wide, or as wide as high.
    """
    chosen = (torch.rand(len(pictures.sizes), generator=generator) < share).nonzero()[:, 0]
    pixels, sizes = pictures.pixels[chosen], pictures.sizes[chosen]
    area, aspect = torch.rand(2, len(chosen), generator=generator)
    area = (0.02 + area * (1 / 3 - 0.02)) * sizes.prod(1)
    aspect = 3.3 ** (2 * aspect - 1)
    lost = rectangles(pixels, torch.stack([area * aspect, area / aspect], 1).sqrt(), sizes, generator)
    noise = torch.randint(256, pixels.shape, dtype=torch.uint8, generator=generator)
    erased = pictures.pixels.index_copy(0, chosen, noise.where(lost[:, None], pixels))
    return pictures._replace(pixels=erased)


def rectangles(pixels: Tensor, sides: Tensor, sizes: Tensor, generator: torch.Generator) -> Tensor:
    """A rectangle of height and width `sides` (B, 2) at a random place in each picture: (B, H, W) bool."""
    sides = sides.round().long().minimum(sizes)
    start = (torch.rand(sides.shape, generator=generator) * (sizes - sides + 1)).long()
    rows, columns = (
        _between(torch.arange(pixels.shape[2 + axis]), start[:, axis, None], (start + sides)[:, axis, None])
        for axis in (0, 1)
    )
    return rows[:, :, None] & columns[:, None]


def _between(x: Tensor, low: Tensor | int, high: Tensor) -> Tensor:
    return (x >= low) & (x < high)


@final
class RandAugment:
    """Two operations of fifteen on each picture, such as to turn or to brighten it (Cubuk et al. 2020, section 3).

    As in timm, each of the two is left out half of the time, and what comes in from outside of the picture is black.
    """

    def __init__(self, magnitude: int, channels: int) -> None:
        """`magnitude` runs from 1 to 9, around which each operation's own is drawn; at 10 a picture keeps no bits."""
        black = 0 if channels == 1 else (0,) * channels
        self.change = rand_augment_transform(f"rand-m{magnitude}-n2-mstd0.5-mmax9-inc1", {"img_mean": black})

    def __call__(self, pictures: ImageBatch, generator: torch.Generator) -> ImageBatch:
        arrays = np.array(pictures.pixels.permute(0, 2, 3, 1).numpy(), order="C")
        with _drawing_from(int(torch.randint(2**32, (), generator=generator))):
            for array, (height, width) in zip(arrays, pictures.sizes.tolist(), strict=True):
                own = array[:height, :width]
                own[:] = self._changed(own)
        return pictures._replace(pixels=torch.from_numpy(arrays).permute(0, 3, 1, 2))

    def _changed(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
        return np.asarray(self.change(image)).reshape(array.shape)


@contextmanager
def _drawing_from(seed: int) -> Generator[None]:
    """Within it, Python and NumPy draw as timm is to; torch, with which another thread may be training, as before."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
