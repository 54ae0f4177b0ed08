"""GTZAN: music of ten genres."""

import re
import warnings
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import final

from unifier.data.audio_files import read_audio
from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, read_lines
from unifier.data.source import NO_SCORE_RANGE, SPLITS, SplitName, accuracy_range, data_folder
from unifier.data.splits import check_no_leak, select_part
from unifier_tokenizers import InputError

GTZAN_FOLDERS = ("genres_original", "genres")

GTZAN_LISTS: dict[SplitName, str] = {
    "train": "train_filtered.txt",
    "val": "valid_filtered.txt",
    "test": "test_filtered.txt",
}

GTZAN_CLIP = re.compile(r"[a-z]+\.\d{5}\.(wav|au)")

VAL_START, TEST_START = 80, 90
"""Numbers of the first val clip and the first test clip of each genre, for a folder without lists."""


@final
class GTZAN:
    """GTZAN: 1,000 music clips of 30 seconds, 100 clips of each genre.

    The input is an `Audio` (samples,) at 22,050 Hz. The target is the genre. The folder contains
    genres_original/<genre>/<genre>.<number>.wav. The folder genres_original may also be named genres, and the suffix
    may also be .au.

    If train_filtered.txt, valid_filtered.txt and test_filtered.txt exist in the folder, Kereliuk's lists in these files
    define the splits. With the lists, no artist is in two splits. The lists leave out repeated and distorted clips.

    Without the lists, train has the clips 0 to 79 of every genre, val has the clips 80 to 89, and test has the clips 90
    to 99. Train and test then have artists and recordings in common. A warning is printed, because test scores are too
    high.

    In most copies of GTZAN, the clip jazz.00054 is damaged. `bad_examples=skip` leaves out damaged clips.

    Source: Tzanetakis and Cook, "Musical Genre Classification of Audio Signals", 2002; the lists: Kereliuk, Sturm and
    Larsen, "Deep Learning and Music Adversaries", 2015; the faults: Sturm, "The GTZAN dataset", 2013.
    """

    name = "gtzan"
    labels = ("blues", "classical", "country", "disco", "hiphop", "jazz", "metal", "pop", "reggae", "rock")
    score_range = accuracy_range(labels, None, NO_SCORE_RANGE)

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the clips of one split. Raises InputError if a genre, a list or a clip of a list is missing."""
        clips, parts = self._clips_and_parts
        return from_files(select_part(clips, parts, name), read_audio)

    @cached_property
    def sha256(self) -> str:
        """The hash of all clips in the order of the splits."""
        clips = [(name, clip.path) for name in SPLITS for clip in select_part(*self._clips_and_parts, name)]
        return hash_files({f"{name}/{path.name}": path for name, path in clips})

    @cached_property
    def _clips(self) -> dict[str, LabeledFile]:
        genres = self._folder / next(
            (name for name in GTZAN_FOLDERS if (self._folder / name).is_dir()), GTZAN_FOLDERS[0]
        )
        require_file(
            self.name,
            genres,
            self.labels,
            "it cannot be downloaded: put there a folder for each genre with its clips, "
            "blues/blues.00000.wav and so on",
        )
        paths = [path for genre in self.labels for path in sorted((genres / genre).iterdir())]
        return {path.stem: LabeledFile(path, path.parent.name) for path in paths if GTZAN_CLIP.fullmatch(path.name)}

    @cached_property
    def _clips_and_parts(self) -> tuple[list[LabeledFile], list[SplitName]]:
        lists: dict[SplitName, Path] = {part: self._folder / file for part, file in GTZAN_LISTS.items()}
        if not any(path.exists() for path in lists.values()):
            warnings.warn(
                f"{self._folder} has no {', '.join(GTZAN_LISTS.values())}: {self.name} is split by number, so train "
                "and test have artists and recordings in common, and test scores are too high",
                stacklevel=2,
            )
            return list(self._clips.values()), [_part_by_number(stem) for stem in self._clips]
        listed: list[LabeledFile] = []
        parts: list[SplitName] = []
        for part, path in lists.items():
            for number, line in enumerate(read_lines(path), start=1):
                if not line.strip():
                    continue
                clip = self._clips.get(PurePosixPath(line.strip()).stem)
                if clip is None:
                    raise InputError(
                        f"{path}, line {number}: the clip {line.strip()!r} does not exist; add it, or delete the line"
                    )
                listed.append(clip)
                parts.append(part)
        check_no_leak("clip", [clip.path.name for clip in listed], [GTZAN_LISTS[part] for part in parts])
        return listed, parts

    @cached_property
    def _folder(self) -> Path:
        return data_folder(self.name, self._data)


def _part_by_number(stem: str) -> SplitName:
    number = int(stem.rpartition(".")[2])
    return "train" if number < VAL_START else "val" if number < TEST_START else "test"
