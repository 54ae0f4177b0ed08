"""Augmentation of one member of a mixture, such as the pictures beside texts."""

from dataclasses import dataclass
from typing import final

import torch

from unifier.data.dataloader import Augmentation, Batch
from unifier_tokenizers import InputError, Mixture
from unifier_tokenizers.errors import check_choice


@final
@dataclass(frozen=True)
class AugmentMember(Augmentation):
    """Random change of one member of a mixture. The other members and the number of tokens do not change."""

    mixture: Mixture
    member: str
    """The name of the member."""
    augmentation: Augmentation
    """The augmentation of the member's tokens, such as random shifts of pictures."""

    def __post_init__(self) -> None:
        check_choice("member", self.member, [*self.mixture.members])

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        member = self.mixture.unpack(self.member, batch.values, batch.positions)
        if member is None:
            return batch
        values, positions, mask = member
        changed = self.augmentation(batch._replace(values=values, positions=positions, mask=mask), generator)
        is_same = changed.values.shape == values.shape and changed.values.dtype == values.dtype
        if not is_same or not torch.equal(changed.positions, positions) or not torch.equal(changed.mask, mask):
            raise InputError(
                f"{type(self.augmentation).__name__} moves, adds or removes tokens of the member {self.member!r}, or "
                "changes their dtype: an augmentation of a mixture can only change their values"
            )
        return batch._replace(
            values=self.mixture.pack(self.member, batch.values, changed.values), target=changed.target
        )
