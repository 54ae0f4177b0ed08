"""A split of examples, read lazily: from files, or from anyone's data set.

A share of the training examples, for curves of the score over how many there are."""

import hashlib
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, final, overload

import numpy as np
from numpy.random import RandomState  # the one whose stream no version of NumPy may change
from numpy.typing import NDArray

from unifier.data.source import (
    Example,
    ScoreRange,
    Source,
    Split,
    SplitName,
    describe_example,
    example_of,
    name_of,
    optional_method,
)
from unifier_tokenizers import InputError

EntryT = TypeVar("EntryT")
"""What is known of an example before it is read: a file and its label, a line of text."""


@final
class Examples(Sequence[Example], Generic[EntryT]):
    """Entries, and how one of them becomes an example; a slice is again such a sequence.

    It travels into data num_workers where `read` and `locate` are functions of a module, or partial ones.
    """

    def __init__(
        self,
        entries: Sequence[EntryT],
        read: Callable[[EntryT], Example],
        locate: Callable[[EntryT], str],
        target: Callable[[EntryT], Any] | None = None,
        origin: Callable[[EntryT], Any] | None = None,
    ) -> None:
        """`locate` names an entry's file and line.

        `target` finds an entry's target without reading its input, where that can be, and `origin` all of an entry that
        its input is read from; None is the whole entry.
        """
        self._entries, self._read, self._locate, self._target, self._origin = entries, read, locate, target, origin

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> "Examples[EntryT]": ...
    def __getitem__(self, index: int | slice) -> "Example | Examples[EntryT]":
        if isinstance(index, slice):
            return Examples(self._entries[index], self._read, self._locate, self._target, self._origin)
        return example_of(self._read(self._entries[index]))

    def target(self, index: int) -> Any:
        """An example's target, without its input where that can be."""
        return self[index].target if self._target is None else self._target(self._entries[index])

    def identities(self) -> list[str] | None:
        """For each example a hash of all that makes its input but the contents of files: its origin and how it is read.

        None where a target cannot be known without the input, or an entry cannot be told from others for good.
        """
        if self._target is None:
            return None
        try:
            read = hashlib.sha256(pickle.dumps(self._read, protocol=5) + b"".join(map(_code, _functions(self._read))))
            origins = self._entries if self._origin is None else map(self._origin, self._entries)
            entries = [pickle.dumps(origin, protocol=5) for origin in origins]
        except (pickle.PicklingError, AttributeError, TypeError):  # a function that was made on the spot, an open file
            return None
        return [hashlib.sha256(read.digest() + entry).hexdigest() for entry in entries]

    def example_id(self, index: int) -> str:
        """The file of an example, and its place in there."""
        return self._locate(self._entries[index])


@final
class _AsExamples(Sequence[Example]):
    """Anyone's split, each item as an Example once it is read; whatever else the split has is had of this one."""

    def __init__(self, items: Split) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):  # which others take to mean a row of lists
            return [self[one] for one in range(len(self))[index]]
        return example_of(self._items[index])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # as it is unpickled there are no items yet to be asked
            raise AttributeError(name)
        return getattr(self._items, name)


def open_split(source: Source, name: SplitName) -> Sequence[Example]:
    """A split of anyone's source as Examples, none of which is read before it is asked for.

    Raises InputError where it is no map-style data set.
    """
    items: Any = source.split(name)
    if isinstance(items, Mapping) or not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        raise InputError(
            f'{name_of(source)}: split("{name}") gives a {type(items).__name__}: a list is expected, or a data set '
            "that has a len() and its items by number"
        )
    return items if isinstance(items, Examples) else _AsExamples(items)


class LabeledFile(NamedTuple):
    """A file that is one example's input, and its target."""

    path: Path
    target: Any


def from_files(files: Sequence[LabeledFile], read: Callable[[Path], Any]) -> Examples[LabeledFile]:
    """Examples of one file each, opened with `read`."""
    return Examples(files, partial(_open, read), _place, _labeled, _place)


def from_pixels(file: Path, pixels: NDArray[np.uint8], targets: Sequence[Any], indices: Sequence[int]) -> Examples[int]:
    """The `kept` of the pictures (count, ...) that one file holds, with their targets."""
    return Examples(indices, partial(_picture, pixels, targets), partial(_numbered, file))


def _functions(read: Any) -> Iterator[Any]:
    """A function, and those that it was made of."""
    if isinstance(read, partial):
        for part in (read.func, *read.args, *read.keywords.values()):
            yield from _functions(part)
    elif callable(read):
        yield read


def _code(function: Any) -> bytes:
    """The file that a function or an object's class stands in; a pickle of it says only its name."""
    stands_in = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        return Path(inspect.getfile(stands_in)).read_bytes()
    except (OSError, TypeError):  # built in, or as good as that
        return b""


def _picture(pixels: NDArray[np.uint8], targets: Sequence[Any], index: int) -> Example:
    return Example(pixels[index].copy(), targets[index])


def _numbered(file: Path, index: int) -> str:
    return f"{file}, picture {index + 1}"


def _open(read: Callable[[Path], Any], file: LabeledFile) -> Example:
    return Example(read(file.path), file.target)


def _labeled(file: LabeledFile) -> Any:
    return file.target


def _place(file: LabeledFile) -> str:
    return str(file.path)


@final
class Subset:
    """A source with `share` of its training examples, in their order; val and test are whole.

    They are the first of one permutation that `seed` names, so that a smaller share lies within every larger one; at
    least one is kept. It has no `copies`: those of val and test in the whole may not be in the share. Raises InputError
    for a share outside (0, 1].
    """

    def __init__(self, source: Source, share: float, seed: int = 0) -> None:
        if not 0 < share <= 1:
            raise InputError(f"share={share}: a share of the training examples, above 0 and at most 1, is expected")
        self.name = name_of(source)
        self.source: Source = source
        self._source: Any = source
        self._share, self._seed = share, seed

    def split(self, name: SplitName) -> Sequence[Example]:
        """The examples of one split; those to train on still know their places."""
        whole = open_split(self._source, name)
        if name != "train":
            return whole
        count = max(1, round(self._share * len(whole)))
        kept = sorted(RandomState(self._seed).permutation(len(whole))[:count].tolist())
        return Examples(kept, whole.__getitem__, partial(describe_example, whole), optional_method(whole, "target"))

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the whole, of which a small share may lack some."""
        return self._source.labels

    @property
    def score_range(self) -> ScoreRange | None:
        """The whole's."""
        return getattr(self._source, "score_range", None)

    @property
    def dropped(self) -> dict[str, int] | None:
        """What the whole left out."""
        return getattr(self._source, "dropped", None)

    @property
    def sha256(self) -> str | None:
        """A hash of the whole's and of what is kept of it; None where the whole has none."""
        whole = getattr(self._source, "sha256", None)
        return whole and hashlib.sha256(f"{whole} {self._share} {self._seed}".encode()).hexdigest()
