"""Splits that read an example when it is indexed, and sources with only a fraction of the train examples."""

import hashlib
import inspect
import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, final, overload

import numpy as np
from numpy.random import RandomState
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
"""Type of an entry, from which one example is read. An entry is, for example, a file name with a label."""


@final
class Examples(Sequence[Example], Generic[EntryT]):
    """A split that consists of entries and a function that reads an example from one entry.

    A slice of `Examples` is also an object of the class `Examples`. The split can be sent to worker processes if its
    functions can be pickled. Top-level functions of a module and partials of such functions can be pickled.
    """

    def __init__(
        self,
        entries: Sequence[EntryT],
        read: Callable[[EntryT], Example],
        locate: Callable[[EntryT], str],
        target: Callable[[EntryT], Any] | None = None,
        origin: Callable[[EntryT], Any] | None = None,
    ) -> None:
        """Store the entries and functions.

        Args:
            entries: One entry per example.
            read: Returns an entry's example.
            locate: Returns an entry's file and line, for error messages.
            target: Returns an entry's target without reading the input. With None, the target is read together with the
                input.
            origin: Returns the part of an entry that determines the input. None means that the complete entry
                determines the input.
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
        """Return an example's target, if possible without reading the input."""
        return self[index].target if self._target is None else self._target(self._entries[index])

    def identities(self) -> list[str] | None:
        """Return one hash per example. Examples with equal hashes and equal files have equal inputs.

        The hash covers the part of the entry that determines the input, and the code that reads the entry. The hash
        does not cover the contents of files. Returns None if a target can only be read together with the input, or if
        an entry or the function `read` cannot be pickled.
        """
        if self._target is None:
            return None
        try:
            reader = hashlib.sha256(
                pickle.dumps(self._read, protocol=5) + b"".join(map(_source_code, _functions(self._read)))
            )
            origins = self._entries if self._origin is None else map(self._origin, self._entries)
            entries = [pickle.dumps(origin, protocol=5) for origin in origins]
        except (pickle.PicklingError, AttributeError, TypeError):  # A lambda or an open file cannot be pickled.
            return None
        return [hashlib.sha256(reader.digest() + entry).hexdigest() for entry in entries]

    def example_id(self, index: int) -> str:
        """Return an example's file, and its line or number in the file, for error messages."""
        return self._locate(self._entries[index])


def open_split(source: Source, name: SplitName) -> Sequence[Example]:
    """Return a split as a sequence of Examples. An example is read when it is indexed.

    Raises InputError if the split is not a map-style data set.
    """
    items: Any = source.split(name)
    if isinstance(items, Mapping) or not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        raise InputError(
            f'{name_of(source)}: split("{name}") returns a {type(items).__name__}: return a list, or a data set with '
            "a length and integer indices"
        )
    return items if isinstance(items, Examples) else _ExampleView(items)


def concatenate(parts: Sequence[Sequence[Example]]) -> Examples[int]:
    """Return the examples of several splits, one split after the other."""
    starts = [0, *accumulate(map(len, parts))]
    return Examples(range(starts[-1]), partial(_read_part, parts, starts), partial(_describe_part, parts, starts))


class LabeledFile(NamedTuple):
    """The input file and the target of one example."""

    path: Path
    target: Any


def from_files(files: Sequence[LabeledFile], read: Callable[[Path], Any]) -> Examples[LabeledFile]:
    """Return one example for each file. The function `read` reads the input from a file."""
    return Examples(files, partial(_read_file, read), _file_path, _file_target, _file_path)


def from_pixels(file: Path, pixels: NDArray[np.uint8], targets: Sequence[Any], indices: Sequence[int]) -> Examples[int]:
    """Return one example for each picture at `indices`. The array `pixels` (count, ...) is the content of one file."""
    return Examples(indices, partial(_read_pixels, pixels, targets), partial(_describe_picture, file))


@final
class Subset:
    """A source with only a fraction of another source's train examples. Val and test contain all examples.

    The first examples of a seeded permutation are selected. A larger subset therefore contains all examples of a
    smaller subset. At least one example is selected. The selected examples have their original order.

    A subset has no attribute `copies`, because copies in the full source may be missing in the subset.

    Args:
        source: The full source.
        share: Fraction of the train examples to select, in (0, 1]. Other values raise an InputError.
        seed: Seed of the permutation.
    """

    def __init__(self, source: Source, share: float, seed: int = 0) -> None:
        if not 0 < share <= 1:
            raise InputError(f"share={share}: give a share of the training examples, above 0 and at most 1")
        self.name = name_of(source)
        self.full: Any = source
        self._share, self._seed = share, seed

    def split(self, name: SplitName) -> Sequence[Example]:
        """Return the examples of one split. Train examples have the same names as in the full source."""
        examples = open_split(self.full, name)
        if name != "train":
            return examples
        count = max(1, round(self._share * len(examples)))
        # RandomState draws equal numbers in all versions of NumPy.
        rows = sorted(RandomState(self._seed).permutation(len(examples))[:count].tolist())
        return Examples(
            rows, examples.__getitem__, partial(describe_example, examples), optional_method(examples, "target")
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the full source. Some labels may have no examples in a small subset."""
        return self.full.labels

    @property
    def reader(self) -> Any:
        """The preparation of the full source's inputs, if it has one."""
        return getattr(self.full, "reader", None)

    @property
    def score_range(self) -> ScoreRange | None:
        """The score range of the full source."""
        return getattr(self.full, "score_range", None)

    @property
    def license(self) -> str | None:
        """The license of the full source, if it is known."""
        return getattr(self.full, "license", None)

    @property
    def dropped(self) -> dict[str, int] | None:
        """The number of examples that the full source left out for each reason."""
        return getattr(self.full, "dropped", None)

    @property
    def sha256(self) -> str | None:
        """The hash of the full source's hash, the share and the seed, or None if the full source has no hash."""
        digest = getattr(self.full, "sha256", None)
        return digest and hashlib.sha256(f"{digest} {self._share} {self._seed}".encode()).hexdigest()


def draw_examples(source: Source, examples: int) -> Subset:
    """Return a source with a number of training examples, drawn at random.

    Raises:
        InputError: The number is below 1, or larger than the number of training examples.
    """
    count = len(source.split("train"))
    if not 1 <= examples <= count:
        raise InputError(
            f"examples={examples}: give from 1 to {count}, the number of training examples of {name_of(source)}"
        )
    return Subset(source, examples / count)


@final
class _ExampleView(Sequence[Example]):
    """A view of a map-style data set that converts each item to an Example, and has all attributes of the data set."""

    def __init__(self, items: Split) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        # A slice of a Hugging Face data set would be a dictionary of lists. Therefore rows are read one by one.
        if isinstance(index, slice):
            return [self[row] for row in range(len(self))[index]]
        return example_of(self._items[index])

    def __getattr__(self, name: str) -> Any:
        # During unpickling, `_items` does not exist yet. Reading `_items` would call `__getattr__` again.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._items, name)


def _functions(read: Any) -> Iterator[Any]:
    """Yield all functions in `read`, which is a function or a (nested) partial."""
    if isinstance(read, partial):
        for part in (read.func, *read.args, *read.keywords.values()):
            yield from _functions(part)
    elif callable(read):
        yield read


def _source_code(function: Any) -> bytes:
    """Return the content of the source file of a function or of an object's class.

    A pickle contains only the name of a function, so changes of the function's code do not change the pickle.
    """
    definition = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        return Path(inspect.getfile(definition)).read_bytes()
    except (OSError, TypeError):  # Built-in functions have no file.
        return b""


def _read_pixels(pixels: NDArray[np.uint8], targets: Sequence[Any], index: int) -> Example:
    return Example(pixels[index].copy(), targets[index])


def _describe_picture(file: Path, index: int) -> str:
    return f"{file}, picture {index + 1}"


def _read_part(parts: Sequence[Sequence[Example]], starts: Sequence[int], index: int) -> Example:
    k = bisect_right(starts, index) - 1
    return parts[k][index - starts[k]]


def _describe_part(parts: Sequence[Sequence[Example]], starts: Sequence[int], index: int) -> str:
    k = bisect_right(starts, index) - 1
    return describe_example(parts[k], index - starts[k])


def _read_file(read: Callable[[Path], Any], file: LabeledFile) -> Example:
    return Example(read(file.path), file.target)


def _file_target(file: LabeledFile) -> Any:
    return file.target


def _file_path(file: LabeledFile) -> str:
    return str(file.path)
