"""Emotify: music of four genres, and the emotions that listeners felt."""

from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, final

from unifier.data.dataset import Examples, Labelled, from_files
from unifier.data.download import require
from unifier.data.readers import hash_files, read_number, read_sound, read_table, read_whole
from unifier.data.source import Scale, SplitName, data_folder, scale_of_accuracy
from unifier.data.splits import pick, rotate_folds
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import choose

GENRES = ("classical", "electronic", "pop", "rock")


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


FOLDS = (0, 1, 2, 3, 4)


FELT_BY = 3
"""A clip carries an emotion that at least one in so many of its listeners felt."""


SCALES = {
    "genre": scale_of_accuracy(
        GENRES,
        63.0,
        "support vector machine on statistics of MFCCs, mean of these five folds, by the keepers of this copy",
    ),
    "tags": Scale(
        "macro_auc",
        0.5,
        0.694,
        "logistic regression on statistics of MFCCs, no artist on both sides, by the keepers of this copy",
    ),
}


class Clip(NamedTuple):
    """A sound, who made it, and the fold it is in."""

    sound: Labelled
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
    folds = FOLDS

    def __init__(
        self, task: Literal["genre", "tags"] = "genre", *, fold: int = 0, data: str | Path | None = None
    ) -> None:
        self.task = choose("task", task, ("genre", "tags"))
        self.fold = choose("fold", fold, FOLDS)
        self.labels = GENRES if task == "genre" else EMOTIONS
        self.scale = SCALES[self.task]
        self._data = data

    def split(self, name: SplitName) -> Examples[Labelled]:
        """The clips of one split, in the order of the table. Raises InputError where an artist is in two folds."""
        artists, folds = [clip.artist for clip in self._clips], [clip.fold for clip in self._clips]
        clips = pick(self._clips, rotate_folds(self.name, folds, self.fold, groups=artists, unit="artist"), name)
        return from_files([clip.sound for clip in clips], read_sound)

    @cached_property
    def sha256(self) -> str:
        """The hash of both tables and of every sound."""
        paths = [self._folder / "tracks.csv", self._folder / "emotions.csv", *(clip.sound.path for clip in self._clips)]
        return hash_files({path.relative_to(self._folder).as_posix(): path for path in paths})

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        require(
            self.name,
            folder,
            ("tracks.csv", "emotions.csv", "audio"),
            "it cannot be downloaded: put there tracks.csv (file, genre, artist, fold), emotions.csv (file, "
            "n_annotators, a share for each emotion) and audio/<genre>/<number>.ogg, the excerpts of Emotify "
            "cut to their middle 30 s, mono, 16 kHz",
        )
        return folder

    @cached_property
    def _clips(self) -> list[Clip]:
        tracks = self._folder / "tracks.csv"
        rows = read_table(tracks, ("file", "genre", "artist", "fold"))
        felt = _emotions(self._folder / "emotions.csv")
        clips: list[Clip] = []
        for line, cells in rows:
            place = f"{tracks}, line {line}"
            if cells["file"] not in felt:
                raise InputError(f"{place}: emotions.csv has no row for {cells['file']}")
            genre = choose(f"genre ({place})", cells["genre"], GENRES)
            fold = choose(f"fold ({place})", read_whole(cells["fold"], place), FOLDS)
            target = genre if self.task == "genre" else felt[cells["file"]]
            clips.append(Clip(Labelled(self._folder / cells["file"], target), cells["artist"], fold))
        return clips


def _emotions(table: Path) -> dict[str, tuple[str, ...]]:
    felt: dict[str, tuple[str, ...]] = {}
    for line, cells in read_table(table, ("file", "n_annotators", *EMOTIONS)):
        numbers = {name: read_number(cells[name], f"{table}, line {line}") for name in ("n_annotators", *EMOTIONS)}
        felt[cells["file"]] = _strong(numbers, numbers["n_annotators"])
    return felt


def _strong(shares: dict[str, float], listeners: float) -> tuple[str, ...]:
    # Shares are rounded to four digits, and 0.3333 of 48 is a third of them: count listeners, who are whole.
    return tuple(name for name in EMOTIONS if FELT_BY * round(shares[name] * listeners) >= listeners)
