"""FMA: clips of 30 seconds from the Free Music Archive, with their genres and the official splits."""

import csv
import re
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, final, get_args

from unifier.data.audio_files import read_audio
from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, parse_integer, read_labels_table, read_lines
from unifier.data.source import NO_SCORE_RANGE, ScoreRange, SplitName, accuracy_range, data_folder
from unifier.data.splits import select_part
from unifier.files import print_status
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

FMASubset = Literal["small", "medium", "large"]
"""The subsets of 8,000, 25,000 and 106,574 clips. Each subset contains the subsets before it."""

FMA_SUBSETS: tuple[FMASubset, ...] = get_args(FMASubset)

FMA_SPLITS: dict[str, SplitName] = {"training": "train", "validation": "val", "test": "test"}
"""The names of the official splits in the table."""

FMA_COLUMNS = {
    "split": ("set", "split"),
    "subset": ("set", "subset"),
    "genre": ("track", "genre_top"),
    "genres": ("track", "genres_all"),
}
"""The columns of tracks.csv that are read. The first two rows of the table contain the two parts of a column's name."""

MAX_NAMED_CLIPS = 3
"""Maximum number of missing clips that are listed by name."""


class FMATrack(NamedTuple):
    """A clip with its split, its main genre and the numbers of all its genres."""

    path: Path
    split: SplitName
    genre: str
    genres: tuple[int, ...]


@final
class FMA:
    """FMA: clips of 30 seconds with the official splits, which keep artists apart.

    The input is an `Audio`. The target is the main genre of the clip, or a tuple with all its genres. The data folder
    contains the unpacked archives fma_metadata.zip, and fma_small.zip, fma_medium.zip or fma_large.zip. Missing clips
    are counted and left out.

    Source: Defferrard, Benzi, Vandergheynst and Bresson, "FMA: A dataset for music analysis", ISMIR 2017.
    """

    name = "fma"

    def __init__(
        self,
        target: Literal["genre", "tags"] = "genre",
        *,
        subset: FMASubset | None = None,
        data: str | Path | None = None,
    ) -> None:
        """Choose the target and the subset.

        Args:
            target: "genre" for the main genre, or "tags" for all genres. Clips without the target are left out.
            subset: "small", "medium" or "large". None means the smallest subset whose folder exists.
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self.target = check_choice("target", target, ("genre", "tags"))
        if subset is not None:
            check_choice("subset", subset, FMA_SUBSETS)
        self._given: FMASubset | None = subset
        self._data = data

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the clips of one split in the order of the table."""
        files = [LabeledFile(track.path, self._target_of(track)) for track in self._tracks]
        return from_files(select_part(files, [track.split for track in self._tracks], name), read_audio)

    @property
    def labels(self) -> tuple[str, ...]:
        """The genres of the clips in alphabetical order."""
        targets = map(self._target_of, self._tracks)
        genres = ((target,) if isinstance(target, str) else target for target in targets)
        return tuple(sorted({genre for group in genres for genre in group}))

    @property
    def score_range(self) -> ScoreRange:
        """The range of the accuracy for genres, and of ROC-AUC for tags."""
        if self.target == "genre":
            return accuracy_range(self.labels, None, NO_SCORE_RANGE)
        return ScoreRange("macro_auc", 0.5, None, NO_SCORE_RANGE)

    @cached_property
    def sha256(self) -> str:
        """The hash of both tables and of all clips."""
        paths = [*self._tables, *(track.path for track in self._tracks)]
        return hash_files({path.relative_to(self._folder).as_posix(): path for path in paths})

    @property
    def dropped(self) -> dict[str, int]:
        """The number of clips that the table contains and the folder does not contain."""
        return {"missing": self._found[1]}

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        hint = (
            "put there the unpacked fma_metadata.zip and fma_small.zip (or fma_medium.zip, fma_large.zip) of "
            "https://github.com/mdeff/fma"
        )
        require_file(self.name, folder, ("fma_metadata/tracks.csv", "fma_metadata/genres.csv"), hint)
        return folder

    @property
    def _tables(self) -> list[Path]:
        return [self._folder / "fma_metadata" / f"{name}.csv" for name in ("tracks", "genres")]

    @cached_property
    def _subset(self) -> FMASubset:
        folders: list[FMASubset] = [subset for subset in FMA_SUBSETS if (self._folder / f"fma_{subset}").is_dir()]
        wanted: list[FMASubset] = folders[:1] if self._given is None else [self._given]
        if not wanted or wanted[0] not in folders:
            given = "" if self._given is None else f"subset={self._given}: "
            raise InputError(
                f"{given}{self._folder} has no folder {f'fma_{self._given}' if self._given else 'fma_small'}; "
                "unpack the clips there"
            )
        return wanted[0]

    @property
    def _tracks(self) -> list[FMATrack]:
        return self._found[0]

    @cached_property
    def _found(self) -> tuple[list[FMATrack], int]:
        """The clips that exist, and the number of missing clips. The first missing clips are named."""
        listed = _read_tracks(self._tables[0], self._folder / f"fma_{self._subset}", self._subset)
        tracks = [track for track in listed if (track.genre if self.target == "genre" else track.genres)]
        existing = [track for track in tracks if track.path.exists()]
        if missing := [track.path for track in tracks if not track.path.exists()]:
            more = f" and {len(missing) - MAX_NAMED_CLIPS:,} more" if len(missing) > MAX_NAMED_CLIPS else ""
            named = ", ".join(path.name for path in missing[:MAX_NAMED_CLIPS]) + more
            line = f"{self.name}: {len(missing):,} of {len(tracks):,} clips are missing: {named}"
            if not existing:
                raise InputError(f"{line}; unpack fma_{self._subset}.zip in {self._folder}")
            print_status(f"{line}; left out", sys.stderr)
        return existing, len(missing)

    @cached_property
    def _titles(self) -> dict[int, str]:
        table = self._tables[1]
        rows = read_labels_table(table, ("genre_id", "title"))
        return {parse_integer(cells["genre_id"], f"{table}, line {line}"): cells["title"] for line, cells in rows}

    def _target_of(self, track: FMATrack) -> str | tuple[str, ...]:
        if self.target == "genre":
            return track.genre
        if unknown := [genre for genre in track.genres if genre not in self._titles]:
            raise InputError(f"{self._tables[1]} has no genre {unknown[0]}, which is a genre of {track.path.name}")
        return tuple(self._titles[genre] for genre in track.genres)


def _read_tracks(table: Path, clips: Path, subset: FMASubset) -> list[FMATrack]:
    """Return the tracks of a subset from tracks.csv, whose columns have names in two rows.

    Raises InputError if a column is missing or a cell is wrong.
    """
    rows = csv.reader(line + "\n" for line in read_lines(table))
    try:
        columns = list(zip(next(rows), next(rows), strict=True))
        if missing := [" ".join(name) for name in FMA_COLUMNS.values() if name not in columns]:
            raise InputError(f"{table} has no column {', '.join(missing)}: use tracks.csv of fma_metadata.zip")
        indices = {key: columns.index(name) for key, name in FMA_COLUMNS.items()}
        wanted, tracks = FMA_SUBSETS[: FMA_SUBSETS.index(subset) + 1], list[FMATrack]()
        for cells in rows:
            if cells and len(cells) != len(columns):
                raise InputError(f"{table}, line {rows.line_num}: a row needs {len(columns)} cells, like the first row")
            # The third row has only the name of the index. Some tracks of the full data set belong to no subset.
            if cells and cells[0].isdecimal() and cells[indices["subset"]] in wanted:
                tracks.append(_parse_track(cells, indices, clips, f"{table}, line {rows.line_num}"))
    except InputError:
        raise
    except (csv.Error, StopIteration, ValueError) as error:
        raise InputError(f"{table} is not the table of FMA: use tracks.csv of fma_metadata.zip") from error
    return tracks


def _parse_track(cells: Sequence[str], indices: dict[str, int], clips: Path, location: str) -> FMATrack:
    number = f"{int(cells[0]):06d}"
    split = check_choice(f"split ({location})", cells[indices["split"]], tuple(FMA_SPLITS))
    if not re.fullmatch(r"\[[\d, ]*\]", cells[indices["genres"]]):
        raise InputError(f"{location}: {cells[indices['genres']]!r} is not a list of genres, such as [10, 21]")
    genres = tuple(map(int, re.findall(r"\d+", cells[indices["genres"]])))
    return FMATrack(clips / number[:3] / f"{number}.mp3", FMA_SPLITS[split], cells[indices["genre"]], genres)
