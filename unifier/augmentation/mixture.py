"""Augmentation of one member of a mixture, such as the pictures beside texts."""

from dataclasses import dataclass
from typing import final

import torch

from unifier.data.dataloader import Augmentation, Batch
from unifier_tokenizers import InputError, Mixture


@final
@dataclass(frozen=True)
class AugmentMember(Augmentation):
    """Random change of one member of a mixture. The other members and the number of tokens do not change."""

    mixture: Mixture
    member: str
    """The name of the member."""
    augmentation: Augmentation
    """The augmentation of the member's tokens, such as random shifts of pictures."""

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        values, positions, mask = self.mixture.unpack(self.member, batch.values, batch.positions)
        changed = self.augmentation(batch._replace(values=values, positions=positions, mask=mask), generator)
        if changed.values.shape != values.shape or not torch.equal(changed.positions, positions):
            raise InputError(
                f"{type(self.augmentation).__name__} moves or removes tokens of the member {self.member!r}: an "
                "augmentation of a mixture can only change their values"
            )
        return batch._replace(
            values=self.mixture.pack(self.member, batch.values, changed.values), target=changed.target
        )
