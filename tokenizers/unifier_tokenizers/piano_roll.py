"""The tokenizer for symbolic music, which turns each time step with its notes into one token."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

LOWEST_NOTE, NUM_NOTES = 21, 88
"""MIDI number of the lowest key of a piano (A0), and the number of keys."""


@final
class PianoRollTokenizer(Tokenizer):
    """Tokenizer that turns each time step of a piece into one token.

    The values are a piano roll (88, N) with 1 for each note that sounds, at positions (1, N). A token is the sum of one
    learned vector per sounding note, plus the encoding of its position.
    """

    unit = "steps"
    lowest_note, num_notes = LOWEST_NOTE, NUM_NOTES

    def __init__(
        self, dim: int, *, positions: PositionKind = "sinusoid", length: int = 4096, dropout: float = 0.0
    ) -> None:
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            positions: The kind of positional encoding.
            length: The maximum number of steps of a piece, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        self.project = nn.Linear(NUM_NOTES, dim)
        nn.init.normal_(self.project.weight, std=0.5)  # Four sounding notes have the size of the sinusoids.
        self.encoding = PositionalEncoding(positions, dim, (length,))
        self.dropout = Dropout(dropout)

    def encode(self, raw: Sequence[Sequence[int]]) -> Units:
        """Encode a piece as a piano roll (88, N).

        Args:
            raw: The MIDI numbers of the sounding notes, 21 to 108, for each of N time steps.
        """
        steps = [*raw] if isinstance(raw, Sequence) else []
        if not steps or not all(isinstance(notes, Sequence) and not isinstance(notes, str) for notes in steps):
            raise InputError("a piece is expected: a list of time steps, each a list of MIDI notes such as [60, 64]")
        roll = torch.zeros(NUM_NOTES, len(steps), dtype=torch.uint8)
        for n, notes in enumerate(steps):
            for note in notes:
                if not isinstance(note, int) or not LOWEST_NOTE <= note < LOWEST_NOTE + NUM_NOTES:
                    raise InputError(
                        f"step {n} has the note {note!r}: a MIDI number from {LOWEST_NOTE} to "
                        f"{LOWEST_NOTE + NUM_NOTES - 1} is expected"
                    )
                roll[note - LOWEST_NOTE, n] = 1
        positions = torch.arange(len(steps))[None]
        self.encoding.check(positions)
        return Units(roll, positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn piano rolls (B, 88, N) at positions (B, 1, N) into tokens (B, D, N)."""
        return self.dropout(self.encoding(self.project(values.mT.float()).mT, positions))

    @staticmethod
    def to_steps(roll: Tensor) -> list[list[int]]:
        """Return the MIDI numbers of the sounding notes of each step of a piano roll (88, N)."""
        return [(step.nonzero()[:, 0] + LOWEST_NOTE).tolist() for step in roll.T]
