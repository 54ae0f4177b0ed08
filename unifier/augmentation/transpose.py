"""Transposition of symbolic music to another key."""

from dataclasses import dataclass
from typing import final

import torch

from unifier.data.dataloader import Augmentation, Batch
from unifier_tokenizers import InputError


@final
@dataclass(frozen=True)
class Transpose(Augmentation):
    """Shift all notes of a piece by a random number of semitones. The values are piano rolls (B, 88, N).

    A shift that would move a note off the keyboard is not drawn.
    """

    semitones: int
    """The largest shift, up or down."""

    def __post_init__(self) -> None:
        if self.semitones < 1:
            raise InputError(f"semitones={self.semitones}: at least 1 is needed")

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        sounds = batch.values.amax(-1)
        lowest = sounds.argmax(1).clamp(max=self.semitones)
        highest = sounds.flip(1).argmax(1).clamp(max=self.semitones)
        # A shift is uniform from -lowest to highest.
        drawn = torch.rand(len(sounds), generator=generator) * (lowest + highest + 1)
        shifts = drawn.long() - lowest
        rows = (torch.arange(sounds.shape[1]) - shifts[:, None]) % sounds.shape[1]
        return batch._replace(values=batch.values.gather(1, rows[..., None].expand_as(batch.values)))
