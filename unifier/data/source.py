"""The contract of a data set: the splits train, val and test, made of examples with an input and a target."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, final, get_args, runtime_checkable

from unifier_tokenizers import InputError

SplitName = Literal["train", "val", "test"]

SPLITS: tuple[SplitName, ...] = get_args(SplitName)

BadExamples = Literal["stop", "skip"]
"""Policy for an example that cannot be read: raise an error, or leave the example out."""

UNREADABLE_MARK = "unreadable"
"""Hash of a file that cannot be read, so that a set with such a file still has a hash; `bad_examples` decides later
whether the file is an error."""

NO_SCORE_RANGE = "no reference is known"
"""Origin of a score range without a reference."""


class Example(NamedTuple):
    """One raw example, before a tokenizer or head encodes it."""

    input: Any
    """Input of the task's tokenizer: a text, a picture, an `Audio`, or a dictionary of inputs for a mixture."""
    target: Any
    """Target of the task's head: a text, a label, a list of tags."""


def example_of(item: object) -> Example:
    """Return an item of a map-style data set as an `Example`.

    Args:
        item: An `Example`, a pair (input, target), or a mapping with the keys "input" and "target".

    Raises:
        InputError: The item has another form.
    """
    if isinstance(item, Example):
        return item
    if isinstance(item, Mapping):
        if "input" in item and "target" in item:
            return Example(item["input"], item["target"])
        keys = ", ".join(map(repr, item))
        raise InputError(f"a row with 'input' and 'target' is expected, not {keys}: rename them (rename_columns)")
    if isinstance(item, tuple | list) and len(item) == 2:
        return Example(*item)
    kind = f"{type(item).__name__}{f' of {len(item)}' if isinstance(item, tuple | list) else ''}"
    raise InputError(f"an Example(input, target), a pair, or a row with those keys is expected, not a {kind}")


class Split(Protocol):
    """A map-style data set whose items `example_of` accepts. It needs no support for slices."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


@final
@dataclass(frozen=True)
class ScoreRange:
    """The chance and reference scores of a data set, by which scores are normalized.

    A normalized score is (score - chance) / (reference - chance), so that several data sets can share an axis. Raises
    InputError if the reference is not above chance.
    """

    metric: str
    """Name of the metric, as the head returns it. Both scores are in its unit."""
    chance: float
    """Score of guessing."""
    reference: float | None
    """Score of a known system, or of a perfect one if that is known. None leaves the set off the shared axis."""
    origin: str
    """Name of the reference system, its conditions and the source of the number."""

    def __post_init__(self) -> None:
        if self.reference is not None and not self.reference > self.chance:
            raise InputError(
                f"chance={self.chance:g}, reference={self.reference:g}: the reference of {self.metric} must be above "
                "chance, since higher is better: negate an error metric, as the head does"
            )


def accuracy_range(labels: Sequence[str], reference: float | None, origin: str) -> ScoreRange:
    """Return the score range of a classification set, in percent.

    Chance is the accuracy of guessing every class equally often. It does not depend on the balance of the set.
    """
    return ScoreRange("accuracy", 100 / len(labels), reference, origin)


@runtime_checkable
class Source(Protocol):
    """A data set with the splits "train", "val" and "test".

    Any map-style data set can be a split, also one of torch or Hugging Face. A split needs a length and integer
    indexing. Its items are Examples, pairs, or rows with "input" and "target"; `open_split` reads them as Examples.

    A split may also have these methods:

    - `example_id(index)` returns an example's name for error messages, such as "train.en, line 12".
    - `target(index)` returns an example's target without reading its input.

    A source may also have these attributes:

    - `name`, used in messages and results. Without it `name_of` uses the class name.
    - `score_range`, a `ScoreRange`.
    - `folds`, the numbers of its cross-validation folds, such as (1, 2, 3).
    - `seconds`, the length of its sounds, if all have the same length.
    - `sha256`, a hash of all files that its examples are read from.
    """

    def split(self, name: SplitName) -> Split:
        """Return the examples of one split in a fixed order. Reading an example may raise InputError."""
        ...


class LabeledSource(Source, Protocol):
    """A data set of Examples whose targets are labels or tuples of labels."""

    name: str

    def split(self, name: SplitName) -> Sequence[Example]: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, in the order of the head's classes."""
        ...


def name_of(source: Source) -> str:
    """Return the source's `name`, else its own name if it is a class or a module, else the name of its class."""
    return getattr(source, "name", None) or getattr(source, "__name__", type(source).__name__)


def score_range_of(source: Source) -> ScoreRange | None:
    """Return the source's `score_range`, or None if it has none. Raises InputError if it is not a ScoreRange."""
    score_range = getattr(source, "score_range", None)
    if score_range is not None and not isinstance(score_range, ScoreRange):
        expected = "give it as unifier.ScoreRange(metric, chance, reference, origin)"
        raise InputError(f"{name_of(source)}: its score_range is a {type(score_range).__name__}: {expected}")
    return score_range


def describe_example(examples: Sequence[Example], index: int) -> str:
    """Return an example's name for an error message: its file and line if the split has `example_id`."""
    example_id = optional_method(examples, "example_id")
    return example_id(index) if example_id else f"example {index}"


def target_of(examples: Sequence[Example], index: int) -> Any:
    """Return an example's target, without reading the input if the split has a method for that."""
    target = optional_method(examples, "target")
    return target(index) if target else examples[index].target


def optional_method(examples: Sequence[Example], name: str) -> Callable[[int], Any] | None:
    """Return a split's optional method, or None if it has no such method.

    An attribute that cannot be called is ignored, because a data set may store all its targets as `target`.
    """
    method = getattr(examples, name, None)
    return method if callable(method) else None


def readable_examples(
    examples: Split, *, bad_examples: BadExamples = "stop", max_examples: int | None = None
) -> Iterator[Example]:
    """Yield examples from which a vocabulary or a mean is computed.

    Args:
        examples: The split to read.
        bad_examples: "skip" leaves out examples that cannot be read.
        max_examples: Upper bound of the number of examples, which are evenly spaced; None reads all.

    Raises:
        InputError: An example cannot be read and bad_examples is "stop".
    """
    step = max(-(-len(examples) // max_examples), 1) if max_examples else 1
    for index in range(0, len(examples), step):
        try:
            yield example_of(examples[index])
        except (ValueError, OSError) as error:
            if bad_examples == "stop":
                raise InputError(f"{error} (bad_examples=skip leaves such examples out)") from error


def data_folder(name: str, data: str | Path | None = None) -> Path:
    """Return the folder of a data set.

    Args:
        name: Name of the data set and of its folder.
        data: The folder itself, if the user gave one. Otherwise the folder is `$UNIFIER_DATA/name` (set by `--data`)
            or, without that variable, a folder in the user's cache, where downloads are stored.

    Raises:
        InputError: `$UNIFIER_DATA` does not exist, or it is not set and the user has no home folder.
    """
    if data is not None:
        return Path(data)
    if root := os.environ.get("UNIFIER_DATA"):
        if not Path(root).is_dir():
            raise InputError(f"--data {root}: no such folder")
        return Path(root) / name
    if (cache := user_cache()) is None:
        raise InputError(f"{name}: there is no home folder to store data in; give --data, or set XDG_CACHE_HOME")
    return cache / name


@contextmanager
def use_data_folder(data: str | Path | None) -> Generator[None]:
    """Read all data sets from the folder `data` inside this block, also in worker processes. None changes nothing."""
    before = os.environ.get("UNIFIER_DATA")
    if data is not None:
        os.environ["UNIFIER_DATA"] = str(Path(data).resolve())
    try:
        yield
    finally:
        if data is not None:
            os.environ.pop("UNIFIER_DATA")
            if before is not None:
                os.environ["UNIFIER_DATA"] = before


def user_cache() -> Path | None:
    """Return this program's folder in the user's cache, or None if the user has no home, as in some containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unifier"
    except RuntimeError:
        return None
