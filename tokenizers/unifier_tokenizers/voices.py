"""The tokenizer for music in several voices, which turns each note of each time step into one token."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.piano_roll import LOWEST_NOTE, NUM_NOTES
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units

REST, BEGIN_PIECE = 0, NUM_NOTES + 1
"""The id of a voice that rests, and the id of the begin token. The keys of a piano have the ids 1 to 88."""

BAR_STEPS = 16
"""The number of time steps after which the places in the bar repeat: sixteen sixteenths."""


@final
class VoiceTokenizer(Tokenizer):
    """Tokenizer that turns a begin token and each note of a piece in several voices into tokens.

    The values are ids (N,), N = 1 + steps * voices: all voices of the first step, then all voices of the second step.
    The positions (2, N) are the step and the voice. A token is the embedding of its id, plus a learned vector for the
    voice and the place in the bar, plus the encoding of its position.
    """

    unit = "notes"
    num_ids = NUM_NOTES + 1
    """The number of ids that can be predicted: a rest and the keys of a piano."""

    def __init__(
        self,
        dim: int,
        *,
        voices: int = 4,
        positions: PositionKind = "sinusoid",
        length: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            voices: The number of notes of a step.
            positions: The kind of positional encoding.
            length: The maximum number of steps of a piece, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        if voices < 1:
            raise InputError(f"voices={voices}: at least 1 is needed")
        self.voices = voices
        self.embedding = nn.Embedding(self.num_ids + 1, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.places = nn.Embedding(1 + BAR_STEPS * voices, dim)
        nn.init.normal_(self.places.weight, std=0.5)  # See `PositionalEncoding`.
        self.encoding = PositionalEncoding(positions, dim, (length, voices))
        self.dropout = Dropout(dropout)

    def encode(self, raw: Sequence[Sequence[int | None]]) -> Units:
        """Encode a piece as ids (N,) at steps and voices (2, N). The begin token has no position.

        Args:
            raw: The MIDI number of each voice, 21 to 108, for each time step. None means a rest.
        """
        steps = [*raw] if isinstance(raw, Sequence) and not isinstance(raw, str) else []
        if not steps or not all(isinstance(notes, Sequence) and len(notes) == self.voices for notes in steps):
            raise InputError(
                f"a piece in {self.voices} voices is expected: a list of time steps, each a list of {self.voices} MIDI "
                "notes or None"
            )
        ids = [BEGIN_PIECE]
        for n, notes in enumerate(steps):
            for note in notes:
                if note is not None and not (isinstance(note, int) and 0 <= note - LOWEST_NOTE < NUM_NOTES):
                    raise InputError(
                        f"step {n} has the note {note!r}: a MIDI number from {LOWEST_NOTE} to "
                        f"{LOWEST_NOTE + NUM_NOTES - 1} is expected, or None for a rest"
                    )
                ids.append(REST if note is None else note - LOWEST_NOTE + 1)
        positions = self.note_positions(len(steps))
        self.encoding.check(positions)
        return Units(torch.tensor(ids), positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn ids (B, N) at positions (B, 2, N) into tokens (B, D, N)."""
        step, voice = positions[:, 0], positions[:, 1]
        place = torch.where(voice == NO_POSITION, 0, 1 + step % BAR_STEPS * self.voices + voice)
        columns = self.embedding(values) * self.dim**0.5 + self.places(place)
        return self.dropout(self.encoding(columns.mT, positions))

    def note_positions(self, steps: int) -> Tensor:
        """Return the step and the voice of the begin token and of each note (2, 1 + steps * voices)."""
        index = torch.arange(steps * self.voices)
        notes = torch.stack([index // self.voices, index % self.voices])
        return nn.functional.pad(notes, (1, 0), value=NO_POSITION)

    def to_steps(self, ids: Tensor) -> list[list[int | None]]:
        """Return the MIDI number of each voice for each time step, given ids (1 + steps * voices,)."""
        notes = [None if i == REST else i + LOWEST_NOTE - 1 for i in ids[1:].tolist()]
        return [notes[n : n + self.voices] for n in range(0, len(notes), self.voices)]
