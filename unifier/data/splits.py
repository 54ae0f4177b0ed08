"""Assignment of examples to train, val and test: by a stratified draw, by folds, or by groups of examples."""

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
"""By default, each held-out split gets 1 / `HELD_OUT_ONE_IN` of the examples."""


def select_part(entries: Sequence[ItemT], parts: Sequence[SplitName], name: SplitName) -> list[ItemT]:
    """Return the entries of one split in their original order. `parts` contains the split of each entry."""
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
    """Assign each example to a split by stratified sampling with a fixed seed.

    Every held-out split gets about 1 / `one_in` of the examples of each label, and at least one example. If a label has
    too few examples, all its examples are in train.

    Args:
        name: Name of the data in error messages.
        labels: The label of each example.
        parts: The splits to hold out. All remaining examples are in train.
        groups: The group of each example. All examples of a group are in the same split, so the sizes of the splits are
            only approximate. Train has examples of every label.
        one_in: Each held-out split gets 1 / `one_in` of the examples.

    Returns:
        The split of each example.

    Raises:
        InputError: There are too few examples or groups.
    """
    splits = _by_label(labels, parts, one_in) if groups is None else _by_group(labels, groups, parts, one_in)
    if len(set(splits)) <= len(parts):
        unit = "examples of one class" if groups is None else "groups with examples of the same classes"
        raise InputError(too_few_message(name, parts, unit))
    return splits


def too_few_message(name: str, parts: Sequence[SplitName], unit: str) -> str:
    """Return the error message for data with too few examples or groups (`unit`) to hold out the splits `parts`."""
    return (
        f"{name}: too few examples to hold out {' and '.join(parts)}: "
        f"give at least {len(parts) + 1} {unit}, or define the splits yourself"
    )


def hold_out_rows(
    name: str,
    count: int,
    parts: Sequence[SplitName],
    *,
    max_rows: int | None = None,
    unique: NDArray[np.bool_] | None = None,
) -> dict[SplitName, NDArray[np.int32]]:
    """Draw the rows of each split at random with a fixed seed, using only a few bytes of memory per example.

    Args:
        name: Name of the data in error messages.
        count: Number of examples.
        parts: The splits to hold out. All remaining rows are in train.
        max_rows: Maximum number of rows of each held-out split.
        unique: Mask (count,), True for each row that occurs only once. If `unique` is given, only rows that occur once
            are held out.

    Returns:
        The rows of each split in ascending order.

    Raises:
        InputError: There are too few examples, or too few unique examples.
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
                f"{name}: only {len(drawn):,} examples occur once, which is too few to hold out {' and '.join(parts)} "
                "without copies in train: give duplicates=drop, or define the splits yourself"
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
    """Assign each example to a split by its fold.

    One fold is the test split, the next fold is the val split, and all other folds are the train split.

    Args:
        name: Name of the data in error messages.
        folds: The fold of each example.
        test: The test fold. None means the first fold.
        groups: The group of each example. No group may be in two folds.
        unit: The word for a group in error messages, such as "artist".
        labels: The label of each example. Train must have examples of every label.

    Raises:
        InputError: The test fold does not exist, there are fewer than three folds, a group is in two folds, or train
            has no example of a label.
    """
    if groups is not None:
        check_no_leak(f"{name}: {unit}", groups, [f"fold {fold}" for fold in folds])
    numbers = sorted(set(folds))
    test = check_choice("fold", numbers[0] if test is None else test, numbers)
    if len(numbers) < len(SPLITS):
        raise InputError(f"{name} has {len(numbers)} folds, but train, val and test need at least three folds")
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
    """Raise InputError if a group is in two parts. A group in both train and test would make test scores too high."""
    part_of: dict[str, str] = {}
    for group, part in zip(groups, parts, strict=True):
        if part_of.setdefault(group, part) != part:
            raise InputError(
                f"{name} {group!r} is in {part_of[group]} and in {part}: put all its examples into one of the two"
            )


def check_trained_labels(name: str, labels: Sequence[str], parts: Sequence[SplitName]) -> None:
    """Raise InputError if val or test has a label that does not occur in train."""
    trained = set(select_part(labels, parts, "train"))
    missing = sorted(set(labels) - trained)
    if trained and missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise InputError(
            f"{name}: train has no examples of {', '.join(missing[:5])}{more}, but val or test have: add examples to "
            "train, or remove them from val and test"
        )


def _by_label(labels: Sequence[str], parts: Sequence[SplitName], one_in: int) -> list[SplitName]:
    """Draw the examples of each held-out split, separately for every label."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        members[label].append(index)
    # RandomState draws equal numbers in all versions of NumPy.
    random = np.random.RandomState(0)
    splits: list[SplitName] = ["train"] * len(labels)
    rare = sum(len(indices) <= len(parts) for indices in members.values())
    if 2 * rare > len(members) > rare:
        warnings.warn(
            f"{rare} of {len(members)} classes have too few examples for {' and '.join(parts)}, and are only in train",
            stacklevel=4,
        )
    for label in sorted(members):
        size = max(1, round(len(members[label]) / one_in)) if len(members[label]) > len(parts) else 0
        drawn = random.permutation(members[label])
        for k, part in enumerate(parts):
            for index in drawn[k * size : (k + 1) * size]:
                splits[index] = part
    return splits


def _by_group(labels: Sequence[str], groups: Sequence[str], parts: Sequence[SplitName], one_in: int) -> list[SplitName]:
    """Draw complete groups for each held-out split. Repeat the draw until train has examples of every label."""
    staying = set[str]()
    while True:
        splits = _draw_groups(labels, groups, staying, parts, one_in)
        missing = set(labels) - set(select_part(labels, splits, "train"))
        if not missing:
            return splits
        # In the next draw, one group of each missing label must stay in train.
        last = {label: group for label, group in zip(labels, groups, strict=True) if label in missing}
        staying |= set(last.values())


def _draw_groups(
    labels: Sequence[str], groups: Sequence[str], staying: set[str], parts: Sequence[SplitName], one_in: int
) -> list[SplitName]:
    """Draw the groups of each held-out split. The groups in `staying` remain in train."""
    splits: list[SplitName] = ["train"] * len(labels)
    free = [index for index, group in enumerate(groups) if group not in staying]
    free_labels, free_groups = [labels[index] for index in free], [groups[index] for index in free]
    folds = min(one_in, len(set(free_groups)), max(Counter(free_labels).values(), default=0))
    if folds <= len(parts):
        return splits
    # scikit-learn takes 20 MB of memory, so it is imported only for data with groups.
    from sklearn.model_selection import StratifiedGroupKFold

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # scikit-learn warns if a label has fewer examples than folds.
        draw = StratifiedGroupKFold(folds, shuffle=True, random_state=0)
        # Fold sizes may differ widely. The folds that are closest to the wanted size are held out.
        aim = len(labels) / one_in
        drawn = sorted(
            (held_out for _, held_out in draw.split(free_labels, free_labels, free_groups)),
            key=lambda held_out: abs(len(held_out) - aim),
        )
        for part, held_out in zip(parts, drawn, strict=False):
            for index in held_out:
                splits[free[index]] = part
    return splits
