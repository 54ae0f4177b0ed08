"""Train, validation and test splits: held out, by folds, with groups kept together."""

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
"""One example in so many is held out for a split, where nothing else is asked for."""


def select_part(entries: Sequence[ItemT], parts: Sequence[SplitName], name: SplitName) -> list[ItemT]:
    """The entries whose part is the split `name`, in their order."""
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
    """The split of each example: every part named in `parts` gets one example in `one_in`, training keeps the rest.

    The draw is always the same, and stratified: every part gets its share of every label, and at least one; a label
    too rare to be in every part stays in training. With `groups` every group stays whole, shares are as near as whole
    groups allow, and every label is trained on. `what` names the data in the InputError that is raised where there are
    too few examples.
    """
    splits = _by_label(labels, parts, one_in) if groups is None else _by_group(labels, groups, parts, one_in)
    if len(set(splits)) <= len(parts):
        unit = "examples of one class" if groups is None else "groups that share their classes with others"
        raise InputError(too_few_message(name, parts, unit))
    return splits


def too_few_message(what: str, parts: Sequence[SplitName], unit: str) -> str:
    """How many of the `unit` are needed to hold out those parts."""
    return (
        f"{what}: too few examples to hold out {' and '.join(parts)}; "
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
    """The rows of each split, in order: as `hold_out` draws them where there are neither labels nor groups.

    Uses a few bytes per example. At most `most` rows are drawn for each part; with `alone`, only rows marked True
    (pairs that occur once) may be drawn.
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
                f"{name}, of which {len(drawn):,} occur once: too few to hold out {' and '.join(parts)}, which are to "
                "share none with train; give duplicates=drop, or splits of your own"
            )
    stays, rows = np.ones(count, np.bool_), dict[SplitName, NDArray[np.int32]]()
    for k, part in enumerate(parts):
        rows[part] = np.sort(drawn[k * size : (k + 1) * size])
        stays[rows[part]] = False
    return {"train": np.flatnonzero(stays).astype(np.int32), **rows}


def _by_label(labels: Sequence[str], parts: Sequence[SplitName], one_in: int) -> list[SplitName]:
    members: defaultdict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        members[label].append(index)
    # NumPy promises the stream of RandomState for all versions to come, which it does not for newer generators.
    random = np.random.RandomState(0)
    splits: list[SplitName] = ["train"] * len(labels)
    rare = sum(len(own) <= len(parts) for own in members.values())
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
    staying = set[str]()
    while True:  # a draw that holds out all of a label is drawn again, with one of the label's groups in training
        splits = _draw_groups(labels, groups, staying, parts, one_in)
        lost = set(labels) - set(select_part(labels, splits, "train"))
        if not lost:
            return splits
        last = {label: group for label, group in zip(labels, groups, strict=True) if label in lost}
        staying |= set(last.values())


def _draw_groups(
    labels: Sequence[str], groups: Sequence[str], staying: set[str], parts: Sequence[SplitName], one_in: int
) -> list[SplitName]:
    splits: list[SplitName] = ["train"] * len(labels)
    free = [index for index, group in enumerate(groups) if group not in staying]
    own, among = [labels[index] for index in free], [groups[index] for index in free]
    folds = min(one_in, len(set(among)), max(Counter(own).values(), default=0))
    if folds <= len(parts):
        return splits
    from sklearn.model_selection import StratifiedGroupKFold  # 20 MB that nobody needs whose data have no groups

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of labels rarer than folds
        draw = StratifiedGroupKFold(folds, shuffle=True, random_state=0)
        # It deals the largest groups out first, so that some of its folds may be far larger than others.
        aim = len(labels) / one_in
        drawn = sorted((held for _, held in draw.split(own, own, among)), key=lambda held: abs(len(held) - aim))
        for part, held in zip(parts, drawn, strict=False):
            for index in held:
                splits[free[index]] = part
    return splits


def rotate_folds(
    name: str,
    folds: Sequence[int],
    test: int | None,
    *,
    groups: Sequence[str] | None = None,
    unit: str = "group",
    labels: Sequence[str] | None = None,
) -> list[SplitName]:
    """The split of each example: the fold `test` (None: the first) is tested on, the next validates, the others train.

    Raises InputError where there is no such fold, or there are fewer than three, or one of the `groups` is in two
    folds (it calls them by the word `unit`), or one of the `labels` in none that trains.
    """
    if groups is not None:
        check_no_leak(f"{name}: {unit}", groups, [f"fold {fold}" for fold in folds])
    names = sorted(set(folds))
    test = check_choice("fold", names[0] if test is None else test, names)
    if len(names) < len(SPLITS):
        raise InputError(f"{name} has {len(names)} folds: train, val and test take at least three")
    val = names[(names.index(test) + 1) % len(names)]
    splits: dict[int, SplitName] = {test: "test", val: "val"}
    parts: list[SplitName] = [splits.get(fold, "train") for fold in folds]
    if labels is not None:
        check_trained_labels(f"{name}, fold {test}", labels, parts)
    return parts


def count_copies(contents: Sequence[str], parts: Sequence[SplitName]) -> int:
    """How many examples of val and test are in train too, where equal hashes say that their contents are equal."""
    trained = set(select_part(contents, parts, "train")) - {UNREADABLE_MARK}
    return sum(part != "train" and own in trained for own, part in zip(contents, parts, strict=True))


def check_no_leak(name: str, groups: Sequence[str], parts: Sequence[str]) -> None:
    """Raise InputError, naming the group, where one is in two parts: a test would flatter who was trained on it."""
    seen: dict[str, str] = {}
    for group, part in zip(groups, parts, strict=True):
        if seen.setdefault(group, part) != part:
            raise InputError(f"{name} {group!r} is in {seen[group]} and in {part}: it may be in one only")


def check_trained_labels(name: str, labels: Sequence[str], parts: Sequence[SplitName]) -> None:
    """Raise InputError, naming them, where val or test have labels that no training example has."""
    trained = set(select_part(labels, parts, "train"))
    lacking = sorted(set(labels) - trained)
    if trained and lacking:
        more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
        raise InputError(f"{name}: nothing in train is of {', '.join(lacking[:5])}{more}, which val or test have")
