"""The interface of a data set with the splits train, val and test. Each example has an input and a target."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, final, get_args, runtime_checkable

from unifier_tokenizers import InputError

SplitName = Literal["train", "val", "test"]

SPLITS: tuple[SplitName, ...] = get_args(SplitName)

BadExamples = Literal["stop", "skip"]
"""Policy for an example that cannot be read: "stop" raises an error, and "skip" leaves out the example."""

UNREADABLE_MARK = "unreadable"
"""Value used as the hash of an unreadable file. A data set with unreadable files can therefore be hashed. The setting
`bad_examples` decides later if an unreadable file causes an error."""

NO_SCORE_RANGE = "no reference is known"
"""Value of `ScoreRange.origin` for a data set without a reference score."""


class Example(NamedTuple):
    """One raw example, before a tokenizer or head encodes it."""

    input: Any
    """Input for the task's tokenizer: a text, a picture, an `Audio`, or a dictionary of inputs for a mixture."""
    target: Any
    """Target for the task's head, such as a text, a label or a list of tags."""


def example_of(item: object) -> Example:
    """Convert an item of a map-style data set to an `Example`.

    Args:
        item: An `Example`, a pair (input, target), or a mapping with the keys "input" and "target".

    Raises:
        InputError: The item cannot be converted.
    """
    if isinstance(item, Example):
        return item
    if isinstance(item, Mapping):
        if "input" in item and "target" in item:
            return Example(item["input"], item["target"])
        keys = ", ".join(map(repr, item))
        raise InputError(
            f"a row with 'input' and 'target' is expected, not {keys}: rename the columns, for example with "
            "rename_columns of Hugging Face"
        )
    if isinstance(item, tuple | list) and len(item) == 2:
        return Example(*item)
    kind = f"{type(item).__name__}{f' of {len(item)}' if isinstance(item, tuple | list) else ''}"
    raise InputError(
        f"an Example(input, target), a pair, or a row with the keys 'input' and 'target' is expected, not a {kind}"
    )


class Split(Protocol):
    """A map-style data set. `example_of` must accept the items of the data set. Slicing is not needed."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


@final
@dataclass(frozen=True)
class ScoreRange:
    """The chance score and the reference score of a data set, which are used to normalize scores.

    A normalized score is (score - chance) / (reference - chance). Normalized scores of several data sets can be plotted
    on one axis. For a metric in the head's `lower_is_better`, the reference is below chance. Without a reference, the
    normalized score of such an error is 1 - error / chance. Raises InputError if the reference equals chance.
    """

    metric: str
    """Name of the metric, as in the scores of the head. `chance` and `reference` have the unit of the metric."""
    chance: float
    """Expected score of random guesses, or for an error a simple prediction's error, such as that of letter counts."""
    reference: float | None
    """Score of a published system, or the best possible score. With None, scores are not normalized."""
    origin: str
    """Name and conditions of the reference system, and the paper or web page with its score."""

    def __post_init__(self) -> None:
        # A comparison with NaN is False.
        if self.reference is not None and not (self.reference > self.chance or self.reference < self.chance):
            raise InputError(
                f"chance={self.chance:g}, reference={self.reference:g}: the reference of {self.metric} must differ "
                "from chance"
            )


def accuracy_range(labels: Sequence[str], reference: float | None, origin: str) -> ScoreRange:
    """Return the score range of a classification data set, in percent.

    The chance score is the expected accuracy if each class is guessed with equal probability.
    """
    return ScoreRange("accuracy", 100 / len(labels), reference, origin)


@runtime_checkable
class Source(Protocol):
    """A data set with the splits "train", "val" and "test".

    Any map-style data set can be a split, for example a data set of torch or Hugging Face. A split needs a length and
    indexing by integers. The items of a split are Examples, pairs (input, target), or rows with the keys "input" and
    "target". `open_split` converts the items to Examples.

    Optional methods of a split:

    - `example_id(index)` returns an example's name for error messages, such as "train.en, line 12".
    - `target(index)` returns an example's target without reading the input.

    Optional attributes of a source:

    - `name` is used in messages and results. If there is no `name`, the class name of the source is used.
    - `score_range` is a `ScoreRange`.
    - `reader` is an `InputReader`, which a trained model uses to prepare its inputs.
    - `folds` contains the numbers of the cross-validation folds, such as (1, 2, 3).
    - `seconds` is the length of the sounds in seconds, if all sounds have the same length.
    - `license` is the license of the data, such as "CC BY 4.0".
    - `sha256` is a hash of all files that the examples are read from.
    """

    def split(self, name: SplitName) -> Split:
        """Return the examples of one split in a fixed order. Reading an example may raise InputError."""
        ...


class LabeledSource(Source, Protocol):
    """A data set of Examples. Each target is a label or a tuple of labels."""

    name: str

    def split(self, name: SplitName) -> Sequence[Example]: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels. Label i is class i of the head."""
        ...


def name_of(source: Source) -> str:
    """Return the source's `name`. If there is no `name`, return the `__name__` of the source or of its class."""
    return getattr(source, "name", None) or getattr(source, "__name__", type(source).__name__)


def score_range_of(source: Source, lower_is_better: Set[str] | None = None) -> ScoreRange | None:
    """Return the source's `score_range`, or None if the source has no `score_range`.

    Args:
        source: The source.
        lower_is_better: The head's metrics that are errors, or None to skip the check of the reference.

    Raises:
        InputError: `score_range` is not a `ScoreRange`, or its reference is worse than chance.
    """
    score_range = getattr(source, "score_range", None)
    if score_range is not None and not isinstance(score_range, ScoreRange):
        expected = "give it as unifier.ScoreRange(metric, chance, reference, origin)"
        raise InputError(f"{name_of(source)}: its score_range is a {type(score_range).__name__}: {expected}")
    if score_range is not None and lower_is_better is not None:
        check_direction(name_of(source), score_range, lower_is_better)
    return score_range


def check_direction(name: str, score_range: ScoreRange, lower_is_better: Set[str]) -> None:
    """Raise InputError if the reference of a score range is worse than chance.

    Args:
        name: The name of the data set, for the message.
        score_range: The score range.
        lower_is_better: The head's metrics that are errors.
    """
    lower = score_range.metric in lower_is_better
    if score_range.reference is not None and lower != (score_range.reference < score_range.chance):
        raise InputError(
            f"{name}: chance={score_range.chance:g}, reference={score_range.reference:g}: the reference of "
            f"{score_range.metric} must be {'below' if lower else 'above'} chance, because "
            f"{'lower' if lower else 'higher'} values are better (see the head's lower_is_better)"
        )


def describe_example(examples: Sequence[Example], index: int) -> str:
    """Return an example's name for an error message: its file and line, or its number if the file is not known."""
    example_id = optional_method(examples, "example_id")
    return example_id(index) if example_id else f"example {index}"


def target_of(examples: Sequence[Example], index: int) -> Any:
    """Return an example's target. The input is read only if the split has no method `target`."""
    target = optional_method(examples, "target")
    return target(index) if target else examples[index].target


def optional_method(examples: Sequence[Example], name: str) -> Callable[[int], Any] | None:
    """Return a split's optional method `name`, or None if the split has no method `name`.

    An attribute that is not a method is ignored. For example, a data set may store its targets in an attribute
    `target`.
    """
    method = getattr(examples, name, None)
    return method if callable(method) else None


def readable_examples(
    examples: Split, *, bad_examples: BadExamples = "stop", max_examples: int | None = None
) -> Iterator[Example]:
    """Yield the examples of a split, for example to compute a vocabulary or a mean.

    Args:
        examples: The split to read.
        bad_examples: "skip" leaves out examples that cannot be read. "stop" raises an error.
        max_examples: Maximum number of examples. The chosen examples are evenly spaced in the split. None means all
            examples.

    Raises:
        InputError: An example cannot be read and bad_examples is "stop".
    """
    step = max(-(-len(examples) // max_examples), 1) if max_examples else 1
    for index in range(0, len(examples), step):
        try:
            yield example_of(examples[index])
        except (ValueError, OSError) as error:
            if bad_examples == "stop":
                raise InputError(f"{error} (bad_examples=skip leaves out such examples)") from error


def data_folder(name: str, data: str | Path | None = None) -> Path:
    """Return the folder of a data set.

    Args:
        name: Name of the data set and of its folder.
        data: Folder given by the user, which is returned unchanged. With None, the folder is `$UNIFIER_DATA/name`. The
            option `--data` sets $UNIFIER_DATA. If $UNIFIER_DATA is not set, the folder is in the user's cache.

    Raises:
        InputError: The folder $UNIFIER_DATA does not exist, or $UNIFIER_DATA is not set and the user has no home
            folder.
    """
    if data is not None:
        return Path(data)
    if root := os.environ.get("UNIFIER_DATA"):
        if not Path(root).is_dir():
            raise InputError(f"--data {root}: this folder does not exist; give the folder that contains the data sets")
        return Path(root) / name
    if (cache := user_cache()) is None:
        raise InputError(
            f"{name}: no data folder is given, and there is no home folder: give --data, or set XDG_CACHE_HOME"
        )
    return cache / name


@contextmanager
def use_data_folder(data: str | Path | None) -> Generator[None]:
    """Set the folder of all data sets in a `with` block, including its worker processes. None has no effect."""
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


def starting_folders() -> dict[str, str | None]:
    """Return the working folder and the data folder, to which relative paths in a run's settings refer."""
    data = os.environ.get("UNIFIER_DATA")
    return {"started_in": str(Path.cwd()), "data_folder": data and str(Path(data).resolve())}


@contextmanager
def use_starting_folders(stored: Mapping[str, Any]) -> Generator[None]:
    """Use the folders of `starting_folders` that an earlier run has stored, while the block runs.

    A folder that no longer exists is not used. A given $UNIFIER_DATA has priority over the stored data folder.
    """
    folder, data = (Path(str(stored.get(name))) for name in ("started_in", "data_folder"))
    with ExitStack() as stack:
        if stored.get("started_in") and folder.is_dir():
            stack.enter_context(chdir(folder))
        if stored.get("data_folder") and data.is_dir() and not os.environ.get("UNIFIER_DATA"):
            stack.enter_context(use_data_folder(data))
        yield


def user_cache() -> Path | None:
    """Return unifier's folder in the user's cache, or None if the user has no home folder, as in some containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unifier"
    except RuntimeError:
        return None
