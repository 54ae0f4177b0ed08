"""Sounds cut into pieces whose samples are predicted one by one."""

from typing import NamedTuple, final

from torch import Tensor

from unifier.data.dataset import Examples, open_split
from unifier.data.inputs import AudioReader
from unifier.data.source import Example, Source, SplitName, describe_example, name_of
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.audio import resample


@final
class SoundPieces:
    """Source whose examples are pieces of the sounds of another source, for the objective `NextToken`.

    A piece has `length` samples. The last piece of a sound is shorter, and a last piece of one sample is left out. A
    piece has no context before its first sample, and no target.
    """

    def __init__(self, source: Source, sample_rate: int, length: int) -> None:
        """Store the source. Its sounds are read later.

        Args:
            source: A source whose inputs are sounds.
            sample_rate: The sample rate of the pieces in Hz.
            length: The number of samples of a piece.
        """
        if length < 2:
            raise InputError(f"length={length}: a piece needs at least 2 samples")
        self.name, self.sha256 = f"{name_of(source)}_samples", getattr(source, "sha256", "")
        self.reader, self.license = AudioReader(), getattr(source, "license", None)
        self._source, self._sample_rate, self._length = source, sample_rate, length

    def split(self, name: SplitName) -> Examples["_Piece"]:
        """Return the pieces of one split, in the order of the sounds."""
        sounds, pieces = open_split(self._source, name), list[_Piece]()
        for index in range(len(sounds)):
            samples = resample(sounds[index].input, self._sample_rate, 1)
            place = describe_example(sounds, index)
            for start in range(0, len(samples) - 1, self._length):
                # A copy, because a view would be sent to data workers together with the complete sound.
                part = samples[start : start + self._length].clone()
                pieces.append(_Piece(f"{place}, from {start / self._sample_rate:.3f} s", part, self._sample_rate))
        return Examples(pieces, _read_piece, _locate_piece)


class _Piece(NamedTuple):
    place: str
    samples: Tensor
    sample_rate: int


def _read_piece(piece: _Piece) -> Example:
    return Example(Audio(piece.samples, piece.sample_rate), None)


def _locate_piece(piece: _Piece) -> str:
    return piece.place
