"""Emotify: music of four genres, and the emotions that listeners felt."""

from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, final

from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, parse_integer, parse_number, read_audio, read_labels_table
from unifier.data.source import ScoreRange, SplitName, accuracy_range, data_folder
from unifier.data.splits import rotate_folds, select_part
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


MIN_LISTENERS = 3
"""A clip carries an emotion that at least one in so many of its listeners felt."""


SCORE_RANGES = {
    "genre": accuracy_range(
        EMOTIFY_GENRES,
        63.0,
        "support vector machine on statistics of MFCCs, mean of these five folds, by the keepers of this copy",
    ),
    "tags": ScoreRange(
        "macro_auc",
        0.5,
        0.694,
        "logistic regression on statistics of MFCCs, no artist on both sides, by the keepers of this copy",
    ),
}


class EmotifyClip(NamedTuple):
    """A sound, who made it, and the fold it is in."""

    sound: LabeledFile
    artist: str
    fold: int


@final
class Emotify:
    """400 clips of 30 seconds, 100 of each genre, in five folds that share no artist.

    Fold `fold` is the test, the next one (after 4 comes 0) validates, the others train. The input is a
    `Sound` (samples,) at 16 kHz; the target is the genre, or with task "tags" a tuple of the emotions that at least a
    third of the listeners felt. For non-commercial use only.

    The folder holds a reduced copy (mono, 16 kHz, 30 s) that has no home to download from.

    Source: Aljanaki, Wiering and Veltkamp, "Studying emotion induced by music through a crowdsourcing game",
    Information Processing & Management 52, 2016.
    """

    name = "emotify_16k"
    folds = EMOTIFY_FOLDS

    def __init__(
        self, target: Literal["genre", "tags"] = "genre", *, fold: int = 0, data: str | Path | None = None
    ) -> None:
        self.target = check_choice("task", target, ("genre", "tags"))
        self.fold = check_choice("fold", fold, EMOTIFY_FOLDS)
        self.labels = EMOTIFY_GENRES if target == "genre" else EMOTIONS
        self.score_range = SCORE_RANGES[self.target]
        self._data = data

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """The clips of one split, in the order of the table. Raises InputError where an artist is in two folds."""
        artists, folds = [clip.artist for clip in self._clips], [clip.fold for clip in self._clips]
        clips = select_part(self._clips, rotate_folds(self.name, folds, self.fold, groups=artists, unit="artist"), name)
        return from_files([clip.sound for clip in clips], read_audio)

    @cached_property
    def sha256(self) -> str:
        """The hash of both tables and of every sound."""
        paths = [self._folder / "tracks.csv", self._folder / "emotions.csv", *(clip.sound.path for clip in self._clips)]
        return hash_files({path.relative_to(self._folder).as_posix(): path for path in paths})

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        require_file(
            self.name,
            folder,
            ("tracks.csv", "emotions.csv", "audio"),
            "it cannot be downloaded: put there tracks.csv (file, genre, artist, fold), emotions.csv (file, "
            "n_annotators, a share for each emotion) and audio/<genre>/<number>.ogg, the excerpts of Emotify "
            "cut to their middle 30 s, mono, 16 kHz",
        )
        return folder

    @cached_property
    def _clips(self) -> list[EmotifyClip]:
        tracks = self._folder / "tracks.csv"
        rows = read_labels_table(tracks, ("file", "genre", "artist", "fold"))
        felt = _emotions(self._folder / "emotions.csv")
        clips: list[EmotifyClip] = []
        for line, cells in rows:
            place = f"{tracks}, line {line}"
            if cells["file"] not in felt:
                raise InputError(f"{place}: emotions.csv has no row for {cells['file']}")
            genre = check_choice(f"genre ({place})", cells["genre"], EMOTIFY_GENRES)
            fold = check_choice(f"fold ({place})", parse_integer(cells["fold"], place), EMOTIFY_FOLDS)
            target = genre if self.target == "genre" else felt[cells["file"]]
            clips.append(EmotifyClip(LabeledFile(self._folder / cells["file"], target), cells["artist"], fold))
        return clips


def _emotions(table: Path) -> dict[str, tuple[str, ...]]:
    felt: dict[str, tuple[str, ...]] = {}
    for line, cells in read_labels_table(table, ("file", "n_annotators", *EMOTIONS)):
        numbers = {name: parse_number(cells[name], f"{table}, line {line}") for name in ("n_annotators", *EMOTIONS)}
        felt[cells["file"]] = _strong(numbers, numbers["n_annotators"])
    return felt


def _strong(shares: dict[str, float], listeners: float) -> tuple[str, ...]:
    # Shares are rounded to four digits, and 0.3333 of 48 is a third of them: count listeners, who are whole.
    return tuple(name for name in EMOTIONS if MIN_LISTENERS * round(shares[name] * listeners) >= listeners)
