"""Checks of the contract of data sets, for sources of unifier and of other packages."""

import pickle
from typing import Any

from unifier.data.source import SPLITS, Example, ScoreRange, SplitName, example_of
from unifier_tokenizers import ContractError, InputError
from unifier_tokenizers.errors import one_line

MAX_CHECKED = 50
"""Largest number of examples of a split that are read."""


def check_source(source: Any) -> None:
    """Check that a source has three splits whose examples can be read, and are equal each time.

    The first 50 examples of each split are read.

    Args:
        source: The data set.

    Raises:
        ContractError: A check fails.
    """
    first = {name: _read(source, name) for name in SPLITS}
    for name in SPLITS:
        if _pickled(first[name]) != _pickled(_read(source, name)):
            raise ContractError(f"{name} has other examples at the second reading: use a fixed order and a fixed seed")
    for name in SPLITS[1:]:
        if _pickled(first[name]) == _pickled(first["train"]):
            raise ContractError(f"{name} has the examples of train: a score on examples of train is no test")
    score_range = getattr(source, "score_range", None)
    if not isinstance(score_range, ScoreRange | None):
        raise ContractError(f"score_range is a {type(score_range).__name__}: give a uf.ScoreRange, or leave it out")
    try:
        pickle.loads(pickle.dumps(source))
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ContractError(f"the source cannot be pickled ({reason}), and data workers need a copy") from error


def _read(source: Any, name: SplitName) -> list[Example]:
    """Return the first examples of a split."""
    try:
        split = source.split(name)
        examples = [example_of(split[index]) for index in range(min(len(split), MAX_CHECKED))]
    except (TypeError, AttributeError, LookupError, InputError) as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ContractError(
            f"split({name!r}) cannot be read ({reason}): return a sequence of Examples or pairs"
        ) from error
    if not examples:
        raise ContractError(f"split({name!r}) has no example: each of train, val and test needs at least one")
    return examples


def _pickled(examples: list[Example]) -> list[bytes]:
    return [pickle.dumps(example) for example in examples]
