"""Emotify: music of four genres, with the emotions that listeners felt."""

from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, final

from unifier.data.audio_files import read_audio
from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, parse_integer, parse_number, read_labels_table
from unifier.data.source import NO_SCORE_RANGE, ScoreRange, SplitName, accuracy_range, data_folder
from unifier.data.splits import rotate_folds, select_part
from unifier.datasets.class_folders import is_outside_name
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

EMOTIFY_GENRES = ("classical", "electronic", "pop", "rock")

EMOTIONS = (
    "amazement",
    "solemnity",
    "tenderness",
    "nostalgia",
    "calmness",
    "power",
    "joyful_activation",
    "tension",
    "sadness",
)

EMOTIFY_FOLDS = (0, 1, 2, 3, 4)

EMOTION_ONE_IN = 3
"""A clip is labeled with an emotion if at least 1 / `EMOTION_ONE_IN` of its listeners felt the emotion."""

EMOTIFY_SCORE_RANGES = {
    "genre": accuracy_range(
        EMOTIFY_GENRES,
        63.0,
        "support vector machine on statistics of MFCCs, mean of five folds, measured by the maintainers of this copy",
    ),
    "tags": ScoreRange(
        "macro_auc",
        0.5,
        0.694,
        "logistic regression on statistics of MFCCs, artist-disjoint folds, measured by the maintainers of this copy",
    ),
    "shares": ScoreRange("r2", 0.0, None, NO_SCORE_RANGE),
}


class EmotifyClip(NamedTuple):
    """A sound, its artist and its cross-validation fold."""

    sound: LabeledFile
    artist: str
    fold: int


@final
class Emotify:
    """Emotify: 400 clips of 30 seconds, 100 clips of each genre, in five folds. No artist is in two folds.

    The input is an `Audio` (samples,) at 16 kHz. The target is the genre, or a tuple of the emotions that at least a
    third of the listeners felt, or the share of the listeners who felt each emotion. The data set may only be used for
    non-commercial purposes.

    The data folder contains a reduced copy of Emotify (mono, 16 kHz, 30 s), which cannot be downloaded.

    Source: Aljanaki, Wiering and Veltkamp, "Studying emotion induced by music through a crowdsourcing game",
    Information Processing & Management 52, 2016.
    """

    name = "emotify_16k"
    kind = "audio"
    folds = EMOTIFY_FOLDS

    def __init__(
        self, target: Literal["genre", "tags", "shares"] = "genre", *, fold: int = 0, data: str | Path | None = None
    ) -> None:
        """Choose the target and the fold.

        Args:
            target: "genre" for the genres, "tags" for the emotions, or "shares" for the share of the listeners who felt
                each emotion, from 0 to 1.
            fold: The fold to test on. The next fold is the val split (fold 0 after fold 4). The remaining three folds
                are the train split.
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self.target = check_choice("target", target, ("genre", "tags", "shares"))
        self.fold = check_choice("fold", fold, EMOTIFY_FOLDS)
        self.labels = EMOTIFY_GENRES if target == "genre" else EMOTIONS
        self.score_range = EMOTIFY_SCORE_RANGES[self.target]
        self._data = data

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the clips of one split in the order of the table. Raises InputError if an artist is in two folds."""
        artists, folds = [clip.artist for clip in self._clips], [clip.fold for clip in self._clips]
        clips = select_part(self._clips, rotate_folds(self.name, folds, self.fold, groups=artists, unit="artist"), name)
        return from_files([clip.sound for clip in clips], read_audio)

    @cached_property
    def sha256(self) -> str:
        """The hash of both tables and of all sounds."""
        paths = [self._folder / "tracks.csv", self._folder / "emotions.csv", *(clip.sound.path for clip in self._clips)]
        return hash_files({path.relative_to(self._folder).as_posix(): path for path in paths})

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        require_file(
            self.name,
            folder,
            ("tracks.csv", "emotions.csv", "audio"),
            "it cannot be downloaded: put there tracks.csv (columns file, genre, artist, fold), emotions.csv (columns "
            "file, n_annotators, and the share of listeners for each emotion) and audio/<genre>/<number>.ogg (the "
            "middle 30 s of each excerpt of Emotify, mono, 16 kHz)",
        )
        return folder

    @cached_property
    def _clips(self) -> list[EmotifyClip]:
        tracks = self._folder / "tracks.csv"
        rows = read_labels_table(tracks, ("file", "genre", "artist", "fold"))
        emotions = _read_emotions(self._folder / "emotions.csv", shares=self.target == "shares")
        clips: list[EmotifyClip] = []
        for line, cells in rows:
            location = f"{tracks}, line {line}"
            if is_outside_name(cells["file"]):
                raise InputError(f"{location}: {cells['file']!r} is outside the folder: use the original table")
            if cells["file"] not in emotions:
                raise InputError(f"{location}: emotions.csv has no row for {cells['file']}")
            genre = check_choice(f"genre ({location})", cells["genre"], EMOTIFY_GENRES)
            fold = check_choice(f"fold ({location})", parse_integer(cells["fold"], location), EMOTIFY_FOLDS)
            target = genre if self.target == "genre" else emotions[cells["file"]]
            clips.append(EmotifyClip(LabeledFile(self._folder / cells["file"], target), cells["artist"], fold))
        return clips


def _read_emotions(table: Path, *, shares: bool) -> dict[str, tuple[str, ...] | tuple[float, ...]]:
    """Return the emotions of each file in emotions.csv, or the share of the listeners who felt each emotion."""
    emotions: dict[str, tuple[str, ...] | tuple[float, ...]] = {}
    for line, cells in read_labels_table(table, ("file", "n_annotators", *EMOTIONS)):
        numbers = {name: parse_number(cells[name], f"{table}, line {line}") for name in ("n_annotators", *EMOTIONS)}
        all_shares = tuple(numbers[name] for name in EMOTIONS)
        emotions[cells["file"]] = all_shares if shares else _frequent_emotions(numbers, numbers["n_annotators"])
    return emotions


def _frequent_emotions(shares: dict[str, float], listeners: float) -> tuple[str, ...]:
    # Fractions in the table are rounded to four digits. Therefore, numbers of listeners are compared.
    # For example, 16 of 48 listeners are stored as 0.3333, which is less than a third.
    return tuple(name for name in EMOTIONS if EMOTION_ONE_IN * round(shares[name] * listeners) >= listeners)
