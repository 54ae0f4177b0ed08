"""FSDD: spoken digits, recorded by six speakers."""

import re
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.audio_files import read_audio
from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, read_archive
from unifier.data.source import SplitName, accuracy_range, data_folder
from unifier.data.splits import rotate_folds, select_part
from unifier_tokenizers import InputError
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
        recordings = select_part(self._recordings, self._parts, name)
        return from_files([recording.sound for recording in recordings], partial(read_audio, archive=self._archive))

    @cached_property
    def sha256(self) -> str:
        """The hash of the archive, or of all recordings in the folder."""
        if self._archive:
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
        paths = self._archive or (self._folder / "recordings").iterdir()
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
    def _archive(self) -> dict[Path, bytes]:
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
