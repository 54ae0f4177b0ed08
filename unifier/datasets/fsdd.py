"""FSDD: spoken digits, recorded by six speakers."""

import math
import re
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from unifier.data.audio_files import read_audio
from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import Archive, hash_files, read_archive
from unifier.data.source import (
    NO_SCORE_RANGE,
    SPLITS,
    Example,
    ScoreRange,
    SplitName,
    accuracy_range,
    data_folder,
)
from unifier.data.splits import rotate_folds, select_part
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.errors import check_choice

FSDD_REFERENCE = (
    "support vector machine on means and deviations of MFCCs, leaving one speaker out, measured by the maintainers of "
    "this copy"
)

SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")

RECORDING = re.compile(r"(?P<digit>\d)_(?P<speaker>[a-z]+)_(?P<number>\d+)\.wav")

TEST_END, VAL_END = 5, 10
"""Each speaker recorded each digit fifty times. Recordings 0 to 4 are the official test set, and recordings 5 to 9 are
for val."""


FADE = 80
"""Number of samples in which a digit of a string is faded in and out."""


class Recording(NamedTuple):
    """A sound, its speaker, and its number. A speaker's recordings of one digit are numbered from 0."""

    sound: LabeledFile
    speaker: str
    number: int


@final
class FSDD:
    """FSDD: 3,000 spoken digits of six speakers, with 2,400 for train, 300 for val and 300 for test.

    The input is an `Audio` (samples,) at 8 kHz that is 0.1 to 2.3 seconds long. The target is the digit, "0" to "9".
    In the official split, all speakers are in train, val and test, so nearly every model gets a high score. A test on a
    speaker who is not in train is harder.

    Source: Jackson, "Free Spoken Digit Dataset", from 2016; license CC BY-SA 4.0.
    """

    name = "fsdd"
    license = "CC BY-SA 4.0"
    labels = tuple("0123456789")
    folds = tuple(range(len(SPEAKERS)))
    """The indices of the speakers in `SPEAKERS`."""

    def __init__(self, *, speaker: str | None = None, data: str | Path | None = None) -> None:
        """Choose the split.

        Args:
            speaker: The speaker to test on, one of `SPEAKERS`. The next speaker is the val split, and the remaining
                four speakers are the train split. None means the official split.
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self.speaker = speaker if speaker is None else check_choice("speaker", speaker, SPEAKERS)
        self._data = data
        reference = (99.3, "GLaSS-CNN, 2025, score in its abstract") if speaker is None else (60.0, FSDD_REFERENCE)
        self.score_range = accuracy_range(self.labels, *reference)

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the recordings of one split, sorted by file name."""
        sounds = [recording.sound for recording in self.recordings(name)]
        return from_files(sounds, partial(read_audio, archive=self.archive))

    def recordings(self, name: SplitName) -> list[Recording]:
        """Return the recordings of one split with their speakers, sorted by file name."""
        return select_part(self._recordings, self._parts, name)

    @cached_property
    def sha256(self) -> str:
        """The hash of the archive, or of all recordings in the folder."""
        if self.archive:
            return hash_files({self._archive_path.name: self._archive_path})
        return hash_files({recording.sound.path.name: recording.sound.path for recording in self._recordings})

    @cached_property
    def _parts(self) -> list[SplitName]:
        if self.speaker is not None:
            speakers = [SPEAKERS.index(recording.speaker) for recording in self._recordings]
            return rotate_folds(self.name, speakers, SPEAKERS.index(self.speaker))
        numbers = [recording.number for recording in self._recordings]
        return ["test" if number < TEST_END else "val" if number < VAL_END else "train" for number in numbers]

    @cached_property
    def _recordings(self) -> list[Recording]:
        paths = self.archive or (self._folder / "recordings").iterdir()
        matches = [(path, match) for path in sorted(paths) if (match := RECORDING.fullmatch(path.name))]
        if not matches:
            raise InputError(f"{self._folder} has no recordings: put there files such as 7_theo_49.wav")
        return [
            Recording(
                LabeledFile(path, match["digit"]),
                check_choice(f"speaker ({path})", match["speaker"], SPEAKERS),
                int(match["number"]),
            )
            for path, match in matches
        ]

    @cached_property
    def archive(self) -> dict[Path, bytes]:
        """The files in recordings.zip. Empty if the recordings are in a folder."""
        return {} if (self._folder / "recordings").is_dir() else read_archive(self._archive_path)

    @property
    def _archive_path(self) -> Path:
        return self._folder / "recordings.zip"

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        hint = (
            "put there the folder recordings of github.com/Jakobovski/free-spoken-digit-dataset, or a zip archive of "
            "this folder"
        )
        if not (folder / "recordings").is_dir():
            require_file(self.name, folder, ("recordings.zip",), hint)
        return folder


class DigitString(NamedTuple):
    """The recordings of a string of digits, and the pauses between them."""

    recordings: tuple[Recording, ...]
    seed: int
    """The seed of the lengths of the pauses, and of their noise."""
    pauses: tuple[float, float]
    """The length of the shortest and of the longest possible pause, in seconds."""


@final
class FSDDStrings:
    """Strings of spoken digits, composed of the recordings of one speaker of FSDD.

    The input is an `Audio` (samples,) at 8 kHz. The target is the string of digits, such as "3755". The speaker of test
    and the speaker of val speak in no other split, or all speakers speak in all splits, each with other recordings. A
    pause follows each digit. The pause is noise as loud as the quietest part of the digit, and each digit is faded in
    and out, so a joint is not a click.
    """

    name = "fsdd_strings"
    license = FSDD.license
    labels = FSDD.labels
    folds = FSDD.folds
    speakers = SPEAKERS
    score_range = ScoreRange("error_rate", 100.0, None, NO_SCORE_RANGE)

    def __init__(
        self,
        speaker: str | None = SPEAKERS[0],
        *,
        train: int = 4000,
        held_out: int = 300,
        lengths: tuple[int, int] = (3, 7),
        longer: tuple[int, int] | None = None,
        pauses: tuple[float, float] = (0.0, 0.3),
        seed: int = 0,
        data: str | Path | None = None,
    ) -> None:
        """Choose the split and the number of strings.

        Args:
            speaker: The speaker to test on, or None for the official split (see `FSDD`).
            train: The number of strings in train.
            held_out: The number of strings in val, and in test.
            lengths: The smallest and the largest number of digits in a string.
            longer: The smallest and the largest number of digits of more strings in val and test, a third as many.
                None means no more strings.
            pauses: The length of the shortest and of the longest pause, in seconds. Each length is equally probable.
            seed: The seed with which the strings are drawn.
            data: See `FSDD`.
        """
        if not 1 <= lengths[0] <= lengths[1] or min(train, held_out) < 1:
            raise InputError(
                f"lengths={lengths}, train={train}, held_out={held_out}: give numbers of at least 1, in order"
            )
        if longer is not None and not lengths[1] < longer[0] <= longer[1]:
            raise InputError(f"longer={longer}: give two numbers above lengths={lengths}, in order")
        if not 0 <= pauses[0] <= pauses[1] < math.inf:
            raise InputError(f"pauses={pauses}: give two lengths in seconds of at least 0, in order")
        self._digits, self._seed, self._pauses = FSDD(speaker=speaker, data=data), seed, pauses
        self._lengths, self._longer = lengths, longer
        self._sizes: dict[SplitName, int] = {"train": train, "val": held_out, "test": held_out}

    def split(self, name: SplitName) -> Examples[DigitString]:
        """Return the strings of one split."""
        return Examples(self.strings(name), partial(_read_string, self.archive), _string_name, _string_target)

    @property
    def archive(self) -> Archive:
        """The files of the recordings (see `FSDD.archive`)."""
        return self._digits.archive

    def strings(self, name: SplitName) -> list[DigitString]:
        """Return the recordings of each string of one split."""
        recordings = self._digits.recordings(name)
        by_speaker = {each.speaker: [r for r in recordings if r.speaker == each.speaker] for each in recordings}
        rng = np.random.default_rng((self._seed, SPLITS.index(name)))
        strings: list[DigitString] = []
        more = [self._longer] * (self._sizes[name] // 3) if self._longer and name != "train" else []
        for number, (shortest, longest) in enumerate([self._lengths] * self._sizes[name] + more):
            own = by_speaker[rng.choice(list(by_speaker))]
            chosen = rng.integers(len(own), size=rng.integers(shortest, longest + 1))
            strings.append(DigitString(tuple(own[k] for k in chosen), number, self._pauses))
        return strings

    @cached_property
    def sha256(self) -> str:
        """The hash of the recordings and of the settings."""
        settings = (
            f"{self._digits.sha256} {self._digits.speaker} {self._sizes} {self._lengths} {self._longer} {self._pauses} "
            f"{self._seed}"
        )
        return sha256(settings.encode()).hexdigest()


def compose_string(archive: Archive, string: DigitString) -> tuple[Audio, list[tuple[float, float]]]:
    """Return the sound of a string, and the start and the end of each digit in seconds."""
    rng, parts, rate = np.random.default_rng(string.seed), list[NDArray[np.float32]](), 0
    times: list[tuple[float, float]] = []
    for recording in string.recordings:
        sound = read_audio(recording.sound.path, archive)
        rate, wave = int(sound.sample_rate), np.array(sound.waveform, np.float32)
        frames = wave[: len(wave) // FADE * FADE].reshape(-1, FADE)
        fade = np.minimum(1, np.minimum(np.arange(len(wave)), np.arange(len(wave))[::-1]) / FADE)
        quiet = float(np.sqrt((frames**2).mean(1).min())) if len(frames) else 0.0
        noise = rng.normal(size=int(rng.uniform(*string.pauses) * rate)) * quiet
        begin = sum(map(len, parts)) / rate
        times.append((begin, begin + len(wave) / rate))
        parts += [(wave * fade).astype(np.float32), noise.astype(np.float32)]
    return Audio(np.concatenate(parts), rate), times


def _read_string(archive: Archive, string: DigitString) -> Example:
    return Example(compose_string(archive, string)[0], _string_target(string))


def _string_name(string: DigitString) -> str:
    return f"string {string.seed} of {string.recordings[0].speaker} ({_string_target(string)})"


def _string_target(string: DigitString) -> str:
    return "".join(recording.sound.target for recording in string.recordings)
