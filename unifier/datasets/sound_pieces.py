"""Sounds cut into pieces whose samples are predicted one by one."""

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.dataset import Examples, open_split
from unifier.data.inputs import AudioReader
from unifier.data.source import Example, ScoreRange, Source, SplitName, describe_example, name_of
from unifier_tokenizers import Audio, InputError, SampleTokenizer
from unifier_tokenizers.audio import resample
from unifier_tokenizers.samples import NUM_CODES


@final
class SoundPieces:
    """Source whose examples are pieces of the sounds of another source, for the objective `NextToken`.

    A piece has `length` samples. The last piece of a sound is shorter, and a last piece of one sample is left out. A
    piece has no context before its first sample, and no target.
    """

    def __init__(self, source: Source, sample_rate: int, length: int, independent_sample_nats: float) -> None:
        """Store the source. Its sounds are read later.

        Args:
            source: A source whose inputs are sounds.
            sample_rate: The sample rate of the pieces in Hz.
            length: The number of samples of a piece.
            independent_sample_nats: The loss at chance level (see `independent_sample_nats`).
        """
        if length < 2:
            raise InputError(f"length={length}: a piece needs at least 2 samples")
        self.name, self.sha256 = f"{name_of(source)}_samples", getattr(source, "sha256", "")
        self.reader, self.license = AudioReader(), getattr(source, "license", None)
        origin = "chance: each sample by the frequencies of the codes in train"
        self.score_range = ScoreRange("nats_per_sample", independent_sample_nats, None, origin)
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


def independent_sample_nats(source: Source, tokenizer: SampleTokenizer) -> float:
    """Return the test loss in nats per sample if each sample is predicted by the frequency of its code in train.

    Args:
        source: The sounds.
        tokenizer: The tokenizer. The count of each code is increased by 1.
    """
    train, test = (_count_codes(source, "train", tokenizer), _count_codes(source, "test", tokenizer))
    return float(-(np.log((train + 1) / (train + 1).sum()) * test).sum() / max(test.sum(), 1))


def _count_codes(source: Source, split: SplitName, tokenizer: SampleTokenizer) -> NDArray[np.int64]:
    codes = (tokenizer.encode(example.input).values[1:].numpy() for example in open_split(source, split))
    return sum((np.bincount(each, minlength=NUM_CODES) for each in codes), np.zeros(NUM_CODES, np.int64))


def _read_piece(piece: _Piece) -> Example:
    return Example(Audio(piece.samples, piece.sample_rate), None)


def _locate_piece(piece: _Piece) -> str:
    return piece.place
