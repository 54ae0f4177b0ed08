"""Augmentation of pictures together with their masks: mirror images and quarter turns."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from unifier.data.dataloader import Augmentation, Batch
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import PatchTokenizer
from unifier_tokenizers.patches import images_to_patches, patches_to_images


@final
@dataclass(frozen=True)
class FlipWithMask(Augmentation):
    """Random mirror images of pictures and their masks, and random transposition of square pictures.

    Both axes of a picture are mirrored independently, so a square picture has eight equally probable versions.
    """

    tokenizer: PatchTokenizer

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        patch = self.tokenizer.patch
        pixels, sizes = patches_to_images(batch.values, batch.positions, patch, patch)
        masks, _ = patches_to_images(batch.target - IGNORE_INDEX, batch.positions, patch, patch)
        flips = torch.rand(3, len(sizes), generator=generator) < 0.5
        pixels, masks = (flip_pictures(planes, sizes, flips) for planes in (pixels, masks))
        return batch._replace(
            values=images_to_patches(pixels, batch.positions, patch, patch),
            target=images_to_patches(masks, batch.positions, patch, patch) + IGNORE_INDEX,
        )


def flip_pictures(planes: Tensor, sizes: Tensor, flips: Tensor) -> Tensor:
    """Mirror and transpose pictures in the upper left corners of planes (B, C, H, W).

    Args:
        planes: The planes.
        sizes: The height and width of each picture (B, 2).
        flips: True for each picture to mirror along the height, along the width, and along the diagonal (3, B).
    """
    height, width = planes.shape[2:]
    rows, columns = (torch.arange(side).expand(len(planes), -1) for side in (height, width))
    rows, columns = (
        torch.where(flipped[:, None] & (x < side[:, None]), side[:, None] - 1 - x, x)
        for x, side, flipped in zip((rows, columns), sizes.T, flips[:2], strict=True)
    )
    rows, columns = rows[:, :, None].expand(-1, -1, width), columns[:, None].expand(-1, height, -1)
    is_transposed = (flips[2] & (sizes[:, 0] == sizes[:, 1]))[:, None, None]
    is_inside = (rows < sizes[:, :1, None]) & (columns < sizes[:, 1:, None])
    rows, columns = (
        torch.where(is_transposed & is_inside, other, own) for own, other in ((rows, columns), (columns, rows))
    )
    sources = (rows * width + columns).flatten(1)[:, None].expand(-1, planes.shape[1], -1)
    return planes.flatten(2).gather(2, sources).view_as(planes)
