"""Augmentation of images: shift, flip, RandAugment, random erasing, mixup and cutmix."""

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
from torch import Tensor

from unifier.augmentation.mixup import Compose, Mixup, RandomChoice, draw_partners, draw_weights, mix_targets
from unifier.data.dataloader import Augmentation, Batch, TestTimeAugmentation
from unifier_tokenizers import InputError, PatchTokenizer
from unifier_tokenizers.patches import ImageBatch

ImageTransform = Callable[[ImageBatch, torch.Generator], ImageBatch]
"""Function that changes images at random without changing their sizes."""


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
    """Return an augmentation of images, or None if no change is requested.

    Args:
        tokenizer: Tokenizer of the images.
        classes: Number of classes of the targets.
        crop: Largest shift in pixels. None means an eighth of the image's side. Pixels that are shifted in are black.
        flip: If True, mirror half of the images left to right.
        randaugment: Magnitude of RandAugment, from 1 to 9. 0 means no RandAugment.
        random_erasing: Fraction of the images in which a rectangle is replaced by noise.
        mixup: Alpha of mixup. 0 means no mixup.
        cutmix: Alpha of cutmix. 0 means no cutmix. If mixup and cutmix are both on, one method is chosen for each
            batch.

    Raises:
        InputError: A number is out of range.
    """
    bounds: dict[str, tuple[float, float]] = {"randaugment": (randaugment, 9), "random_erasing": (random_erasing, 1)}
    for name, (value, maximum) in bounds.items():
        if not 0 <= value <= maximum:
            raise InputError(f"{name}={value}: give a number from 0 to {maximum}")
    for name, value in {"crop": crop, "mixup": mixup, "cutmix": cutmix}.items():
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{name}={value}: give 0 or a number above 0")
    transforms: list[ImageTransform] = []
    if crop != 0 or flip:
        transforms.append(partial(shift_and_flip, crop=crop, flip=flip))
    if randaugment:
        transforms.append(RandAugment(randaugment, tokenizer.channels))
    if random_erasing:
        transforms.append(partial(erase_rectangle, share=random_erasing))
    augmentations: list[Augmentation] = [RandomImageTransform(tokenizer, tuple(transforms))] if transforms else []
    mixing: list[Augmentation] = [Mixup(classes, mixup)] if mixup else []
    if cutmix:
        mixing.append(CutMix(tokenizer, classes, cutmix))
    if mixing:
        augmentations.append(RandomChoice(*mixing))
    return Compose(*augmentations) if augmentations else None


def image_tta(
    tokenizer: PatchTokenizer, num_crops: int, *, crop: int | None = 0, flip: bool = False
) -> TestTimeAugmentation | None:
    """Return the test-time augmentation of images, or None if no view would differ from the image.

    The first view is the image itself. All views except the first are mirrored, shifted toward a corner, or mirrored
    and shifted. The shift is half of the largest shift in training.

    Args:
        tokenizer: Tokenizer of the images.
        num_crops: Number of views of each image.
        crop: Largest shift in training, as in `augment_images`. 0 means no shifted views.
        flip: If True, add mirrored views.

    Raises:
        InputError: `num_crops` is below 1 or above the number of possible views.
    """
    views = len(_image_views(crop, flip))
    if not 1 <= num_crops <= views:
        raise InputError(
            f"num_crops={num_crops}: with crop={crop} and flip={flip}, give a number of views from 1 to {views}"
        )
    return ImageViews(tokenizer, num_crops, crop, flip) if num_crops > 1 else None


def _image_views(crop: int | None, flip: bool) -> list[tuple[tuple[int, int], bool]]:
    """Return the direction of the shift and the mirroring of every possible view."""
    corners = [(0, 0), *([(-1, -1), (1, 1), (-1, 1), (1, -1)] if crop != 0 else [])]
    return [(corner, flipped) for corner in corners for flipped in ((False, True) if flip else (False,))]


@final
@dataclass(frozen=True)
class ImageViews(TestTimeAugmentation):
    """Shifted and mirrored views of images (see `image_tta`)."""

    tokenizer: PatchTokenizer
    num_crops: int
    crop: int | None
    flip: bool

    def __call__(self, batch: Batch) -> Iterator[Batch]:
        images = self.tokenizer.to_images(batch.values, batch.positions)
        half = (max_shift(images.sizes, self.crop) + 1) // 2
        for corner, flipped in _image_views(self.crop, self.flip)[: self.num_crops]:
            view = shift_images(images, half * half.new_tensor(corner), torch.tensor([flipped]))
            yield batch._replace(values=self.tokenizer.to_patches(view.pixels, batch.positions))


@final
@dataclass(frozen=True)
class RandomImageTransform(Augmentation):
    """Random changes of the images in a batch of patches."""

    tokenizer: PatchTokenizer
    transforms: tuple[ImageTransform, ...]

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        images = self.tokenizer.to_images(batch.values, batch.positions)
        for transform in self.transforms:
            images = transform(images, generator)
        return batch._replace(values=self.tokenizer.to_patches(images.pixels, batch.positions))


@final
@dataclass(frozen=True)
class CutMix(Augmentation):
    """Cutmix of images (Yun et al. 2019, section 3.1).

    A rectangle of each image is replaced by pixels of a second image. The weight of the second image's label is the
    rectangle's area divided by the image's area. The ratio of the areas is drawn from Beta(alpha, alpha). The rectangle
    has the aspect ratio of the image and is completely inside the image.
    """

    tokenizer: PatchTokenizer
    classes: int
    """Number of classes C of the targets."""
    alpha: float

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        partners, share = draw_partners(batch, generator), draw_weights(batch, self.alpha, generator)
        pixels, sizes = self.tokenizer.to_images(batch.values, batch.positions)
        replaced = draw_rectangles(pixels, sizes * share.sqrt()[:, None], sizes, generator)
        weights = 1 - replaced.flatten(1).sum(1) / sizes.prod(1)
        values = self.tokenizer.to_patches(pixels[partners].where(replaced[:, None], pixels), batch.positions)
        return batch._replace(values=values, target=mix_targets(batch.target, partners, weights, self.classes))


def shift_and_flip(images: ImageBatch, generator: torch.Generator, *, crop: int | None, flip: bool) -> ImageBatch:
    """Shift each image at random by up to `max_shift` pixels. If `flip` is True, mirror half of the images."""
    largest = max_shift(images.sizes, crop)
    shift = (torch.rand(largest.shape, generator=generator) * (2 * largest + 1)).long() - largest
    flipped = torch.rand(len(largest), generator=generator) < (0.5 if flip else 0)
    return shift_images(images, shift, flipped)


def max_shift(sizes: Tensor, crop: int | None) -> Tensor:
    """Return the largest vertical and horizontal shift (B, 2) in pixels of images with `sizes` (B, 2).

    The largest shift is `crop`, but at most half of the image's side. With `crop=None`, the largest shift is an eighth
    of the image's side.
    """
    return sizes // 8 if crop is None else (sizes // 2).clamp(max=crop)


def shift_images(images: ImageBatch, shift: Tensor, flipped: Tensor) -> ImageBatch:
    """Mirror images left to right, and then shift the images. Pixels that are shifted in are black.

    Args:
        images: B images.
        shift: Shifts (B, 2) down and right in pixels, or one shift (1, 2) for all images.
        flipped: True for each image to mirror (B,), or one value (1,) for all images.
    """
    pixels, sizes = images
    height, width = pixels.shape[2:]
    shift, flipped = shift.to(pixels.device), flipped.to(pixels.device)
    rows = torch.arange(height, device=pixels.device) - shift[:, :1]
    columns = torch.arange(width, device=pixels.device) - shift[:, 1:]
    inside = _between(rows, 0, sizes[:, :1])[:, :, None] & _between(columns, 0, sizes[:, 1:])[:, None]
    columns = torch.where(flipped[:, None], sizes[:, 1:] - 1 - columns, columns)
    sources = (rows[:, :, None] * width + columns[:, None]).where(inside, 0).flatten(1)
    shifted = pixels.flatten(2).gather(2, sources[:, None].expand(-1, pixels.shape[1], -1)).view_as(pixels)
    return ImageBatch(shifted * inside[:, None], sizes)


def erase_rectangle(images: ImageBatch, generator: torch.Generator, *, share: float) -> ImageBatch:
    """Replace a rectangle by noise with probability `share` in each image (Zhong et al. 2020, section 3.1).

    The rectangle has 2 to 33 percent of the image's area. The longer side is at most 3.3 times the shorter side.
    """
    chosen = (torch.rand(len(images.sizes), generator=generator) < share).nonzero()[:, 0]
    pixels, sizes = images.pixels[chosen], images.sizes[chosen]
    area, aspect = torch.rand(2, len(chosen), generator=generator)
    area = (0.02 + area * (1 / 3 - 0.02)) * sizes.prod(1)
    aspect = 3.3 ** (2 * aspect - 1)
    erased = draw_rectangles(pixels, torch.stack([area * aspect, area / aspect], 1).sqrt(), sizes, generator)
    noise = torch.randint(256, pixels.shape, dtype=torch.uint8, generator=generator)
    return images._replace(pixels=images.pixels.index_copy(0, chosen, noise.where(erased[:, None], pixels)))


def draw_rectangles(pixels: Tensor, sides: Tensor, sizes: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a random position for one rectangle in each image.

    Args:
        pixels: Images (B, C, H, W).
        sides: Height and width (B, 2) of the rectangles. Heights and widths are rounded, and limited to the image's
            size.
        sizes: Height and width (B, 2) of the images.
        generator: Source of the random numbers.

    Returns:
        A mask (B, H, W) bool, True for pixels inside a rectangle.
    """
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
    """RandAugment: two random operations on each image, such as rotation or brightness (Cubuk et al. 2020, section 3).

    timm implements the fifteen operations. Each operation is left out with a probability of one half. Rotated or
    shifted images have black borders.
    """

    def __init__(self, magnitude: int, channels: int) -> None:
        """Build the operations.

        Args:
            magnitude: Mean magnitude of the operations, from 1 to 9. With 10, an operation could reduce images to 0
                bits per channel.
            channels: Number of channels, 1 or 3.
        """
        from timm.data.auto_augment import rand_augment_transform  # timm is imported only where it is used.

        black = 0 if channels == 1 else (0,) * channels
        self.transform = rand_augment_transform(f"rand-m{magnitude}-n2-mstd0.5-mmax9-inc1", {"img_mean": black})

    def __call__(self, images: ImageBatch, generator: torch.Generator) -> ImageBatch:
        arrays = np.array(images.pixels.permute(0, 2, 3, 1).numpy(), order="C")
        with _seeded(int(torch.randint(2**32, (), generator=generator))):
            for array, (height, width) in zip(arrays, images.sizes.tolist(), strict=True):
                real = array[:height, :width]
                real[:] = self._transform_array(real)
        return images._replace(pixels=torch.from_numpy(arrays).permute(0, 3, 1, 2))

    def _transform_array(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
        return np.asarray(self.transform(image)).reshape(array.shape)


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Seed the global random generators of Python and NumPy for timm, and restore both states at the end.

    torch's global generator is not seeded, because another thread may use this generator for training.
    """
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
