"""The examples of a split, each read when it is asked for."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray

from unifier.data.source import Example

Entry = TypeVar("Entry")
"""What is known of an example before it is read: a file and its label, a line of text."""


@final
class Examples(Sequence[Example], Generic[Entry]):
    """Entries, and how one of them becomes an example; a slice is again such a sequence.

    It travels into data workers where `read` and `locate` are functions of a module, or partial ones.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        read: Callable[[Entry], Example],
        locate: Callable[[Entry], str],
        groups: Sequence[str] | None = None,
    ) -> None:
        """`locate` names an entry's file and line; `groups` holds for each entry who made it, where that is known."""
        self._entries, self._read, self._locate = entries, read, locate
        self.groups = None if groups is None else tuple(groups)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> "Examples[Entry]": ...
    def __getitem__(self, index: int | slice) -> "Example | Examples[Entry]":
        if isinstance(index, slice):
            groups = None if self.groups is None else self.groups[index]
            return Examples(self._entries[index], self._read, self._locate, groups)
        return self._read(self._entries[index])

    def where(self, index: int) -> str:
        """The file of an example, and its place in there."""
        return self._locate(self._entries[index])


class Labelled(NamedTuple):
    """A file that is one example's input, and its target."""

    path: Path
    target: Any


def from_files(
    files: Sequence[Labelled], read: Callable[[Path], Any], groups: Sequence[str] | None = None
) -> Examples[Labelled]:
    """Examples of one file each, opened with `read`."""
    return Examples(files, partial(_open, read), _place, groups)


def from_pixels(file: Path, pixels: NDArray[np.uint8], targets: Sequence[Any], kept: Sequence[int]) -> Examples[int]:
    """The `kept` of the pictures (count, ...) that one file holds, with their targets."""
    return Examples(kept, partial(_picture, pixels, targets), partial(_numbered, file))


def _picture(pixels: NDArray[np.uint8], targets: Sequence[Any], index: int) -> Example:
    return Example(pixels[index].copy(), targets[index])


def _numbered(file: Path, index: int) -> str:
    return f"{file}, picture {index + 1}"


def _open(read: Callable[[Path], Any], file: Labelled) -> Example:
    return Example(read(file.path), file.target)


def _place(file: Labelled) -> str:
    return str(file.path)
