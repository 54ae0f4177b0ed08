"""Splits are complete, disjoint, stratified and reproducible, and keep groups together."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from unifier.data.source import SPLITS, UNREADABLE_MARK, SplitName
from unifier.data.splits import check_no_leak, count_copies, hold_out, hold_out_rows, rotate_folds, select_part
from unifier_tokenizers import InputError

LABELS = [label for label, count in (("rare", 1), ("few", 5), ("some", 37), ("many", 200)) for _ in range(count)]


def test_hold_out_gives_each_part_its_share() -> None:
    splits = hold_out("these", LABELS, ("val", "test"))
    for label, count in Counter(LABELS).items():
        parts = Counter(split for split, other in zip(splits, LABELS, strict=True) if other == label)
        if count == 1:
            assert parts == {"train": 1}
        else:
            assert parts["val"] == parts["test"]
            assert max(1, count // 10) <= parts["val"] <= count // 10 + 1
    indices = [index for part in SPLITS for index in select_part(range(len(LABELS)), splits, part)]
    assert sorted(indices) == list(range(len(LABELS)))


def test_hold_out_ignores_the_global_generator() -> None:
    random.seed(1)
    before = random.getstate()
    first = hold_out("these", LABELS, ("val",))
    random.seed(2)
    assert hold_out("these", LABELS, ("val",)) == first
    random.seed(1)
    assert random.getstate() == before


def test_hold_out_keeps_groups_together() -> None:
    labels = [f"label {i % 3}" for i in range(300)]
    groups = [f"group {i // 7}" for i in range(300)]
    splits = hold_out("these", labels, ("val", "test"), groups=groups)
    check_no_leak("group", groups, splits)
    sizes = Counter(splits)
    assert abs(sizes["val"] - sizes["test"]) <= 2 * 7
    for part in SPLITS:
        assert set(select_part(labels, splits, part)) == set(labels)
    for count in (3, 4, 12):
        groups = [f"group {i % count}" for i in range(60)]
        assert set(hold_out("these", ["a", "b"] * 30, ("val", "test"), groups=groups)) == set(SPLITS)


def test_hold_out_leaves_large_groups_in_train() -> None:
    sizes = [60, 40] + [5] * 20
    groups = [f"group {k}" for k, size in enumerate(sizes) for _ in range(size)]
    labels = ["ab"[k % 2] for k, size in enumerate(sizes) for _ in range(size)]
    counts = Counter(hold_out("these", labels, ("val", "test"), groups=groups))
    assert counts["train"] >= 160
    assert min(counts["val"], counts["test"]) >= 10


@pytest.mark.parametrize("seed", range(5))
def test_hold_out_of_groups_trains_every_label(seed: int) -> None:
    draw = random.Random(seed)
    groups = [f"group {draw.randrange(20)}" for _ in range(200)]
    labels = ["of one group" if group == "group 7" else draw.choice("ab") for group in groups]
    for label in ("once", "also once", "once more"):
        labels[draw.randrange(200)] = label
    splits = hold_out("these", labels, ("val", "test"), groups=groups)
    check_no_leak("group", groups, splits)
    assert (set(splits), set(select_part(labels, splits, "train"))) == (set(SPLITS), set(labels))


def test_hold_out_redraws_for_a_missing_label() -> None:
    groups = [f"group {k}" for k in range(8) for _ in range(3)]
    first_draw = hold_out("these", ["a"] * 24, ("val", "test"), groups=groups, one_in=4)
    held_out = sorted({group for group, part in zip(groups, first_draw, strict=True) if part != "train"})
    labels = ["rare" if group in held_out[:1] + held_out[-1:] else "a" for group in groups]
    splits = hold_out("these", labels, ("val", "test"), groups=groups, one_in=4)
    assert set(splits) == set(SPLITS)
    assert "rare" in select_part(labels, splits, "train")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: hold_out("mine", [], ("val", "test")), "mine: .*val and test.* 3 examples"),
        (lambda: hold_out("mine", list("abc"), ("val", "test")), "mine: .*val and test.* 3 examples"),
        (lambda: hold_out("mine", ["a"] * 9, ("val", "test"), groups=["x", "y", "x"] * 3), "val and test.* 3 groups"),
        (lambda: hold_out("mine", [*"aabbcc"], ("val", "test"), groups=[*"xxyyzz"]), "mine: .*val and test.* 3 groups"),
        (lambda: rotate_folds("these", [0, 1, 2], 4), "no fold 4.*0, 1, 2$"),
        (lambda: rotate_folds("these", [0, 1], 0), "2 folds"),
        (lambda: rotate_folds("these", [0, 1, 2, 0], 1, labels=["a", "rare", "a", "a"]), "these, fold 1: .*rare"),
        (lambda: check_no_leak("artist", ["B", "A", "B"], ["one", "one", "two"]), "artist 'B' is in one and in two"),
        (lambda: select_part([1], ["train"], "dev"), "no split 'dev'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_impossible_splits_are_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make()


def test_hold_out_warns_if_most_classes_are_small() -> None:
    labels = ["large"] * 20 + [f"small {k}" for k in range(5) for _ in range(2)]
    with pytest.warns(UserWarning, match="5 of 6 classes"):
        splits = hold_out("it", labels, ("val", "test"))
    assert {labels[i] for i, part in enumerate(splits) if part != "train"} == {"large"}


@pytest.mark.parametrize("count", [3, 10, 57, 1000])
@pytest.mark.parametrize("parts", [["val", "test"], ["test"]])
def test_hold_out_rows_equals_hold_out(count: int, parts: list[SplitName]) -> None:
    splits = hold_out("these", [""] * count, parts)
    rows = hold_out_rows("these", count, parts)
    assert {part: held_out.tolist() for part, held_out in rows.items()} == {
        part: select_part(range(count), splits, part) for part in ("train", *parts)
    }
    with pytest.raises(InputError, match="these: "):
        hold_out_rows("these", len(parts), parts)


def test_rotate_folds_tests_each_fold_once() -> None:
    folds = [1, 2, 3, 5, 1, 2, 3, 5]
    tested = [select_part(folds, rotate_folds("these", folds, fold), "test") for fold in (1, 2, 3, 5)]
    assert sorted(index for test in tested for index in test) == sorted(folds)
    assert set(select_part(folds, rotate_folds("these", folds, 5), "val")) == {1}
    assert set(select_part(folds, rotate_folds("these", folds, 2), "train")) == {1, 5}
    assert rotate_folds("these", folds, None) == rotate_folds("these", folds, 1)


@pytest.mark.parametrize("test", [None, 0, 1, 2])
def test_rotate_folds_refuses_a_split_group(test: int | None) -> None:
    groups = ["Abba", "Bach", "Abba", "Cage", "Bach"]
    with pytest.raises(InputError, match="these: artist 'Bach' is in fold 1 and in fold 2"):
        rotate_folds("these", [0, 1, 0, 2, 2], test, groups=groups, unit="artist")
    folds = [0, 1, 0, 2, 1]
    assert rotate_folds("these", folds, test, groups=groups, unit="artist") == rotate_folds("these", folds, test)


def test_copies_of_train_are_counted() -> None:
    contents = ["a", "b", UNREADABLE_MARK, "a", "a", "c", UNREADABLE_MARK]
    parts: list[SplitName] = ["train", "train", "train", "val", "test", "test", "test"]
    assert count_copies(contents, parts) == 2
