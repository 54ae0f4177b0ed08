"""MovieLens: the films that people rated, in order of time."""

from collections import defaultdict
from pathlib import Path
from typing import final

from unifier.data.download import require_file
from unifier.data.readers import iterate_table, parse_integer
from unifier.data.source import NO_SCORE_RANGE, ScoreRange, data_folder
from unifier.datasets.item_sequences import HELD_OUT, ItemSequence, ItemSequences
from unifier_tokenizers import InputError

RATING_COLUMNS = ("userId", "movieId", "timestamp")


@final
class MovieLensSmall(ItemSequences):
    """Sequences of films: 610 people with at least 20 of 9,724 films, 100,836 ratings in all.

    The items are numbered in the order of the film numbers of MovieLens. The ratings themselves are not read.

    Source: GroupLens, "ml-latest-small" of 2018, for research that is not commercial.
    """

    name = "movielens_small"
    license = "GroupLens, not commercial"
    score_range = ScoreRange("hit_rate_10", 0.039, None, NO_SCORE_RANGE)

    def _find_file(self) -> Path:
        folder = data_folder(self.name, self._data)
        hint = "put there ratings.csv of ml-latest-small from grouplens.org/datasets/movielens"
        require_file(self.name, folder, ("ratings.csv",), hint)
        return folder / "ratings.csv"

    def _read_sequences(self, path: Path) -> list[ItemSequence]:
        ratings = defaultdict[int, list[tuple[int, int, int]]](list)
        for row in iterate_table(path, RATING_COLUMNS):
            place = f"{path}, line {row.line}"
            person, film, time = (parse_integer(row.cells[column], f"{place}, {column}") for column in RATING_COLUMNS)
            ratings[person].append((time, row.line, film))
        films = {film: k for k, film in enumerate(sorted({film for own in ratings.values() for *_, film in own}), 1)}
        sequences = [
            ItemSequence(min(line for _, line, _ in own), tuple(films[film] for *_, film in sorted(own)))
            for own in ratings.values()
        ]
        shortest = 1 + max(HELD_OUT.values())
        if short := next((sequence for sequence in sequences if len(sequence.items) < shortest), None):
            raise InputError(f"{path}, line {short.line}: this person has fewer than {shortest} films")
        return sequences
