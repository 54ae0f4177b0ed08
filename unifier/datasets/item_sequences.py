"""The base class of data sets of item sequences, of which a model predicts the last item."""

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from unifier.data.dataset import Examples
from unifier.data.readers import hash_files
from unifier.data.source import Example, SplitName

HELD_OUT: dict[SplitName, int] = {"train": 2, "val": 1, "test": 0}
"""Number of items at the end of each sequence that a split does not contain."""


class ItemSequence(NamedTuple):
    """The items of one person in order of time, and the line of the file at which the items begin."""

    line: int
    items: tuple[int, ...]


class ItemSequences(ABC):
    """Base class of data sets with one sequence of item numbers per person.

    The input is a list of item numbers in order of time, and there is no target. A model predicts the last item from
    the earlier items. The last item of a person belongs to test, and the last but one belongs to val (Kang and McAuley
    2018, section 4.1). A test sequence therefore contains the sequences of val and train.
    """

    name: str

    def __init__(self, *, data: str | Path | None = None) -> None:
        """Choose the folder with the files. None means the default folder; see `data_folder`."""
        self._data = data

    @abstractmethod
    def _find_file(self) -> Path:
        """Return the file with the sequences. Raises InputError if the file is missing."""

    @abstractmethod
    def _read_sequences(self, path: Path) -> list[ItemSequence]:
        """Read the sequences. Raises InputError, with the line, if a line is not valid."""

    @property
    def num_items(self) -> int:
        """The number of items."""
        return max(item for sequence in self._sequences for item in sequence.items)

    @property
    def longest(self) -> int:
        """The number of items of the longest sequence."""
        return max(len(sequence.items) for sequence in self._sequences)

    def split(self, name: SplitName) -> Examples[ItemSequence]:
        """Return the sequences of one split, in the order of the file."""
        held_out = HELD_OUT[name]
        sequences = [ItemSequence(line, items[: len(items) - held_out]) for line, items in self._sequences]
        return Examples(sequences, _read, self._locate)

    @cached_property
    def sha256(self) -> str:
        """The hash of the file."""
        return hash_files({self._path.name: self._path})

    @cached_property
    def _path(self) -> Path:
        return self._find_file()

    @cached_property
    def _sequences(self) -> list[ItemSequence]:
        return self._read_sequences(self._path)

    def _locate(self, sequence: ItemSequence) -> str:
        return f"{self._path}, line {sequence.line}"


def _read(sequence: ItemSequence) -> Example:
    return Example(list(sequence.items), None)
