"""ESC-10 and ESC-50: short sounds of animals, nature, people, houses and streets."""

import re
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, final

from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, parse_integer, read_audio, read_labels_table
from unifier.data.source import NO_SCORE_RANGE, ScoreRange, SplitName, accuracy_range, data_folder
from unifier.data.splits import rotate_folds, select_part
from unifier_tokenizers.errors import check_choice

ESC_REFERENCE = (
    "support vector machine on means and deviations of MFCCs, mean of the five folds, by the keepers of this copy"
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
"""The folders of ESC-10, and what ESC-50 calls the same ten classes."""


ESC_CLIP = re.compile(r"(?P<fold>\d)-(?P<origin>\d+)-[A-Z]\.ogg")


class ESCClip(NamedTuple):
    """A sound, the recording it was cut from, and the fold it is in."""

    sound: LabeledFile
    origin: str
    fold: int


@final
class ESC:
    """400 clips of ten classes ("esc10") or 2,000 of fifty ("esc50"), about 5 seconds each, in five official folds.

    Fold `fold`, 1 to 5, is the test, the next one (after 5 comes 1) validates, the others train. The input is a
    `Sound` (samples,) at 44.1 kHz, the target the name of its class. All clips that were cut from one recording are in
    one fold.

    ESC-10 is read from the ten folders of its own home, or, where there is meta/esc50.csv, out of ESC-50.

    Source: Piczak, "ESC: Dataset for Environmental Sound Classification", 2015; licence CC BY 3.0 (ESC-10), CC BY-NC
    3.0 (ESC-50).
    """

    folds = ESC_FOLDS

    def __init__(
        self, name: Literal["esc10", "esc50"] = "esc10", *, fold: int = 1, data: str | Path | None = None
    ) -> None:
        self.name: str = check_choice("set", name, ("esc10", "esc50"))
        self.fold = check_choice("fold", fold, ESC_FOLDS)
        self._data = data

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in the order of the alphabet."""
        return tuple(sorted({clip.sound.target for clip in self._clips}))

    @property
    def score_range(self) -> ScoreRange:
        """Against statistics of cepstral coefficients; of ESC-50 no reference is known."""
        return accuracy_range(self.labels, *((78.5, ESC_REFERENCE) if self.name == "esc10" else (None, NO_SCORE_RANGE)))

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """The clips of one split. Raises InputError where clips of one recording are in two folds."""
        origins, folds = [clip.origin for clip in self._clips], [clip.fold for clip in self._clips]
        clips = select_part(
            self._clips, rotate_folds(self.name, folds, self.fold, groups=origins, unit="recording"), name
        )
        return from_files([clip.sound for clip in clips], read_audio)

    @cached_property
    def sha256(self) -> str:
        """The hash of every clip, and of the table where there is one."""
        paths = [path for path in (self._table, *(clip.sound.path for clip in self._clips)) if path.exists()]
        return hash_files({path.relative_to(self._folder).as_posix(): path for path in paths})

    @cached_property
    def _clips(self) -> list[ESCClip]:
        return self._listed() if self._table.exists() else self._found()

    def _listed(self) -> list[ESCClip]:
        """The clips of ESC-50's table."""
        clips: list[ESCClip] = []
        for line, cells in read_labels_table(self._table, ("filename", "fold", "category", "esc10", "src_file")):
            place = f"{self._table}, line {line}"
            fold = check_choice(f"fold ({place})", parse_integer(cells["fold"], place), ESC_FOLDS)
            if self.name == "esc50" or cells["esc10"] == "True":
                sound = LabeledFile(self._folder / "audio" / cells["filename"], cells["category"])
                clips.append(ESCClip(sound, cells["src_file"], fold))
        return clips

    def _found(self) -> list[ESCClip]:
        """The clips in ESC-10's folders, whose names tell fold and recording."""
        advice = f"put there what is in github.com/karolpiczak/{self.name.replace('esc', 'ESC-')}"
        require_file(self.name, self._folder, ["meta/esc50.csv"] if self.name == "esc50" else list(ESC_FOLDERS), advice)
        paths = [path for folder in ESC_FOLDERS for path in sorted((self._folder / folder).iterdir())]
        found = [(path, match) for path in paths if (match := ESC_CLIP.fullmatch(path.name))]
        return [
            ESCClip(LabeledFile(path, ESC_FOLDERS[path.parent.name]), one["origin"], int(one["fold"]))
            for path, one in found
        ]

    @property
    def _table(self) -> Path:
        return self._folder / "meta" / "esc50.csv"

    @cached_property
    def _folder(self) -> Path:
        return data_folder(self.name, self._data)
