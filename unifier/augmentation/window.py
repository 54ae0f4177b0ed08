"""Random windows of long sequences, such as parts of a text."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from unifier.augmentation.audio import crop_batch
from unifier.data.dataloader import Augmentation, Batch
from unifier.data.storage import Crop
from unifier_tokenizers import NO_POSITION, InputError


@final
@dataclass(frozen=True)
class RandomWindow(Augmentation):
    """Random choice of `length` neighboring tokens of each example, whose positions then begin at 0."""

    length: int
    """The number of tokens of a window. Shorter examples are not changed."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"length={self.length}: a window needs at least 1 token")

    def max_length(self) -> int:
        return self.length

    def crop(self, lengths: Tensor, generator: torch.Generator) -> Crop | None:
        excess = (lengths - self.length).clamp(min=0)
        if not excess.any():
            return None
        return Crop((torch.rand(len(excess), generator=generator) * (excess + 1)).long().clamp(max=excess), self.length)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        crop = self.crop(batch.mask.sum(1), generator)  # Batches from the data loader are already cropped.
        if crop is not None:
            batch = crop_batch(batch, crop)
        shifted = batch.positions - batch.positions[:, :, :1]
        return batch._replace(positions=shifted.masked_fill_(~batch.mask[:, None], NO_POSITION))
