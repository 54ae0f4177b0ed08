"""FSDD: spoken digits."""

import re
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, read_archive, read_audio
from unifier.data.source import SplitName, accuracy_range, data_folder
from unifier.data.splits import rotate_folds, select_part
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

FSDD_REFERENCE = (
    "support vector machine on means and deviations of MFCCs, each speaker tested in turn, by the keepers of this copy"
)


SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")


RECORDING = re.compile(r"(?P<digit>\d)_(?P<speaker>[a-z]+)_(?P<number>\d+)\.wav")


TEST, VALIDATION = 5, 10
"""Of every speaker's fifty recordings of a digit, the first 5 test (which is official) and the next 5 validate."""


class Recording(NamedTuple):
    """A sound, who speaks it, and which of the speaker's recordings of that digit it is."""

    sound: LabeledFile
    speaker: str
    number: int


@final
class FSDD:
    """3,000 spoken digits by six speakers: 2,400 to train, 300 to validate, the official 300 to test.

    The input is a `Sound` (samples,) at 8 kHz, 0.1 to 2.3 seconds long; the target is the digit, "0" to "9".
    Everyone is heard in every split, and so nearly every model does well. With `speaker`, one of `SPEAKERS`, that one
    alone is tested on, the next one alone validates, and the other four train.

    Source: Jackson, "Free Spoken Digit Dataset", from 2016; licence CC BY-SA 4.0.
    """

    name = "fsdd"
    labels = tuple("0123456789")
    folds = tuple(range(len(SPEAKERS)))
    """As experiments number the speakers."""

    def __init__(self, *, speaker: str | None = None, data: str | Path | None = None) -> None:
        self.speaker = speaker if speaker is None else check_choice("speaker", speaker, SPEAKERS)
        self._data = data
        reference = (99.3, "GLaSS-CNN, 2025, by its abstract") if speaker is None else (60.0, FSDD_REFERENCE)
        self.score_range = accuracy_range(self.labels, *reference)

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """The recordings of one split, by their names."""
        recordings = select_part(self._recordings, self._parts, name)
        return from_files([one.sound for one in recordings], partial(read_audio, archive=self._packed))

    @cached_property
    def sha256(self) -> str:
        """The hash of the archive, or of every recording of the folder."""
        if self._packed:
            return hash_files({self._archive.name: self._archive})
        return hash_files({one.sound.path.name: one.sound.path for one in self._recordings})

    @cached_property
    def _parts(self) -> list[SplitName]:
        if self.speaker is not None:
            spoken = [SPEAKERS.index(recording.speaker) for recording in self._recordings]
            return rotate_folds(self.name, spoken, SPEAKERS.index(self.speaker))
        numbers = [recording.number for recording in self._recordings]
        return ["test" if number < TEST else "val" if number < VALIDATION else "train" for number in numbers]

    @cached_property
    def _recordings(self) -> list[Recording]:
        paths = self._packed or (self._folder / "recordings").iterdir()
        found = [(path, match) for path in sorted(paths) if (match := RECORDING.fullmatch(path.name))]
        if not found:
            raise InputError(f"{self._folder} has no recordings such as 7_theo_49.wav")
        return [
            Recording(
                LabeledFile(path, match["digit"]),
                check_choice(f"speaker ({path})", match["speaker"], SPEAKERS),
                int(match["number"]),
            )
            for path, match in found
        ]

    @cached_property
    def _packed(self) -> dict[Path, bytes]:
        return {} if (self._folder / "recordings").is_dir() else read_archive(self._archive)

    @property
    def _archive(self) -> Path:
        return self._folder / "recordings.zip"

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        advice = "put there the folder recordings of github.com/Jakobovski/free-spoken-digit-dataset, or a zip of it"
        if not (folder / "recordings").is_dir():
            require_file(self.name, folder, ("recordings.zip",), advice)
        return folder
