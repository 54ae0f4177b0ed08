"""Assignment of examples to train, val and test: stratified, by folds, or with groups kept in one split."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import compress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from unifier.data.source import SPLITS, UNREADABLE_MARK, SplitName
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

ItemT = TypeVar("ItemT")

HELD_OUT_ONE_IN = 10
"""Default number of examples of which one is held out for each split."""


def select_part(entries: Sequence[ItemT], parts: Sequence[SplitName], name: SplitName) -> list[ItemT]:
    """Return the entries whose part is the split `name`, in their order."""
    check_choice("split", name, SPLITS)
    return list(compress(entries, (part == name for part in parts)))


def hold_out(
    name: str,
    labels: Sequence[str],
    parts: Sequence[SplitName],
    *,
    groups: Sequence[str] | None = None,
    one_in: int = HELD_OUT_ONE_IN,
) -> list[SplitName]:
    """Assign each example to a split by a stratified draw with a fixed seed.

    Every held-out part gets its share of every label, and at least one example of it. A label with too few examples
    for that stays in train.

    Args:
        name: Name of the data in error messages.
        labels: The label of each example.
        parts: The splits to hold out. All other examples are in train.
        groups: The group of each example. A group stays in one split, the shares are as close as complete groups
            allow, and train has examples of every label.
        one_in: Each part gets one of this number of examples.

    Returns:
        The split of each example.

    Raises:
        InputError: There are too few examples or groups.
    """
    splits = _by_label(labels, parts, one_in) if groups is None else _by_group(labels, groups, parts, one_in)
    if len(set(splits)) <= len(parts):
        unit = "examples of one class" if groups is None else "groups that share their classes with others"
        raise InputError(too_few_message(name, parts, unit))
    return splits


def too_few_message(name: str, parts: Sequence[SplitName], unit: str) -> str:
    """Return the error message for data with too few of the `unit` to hold out the parts."""
    return (
        f"{name}: too few examples to hold out {' and '.join(parts)}; "
        f"at least {len(parts) + 1} {unit} are needed, or splits of your own"
    )


def hold_out_rows(
    name: str,
    count: int,
    parts: Sequence[SplitName],
    *,
    max_rows: int | None = None,
    unique: NDArray[np.bool_] | None = None,
) -> dict[SplitName, NDArray[np.int32]]:
    """Draw the rows of each split, as `hold_out` does for examples of one label, with a few bytes per example.

    Args:
        name: Name of the data in error messages.
        count: Number of examples.
        parts: The splits to hold out. All other rows are in train.
        max_rows: Upper bound of the rows drawn for each part.
        unique: True for rows that occur once (count,). If given, only these rows are drawn.

    Returns:
        The rows of each split in ascending order.

    Raises:
        InputError: There are too few examples, or too few that occur once.
    """
    if count <= len(parts):
        raise InputError(too_few_message(name, parts, "examples"))
    size = min(max(1, round(count / HELD_OUT_ONE_IN)), max_rows or count)
    drawn = np.random.RandomState(0).permutation(np.arange(count, dtype=np.int32))
    if unique is not None:
        drawn = drawn[unique[drawn]]
        size = min(size, len(drawn) // len(parts))
        if not size:
            raise InputError(
                f"{name}: only {len(drawn):,} examples occur once, too few to hold out {' and '.join(parts)} without "
                "a copy in train; give duplicates=drop, or splits of your own"
            )
    stays, rows = np.ones(count, np.bool_), dict[SplitName, NDArray[np.int32]]()
    for k, part in enumerate(parts):
        rows[part] = np.sort(drawn[k * size : (k + 1) * size])
        stays[rows[part]] = False
    return {"train": np.flatnonzero(stays).astype(np.int32), **rows}


def rotate_folds(
    name: str,
    folds: Sequence[int],
    test: int | None,
    *,
    groups: Sequence[str] | None = None,
    unit: str = "group",
    labels: Sequence[str] | None = None,
) -> list[SplitName]:
    """Assign each example to a split by its fold: one fold is test, the next one is val, the others are train.

    Args:
        name: Name of the data in error messages.
        folds: The fold of each example.
        test: The test fold; None is the first.
        groups: The group of each example. No group may be in two folds.
        unit: The word for a group in error messages.
        labels: The label of each example. Train must have examples of every label.

    Raises:
        InputError: There is no such fold, there are fewer than three, a group is in two folds, or train lacks a label.
    """
    if groups is not None:
        check_no_leak(f"{name}: {unit}", groups, [f"fold {fold}" for fold in folds])
    numbers = sorted(set(folds))
    test = check_choice("fold", numbers[0] if test is None else test, numbers)
    if len(numbers) < len(SPLITS):
        raise InputError(f"{name} has {len(numbers)} folds: train, val and test take at least three")
    val = numbers[(numbers.index(test) + 1) % len(numbers)]
    splits: dict[int, SplitName] = {test: "test", val: "val"}
    parts: list[SplitName] = [splits.get(fold, "train") for fold in folds]
    if labels is not None:
        check_trained_labels(f"{name}, fold {test}", labels, parts)
    return parts


def count_copies(contents: Sequence[str], parts: Sequence[SplitName]) -> int:
    """Count the examples of val and test whose content hash also occurs in train."""
    trained = set(select_part(contents, parts, "train")) - {UNREADABLE_MARK}
    return sum(part != "train" and content in trained for content, part in zip(contents, parts, strict=True))


def check_no_leak(name: str, groups: Sequence[str], parts: Sequence[str]) -> None:
    """Raise InputError if a group is in two parts, because a test score on seen groups is too high."""
    part_of: dict[str, str] = {}
    for group, part in zip(groups, parts, strict=True):
        if part_of.setdefault(group, part) != part:
            raise InputError(f"{name} {group!r} is in {part_of[group]} and in {part}: it may be in one only")


def check_trained_labels(name: str, labels: Sequence[str], parts: Sequence[SplitName]) -> None:
    """Raise InputError if val or test have labels that train lacks."""
    trained = set(select_part(labels, parts, "train"))
    missing = sorted(set(labels) - trained)
    if trained and missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise InputError(f"{name}: train has no examples of {', '.join(missing[:5])}{more}, which val or test have")


def _by_label(labels: Sequence[str], parts: Sequence[SplitName], one_in: int) -> list[SplitName]:
    """Draw each part's share of the examples of every label."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        members[label].append(index)
    # NumPy guarantees the stream of RandomState for all future versions, but not those of its newer generators.
    random = np.random.RandomState(0)
    splits: list[SplitName] = ["train"] * len(labels)
    rare = sum(len(indices) <= len(parts) for indices in members.values())
    if 2 * rare > len(members) > rare:
        warnings.warn(f"{rare} of {len(members)} classes are too small to be in {' and '.join(parts)}", stacklevel=4)
    for label in sorted(members):
        size = max(1, round(len(members[label]) / one_in)) if len(members[label]) > len(parts) else 0
        drawn = random.permutation(members[label])
        for k, part in enumerate(parts):
            for index in drawn[k * size : (k + 1) * size]:
                splits[index] = part
    return splits


def _by_group(labels: Sequence[str], groups: Sequence[str], parts: Sequence[SplitName], one_in: int) -> list[SplitName]:
    """Draw complete groups until train has examples of every label."""
    staying = set[str]()
    while True:
        splits = _draw_groups(labels, groups, staying, parts, one_in)
        missing = set(labels) - set(select_part(labels, splits, "train"))
        if not missing:
            return splits
        # One group of each missing label stays in train in the next draw.
        last = {label: group for label, group in zip(labels, groups, strict=True) if label in missing}
        staying |= set(last.values())


def _draw_groups(
    labels: Sequence[str], groups: Sequence[str], staying: set[str], parts: Sequence[SplitName], one_in: int
) -> list[SplitName]:
    """Draw the parts from all groups that are not `staying` in train."""
    splits: list[SplitName] = ["train"] * len(labels)
    free = [index for index, group in enumerate(groups) if group not in staying]
    free_labels, free_groups = [labels[index] for index in free], [groups[index] for index in free]
    folds = min(one_in, len(set(free_groups)), max(Counter(free_labels).values(), default=0))
    if folds <= len(parts):
        return splits
    # The import takes 20 MB, which only data with groups need.
    from sklearn.model_selection import StratifiedGroupKFold

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # It warns about labels that are rarer than folds.
        draw = StratifiedGroupKFold(folds, shuffle=True, random_state=0)
        # Some folds may be far larger than others, because the largest groups are assigned first.
        aim = len(labels) / one_in
        drawn = sorted(
            (held_out for _, held_out in draw.split(free_labels, free_labels, free_groups)),
            key=lambda held_out: abs(len(held_out) - aim),
        )
        for part, held_out in zip(parts, drawn, strict=False):
            for index in held_out:
                splits[free[index]] = part
    return splits
