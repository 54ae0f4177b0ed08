"""ESC-10 and ESC-50: short sounds of animals, nature, people, homes and streets."""

import re
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, final

from unifier.data.audio_files import read_audio
from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, parse_integer, read_labels_table
from unifier.data.source import NO_SCORE_RANGE, ScoreRange, SplitName, accuracy_range, data_folder
from unifier.data.splits import rotate_folds, select_part
from unifier.datasets.class_folders import is_outside_name
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

ESC_REFERENCE = (
    "support vector machine on means and deviations of MFCCs, mean of the five folds, measured by the maintainers of "
    "this copy"
)

ESC_FOLDS = (1, 2, 3, 4, 5)

ESC_FOLDERS = {
    "001 - Dog bark": "dog",
    "002 - Rain": "rain",
    "003 - Sea waves": "sea_waves",
    "004 - Baby cry": "crying_baby",
    "005 - Clock tick": "clock_tick",
    "006 - Person sneeze": "sneezing",
    "007 - Helicopter": "helicopter",
    "008 - Chainsaw": "chainsaw",
    "009 - Rooster": "rooster",
    "010 - Fire crackling": "crackling_fire",
}
"""Mapping from each class folder of ESC-10 to the class name in ESC-50."""

ESC_CLIP = re.compile(r"(?P<fold>\d)-(?P<origin>\d+)-[A-Z]\.ogg")


class ESCClip(NamedTuple):
    """A sound, its original recording (`origin`), and its cross-validation fold."""

    sound: LabeledFile
    origin: str
    fold: int


@final
class ESC:
    """ESC: 400 clips of ten classes ("esc10"), or 2,000 clips of fifty classes ("esc50"), in five official folds.

    The clips are about 5 seconds long. The input is an `Audio` (samples,) at 44.1 kHz. The target is the name of the
    class. All clips of one recording are in one fold. If the folder contains the table meta/esc50.csv of ESC-50, ESC-10
    is read from ESC-50. Without meta/esc50.csv, ESC-10 is read from ten class folders.

    Source: Piczak, "ESC: Dataset for Environmental Sound Classification", 2015; license CC BY 3.0 (ESC-10), CC BY-NC
    3.0 (ESC-50).
    """

    folds = ESC_FOLDS

    def __init__(
        self, name: Literal["esc10", "esc50"] = "esc10", *, fold: int = 1, data: str | Path | None = None
    ) -> None:
        """Choose the data set and the fold.

        Args:
            name: "esc10" or "esc50".
            fold: The fold to test on, 1 to 5. The next fold is the val split (fold 1 after fold 5). The remaining three
                folds are the train split.
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self.name: str = check_choice("set", name, ("esc10", "esc50"))
        self.license = "CC BY 3.0" if name == "esc10" else "CC BY-NC 3.0"
        self.fold = check_choice("fold", fold, ESC_FOLDS)
        self._data = data

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes in alphabetical order."""
        return tuple(sorted({clip.sound.target for clip in self._clips}))

    @property
    def score_range(self) -> ScoreRange:
        """The score range. The reference score of ESC-10 is from an MFCC classifier. ESC-50 has no reference score."""
        return accuracy_range(self.labels, *((78.5, ESC_REFERENCE) if self.name == "esc10" else (None, NO_SCORE_RANGE)))

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the clips of one split. Raises InputError if clips of one recording are in two folds."""
        origins, folds = [clip.origin for clip in self._clips], [clip.fold for clip in self._clips]
        clips = select_part(
            self._clips, rotate_folds(self.name, folds, self.fold, groups=origins, unit="recording"), name
        )
        return from_files([clip.sound for clip in clips], read_audio)

    @cached_property
    def sha256(self) -> str:
        """The hash of all clips, and of the table if there is one."""
        paths = [path for path in (self._table, *(clip.sound.path for clip in self._clips)) if path.exists()]
        return hash_files({path.relative_to(self._folder).as_posix(): path for path in paths})

    @cached_property
    def _clips(self) -> list[ESCClip]:
        return self._clips_of_table() if self._table.exists() else self._clips_of_folders()

    def _clips_of_table(self) -> list[ESCClip]:
        """Return the clips that are listed in ESC-50's table."""
        clips: list[ESCClip] = []
        for line, cells in read_labels_table(self._table, ("filename", "fold", "category", "esc10", "src_file")):
            location = f"{self._table}, line {line}"
            if is_outside_name(cells["filename"]):
                raise InputError(f"{location}: {cells['filename']!r} is outside the folder: use the original table")
            fold = check_choice(f"fold ({location})", parse_integer(cells["fold"], location), ESC_FOLDS)
            if self.name == "esc50" or cells["esc10"] == "True":
                sound = LabeledFile(self._folder / "audio" / cells["filename"], cells["category"])
                clips.append(ESCClip(sound, cells["src_file"], fold))
        return clips

    def _clips_of_folders(self) -> list[ESCClip]:
        """Return the clips in ESC-10's folders. The file names contain the fold and the recording."""
        hint = f"put there the files of github.com/karolpiczak/{self.name.replace('esc', 'ESC-')}"
        require_file(self.name, self._folder, ["meta/esc50.csv"] if self.name == "esc50" else list(ESC_FOLDERS), hint)
        paths = [path for folder in ESC_FOLDERS for path in sorted((self._folder / folder).iterdir())]
        matches = [(path, match) for path in paths if (match := ESC_CLIP.fullmatch(path.name))]
        return [
            ESCClip(LabeledFile(path, ESC_FOLDERS[path.parent.name]), match["origin"], int(match["fold"]))
            for path, match in matches
        ]

    @property
    def _table(self) -> Path:
        return self._folder / "meta" / "esc50.csv"

    @cached_property
    def _folder(self) -> Path:
        return data_folder(self.name, self._data)
