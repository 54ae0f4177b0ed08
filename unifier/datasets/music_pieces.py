"""The base class of data sets of music whose pieces are all in one file."""

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from unifier.data.dataset import Examples
from unifier.data.readers import hash_files
from unifier.data.source import SPLITS, Example, SplitName
from unifier_tokenizers.errors import check_choice

PieceT = TypeVar("PieceT")


class MusicPieces(ABC, Generic[PieceT]):
    """Pieces as inputs, without targets, because a model predicts the next step or note of a piece."""

    def split(self, name: SplitName) -> Examples[tuple[str, PieceT]]:
        """Return the pieces of a split in the order of the file."""
        pieces = self._pieces[check_choice("split", name, SPLITS)]
        return Examples([(f"{self._path}, {name} piece {k}", piece) for k, piece in enumerate(pieces)], _read, _locate)

    @cached_property
    def sha256(self) -> str:
        """The hash of the file."""
        return hash_files({self._path.name: self._path})

    @cached_property
    def _path(self) -> Path:
        return self.find_file()

    @cached_property
    def _pieces(self) -> dict[SplitName, list[PieceT]]:
        return self.read_file(self._path)

    @abstractmethod
    def find_file(self) -> Path:
        """Return the path of the file. Raises InputError if the file is missing."""

    @abstractmethod
    def read_file(self, path: Path) -> dict[SplitName, list[PieceT]]:
        """Read the pieces of each split. Raises InputError if the file is damaged."""


def _read(entry: tuple[str, PieceT]) -> Example:
    return Example(entry[1], None)


def _locate(entry: tuple[str, PieceT]) -> str:
    return entry[0]
