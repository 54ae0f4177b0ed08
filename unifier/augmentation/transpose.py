"""Transposition of symbolic music to another key, as piano rolls or as voices."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from unifier.data.dataloader import Augmentation, Batch
from unifier_tokenizers import InputError
from unifier_tokenizers.piano_roll import NUM_NOTES


@final
@dataclass(frozen=True)
class Transpose(Augmentation):
    """Shift all notes of a piece by a random number of semitones. The values are piano rolls (B, 88, N).

    A shift that would move a note off the keyboard is not drawn.
    """

    semitones: int
    """The largest shift, up or down."""

    def __post_init__(self) -> None:
        _check_semitones(self.semitones)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        sounds = batch.values.amax(-1)
        shifts = _draw_shifts(sounds.argmax(1), sounds.flip(1).argmax(1), self.semitones, generator)
        rows = (torch.arange(sounds.shape[1]) - shifts[:, None]) % sounds.shape[1]
        return batch._replace(values=batch.values.gather(1, rows[..., None].expand_as(batch.values)))


@final
@dataclass(frozen=True)
class TransposeVoices(Augmentation):
    """Shift all notes of a piece by a random number of semitones. The values are ids (B, N) of a `VoiceTokenizer`.

    Rests and the begin token keep their ids. A shift that would move a note off the keyboard is not drawn.
    """

    semitones: int
    """The largest shift, up or down."""

    def __post_init__(self) -> None:
        _check_semitones(self.semitones)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        values = batch.values
        is_note = (values >= 1) & (values <= NUM_NOTES) & batch.mask
        lowest = values.masked_fill(~is_note, NUM_NOTES).amin(1)
        highest = values.masked_fill(~is_note, 1).amax(1)
        shifts = _draw_shifts(lowest - 1, NUM_NOTES - highest, self.semitones, generator)
        return batch._replace(values=torch.where(is_note, values + shifts[:, None], values).to(values.dtype))


def _check_semitones(semitones: int) -> None:
    if semitones < 1:
        raise InputError(f"semitones={semitones}: at least 1 is needed")


def _draw_shifts(below: Tensor, above: Tensor, semitones: int, generator: torch.Generator) -> Tensor:
    """Draw a shift (B,) for each piece, given the numbers of free keys (B,) below and above its notes."""
    below, above = below.clamp(max=semitones), above.clamp(max=semitones)
    # A shift is uniform from -below to above.
    return (torch.rand(len(below), generator=generator) * (below + above + 1)).long() - below
