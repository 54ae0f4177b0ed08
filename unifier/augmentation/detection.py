"""Augmentation of pictures together with the boxes of their objects: mirror images and quarter turns."""

from dataclasses import dataclass
from typing import final

import torch

from unifier.augmentation.segmentation import flip_pictures
from unifier.data.dataloader import Augmentation, Batch
from unifier.heads.detection import STEPS_PER_PIXEL
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import PatchTokenizer
from unifier_tokenizers.patches import images_to_patches, patches_to_images


@final
@dataclass(frozen=True)
class FlipWithBoxes(Augmentation):
    """Random mirror images of pictures and their boxes, and random transposition of square pictures.

    Both axes of a picture are mirrored independently, so a square picture has eight equally probable versions.
    """

    tokenizer: PatchTokenizer

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        patch = self.tokenizer.patch
        pixels, sizes = patches_to_images(batch.values, batch.positions, patch, patch)
        flips = torch.rand(3, len(sizes), generator=generator) < 0.5
        pixels = flip_pictures(pixels, sizes, flips)
        labels, x0, y0, x1, y1 = batch.target.unbind(1)
        is_transposed = (flips[2] & (sizes[:, 0] == sizes[:, 1]))[:, None]
        x0, y0 = torch.where(is_transposed, y0, x0), torch.where(is_transposed, x0, y0)
        x1, y1 = torch.where(is_transposed, y1, x1), torch.where(is_transposed, x1, y1)
        height, width = (sizes * STEPS_PER_PIXEL).to(x0.dtype).T[:, :, None]
        x0, x1 = torch.where(flips[1][:, None], width - x1, x0), torch.where(flips[1][:, None], width - x0, x1)
        y0, y1 = torch.where(flips[0][:, None], height - y1, y0), torch.where(flips[0][:, None], height - y0, y1)
        target = torch.stack([labels, x0, y0, x1, y1], 1).masked_fill((labels == IGNORE_INDEX)[:, None], IGNORE_INDEX)
        return batch._replace(values=images_to_patches(pixels, batch.positions, patch, patch), target=target)
