"""The contract of a data set: named splits of examples, each an input and its target."""

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
"""Whether an example that cannot be read is an error, or is left out."""


UNREADABLE_MARK = "unreadable"
"""Placeholder hash of an unreadable file, so that a set can be hashed; `bad_examples` says whether it is an error."""


class Example(NamedTuple):
    """One raw example, before any tokenizer or head has seen it."""

    input: Any
    """What the task's tokenizer encodes: a text, a picture, a `Sound`, or for a mixture a dictionary of them."""
    target: Any
    """What the task's head encodes: a text, a label, a list of tags."""


def example_of(item: object) -> Example:
    """An item of anyone's data set as an `Example`: one, a pair, or a mapping with the keys "input" and "target".

    Raises InputError for any other.
    """
    if isinstance(item, Example):
        return item
    if isinstance(item, Mapping):
        if "input" in item and "target" in item:
            return Example(item["input"], item["target"])
        own = ", ".join(map(repr, item))
        raise InputError(f"a row with 'input' and 'target' is expected, not {own}: rename them (rename_columns)")
    if isinstance(item, tuple | list) and len(item) == 2:
        return Example(*item)
    said = f"{type(item).__name__}{f' of {len(item)}' if isinstance(item, tuple | list) else ''}"
    raise InputError(f"an Example(input, target) is expected, a pair, or a row with those keys, not a {said}")


class Split(Protocol):
    """A map-style data set, whose items are what `example_of` takes; it is never sliced."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


@final
@dataclass(frozen=True)
class ScoreRange:
    """What scores on a set mean, so that sets can share an axis: (score - chance) / (reference - chance).

    Raises InputError for a reference that is not above chance.
    """

    metric: str
    """The name of the score, as the head gives it; the numbers are in its unit."""
    chance: float
    """What knowing nothing scores."""
    reference: float | None
    """What a known system scores, or a perfect one where that is known; None leaves the set off the axis."""
    origin: str
    """Which system, under which conditions, and who says so."""

    def __post_init__(self) -> None:
        if self.reference is not None and not self.reference > self.chance:
            raise InputError(
                f"chance={self.chance:g}, reference={self.reference:g}: of {self.metric} the reference is to be above "
                "chance, since higher is better: give errors a minus, as the head does"
            )


def accuracy_range(labels: Sequence[str], reference: float | None, origin: str) -> ScoreRange:
    """The scale of a set of classes, in percent.

    Chance is what guessing every class equally often scores, whether or not the set is balanced.
    """
    return ScoreRange("accuracy", 100 / len(labels), reference, origin)


NO_SCORE_RANGE = "no reference is known"
"""The origin of none."""


@runtime_checkable
class Source(Protocol):
    """A data set with the splits "train", "val" and "test".

    Any map-style data set fits, torch's and Hugging Face's among them: a split needs a length and integer indexing, and
    its items are Examples, pairs, or rows with "input" and "target", which `split_of` reads as Examples. It may also
    have `example_id(index)`, a method that names an example for an error message ("train.en, line 12"), and `target(index)`,
    one that gives a target without its input; a source may have a `name` (else `name_of` finds one), a `ScoreRange` as
    `score_range`, `folds` (the numbers that its folds go by, such as (1, 2, 3)), the `seconds` of its sounds where they are
    all as long, and a `sha256` over all that its examples are read from.
    """

    def split(self, name: SplitName) -> Split:
        """The examples of one split, in a fixed order. Reading an example may raise InputError."""
        ...


class LabeledSource(Source, Protocol):
    """A data set of Examples whose targets are labels, or tuples of them."""

    name: str

    def split(self, name: SplitName) -> Sequence[Example]: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels there are, in the order in which a head counts them."""
        ...


def name_of(source: Source) -> str:
    """What a source is called: its `name`, else as its class is, or as it is itself where it is a class or a module."""
    return getattr(source, "name", None) or getattr(source, "__name__", type(source).__name__)


def score_range_of(source: Source) -> ScoreRange | None:
    """A source's scale, None where it says none; raises InputError where what it says is no ScoreRange."""
    score_range = getattr(source, "score_range", None)
    if score_range is not None and not isinstance(score_range, ScoreRange):
        said = "give it as unifier.ScoreRange(metric, chance, reference, origin)"
        raise InputError(f"{name_of(source)}: its score_range is a {type(score_range).__name__}: {said}")
    return score_range


def describe_example(examples: Sequence[Example], index: int) -> str:
    """Name one example for an error message, by its file and line where the split knows them."""
    name = optional_method(examples, "example_id")
    return name(index) if name else f"example {index}"


def target_of(examples: Sequence[Example], index: int) -> Any:
    """One example's target, without its input where the split can do that: to read one may mean to decode a sound."""
    own = optional_method(examples, "target")
    return own(index) if own else examples[index].target


def optional_method(examples: Sequence[Example], name: str) -> Callable[[int], Any] | None:
    """What a split can do beyond its items, if it can: anyone's may hold all its targets under that name."""
    own = getattr(examples, name, None)
    return own if callable(own) else None


def readable_examples(
    examples: Split, *, bad_examples: BadExamples = "stop", max_examples: int | None = None
) -> Iterator[Example]:
    """Examples to learn a vocabulary or a mean from: all that can be read, or at most `most` of them, evenly spaced.

    Raises InputError at the first that cannot be read, unless bad_examples is "skip".
    """
    step = max(-(-len(examples) // max_examples), 1) if max_examples else 1
    for index in range(0, len(examples), step):
        try:
            yield example_of(examples[index])
        except (ValueError, OSError) as error:
            if bad_examples == "stop":
                raise InputError(f"{error} (bad_examples=skip leaves such examples out)") from error


def data_folder(name: str, data: str | Path | None = None) -> Path:
    """The folder of the data set `name`.

    It is `data` where given, else `$UNIFIER_DATA/name` (the command line's `--data` sets it), else a folder in the
    user's cache, where downloads are kept. Raises InputError where there is none of these.
    """
    if data is not None:
        return Path(data)
    if root := os.environ.get("UNIFIER_DATA"):
        if not Path(root).is_dir():
            raise InputError(f"--data {root}: no such folder")
        return Path(root) / name
    if (cache := user_cache()) is None:
        raise InputError(f"{name}: there is no home folder to keep data in; give --data, or set XDG_CACHE_HOME")
    return cache / name


@contextmanager
def use_data_folder(data: str | Path | None) -> Generator[None]:
    """Within it, the folder of data sets is `data` where given, for num_workers too."""
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
    """The folder in the user's cache that is this program's; None of a user without a home, as containers have."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unifier"
    except RuntimeError:
        return None
