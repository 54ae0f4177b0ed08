"""Splits: whole, disjoint, stratified, the same every time, and no group on two sides."""

import random
from collections import Counter

import pytest

from unifier.data.source import SPLITS, UNREADABLE_MARK, SplitName
from unifier.data.splits import check_no_leak, count_copies, hold_out, hold_out_rows, rotate_folds, select_part
from unifier_tokenizers import InputError

LABELS = [label for label, count in (("rare", 1), ("few", 5), ("some", 37), ("many", 200)) for _ in range(count)]


def test_held_out_parts_hold_their_share_of_every_label() -> None:
    splits = hold_out("these", LABELS, ("val", "test"))
    for label, count in Counter(LABELS).items():
        parts = Counter(split for split, own in zip(splits, LABELS, strict=True) if own == label)
        if count == 1:
            assert parts == {"train": 1}
        else:
            assert parts["val"] == parts["test"]
            assert max(1, count // 10) <= parts["val"] <= count // 10 + 1


def test_every_example_is_in_one_split() -> None:
    splits = hold_out("these", LABELS, ("val", "test"))
    indices = [index for part in SPLITS for index in select_part(range(len(LABELS)), splits, part)]
    assert sorted(indices) == list(range(len(LABELS)))


def test_the_draw_is_fixed_and_leaves_the_global_generator_alone() -> None:
    random.seed(1)
    before = random.getstate()
    first = hold_out("these", LABELS, ("val",))
    random.seed(2)
    assert hold_out("these", LABELS, ("val",)) == first
    random.seed(1)
    assert random.getstate() == before


def test_groups_stay_whole() -> None:
    labels = [f"label {i % 3}" for i in range(300)]
    groups = [f"group {i // 7}" for i in range(300)]
    splits = hold_out("these", labels, ("val", "test"), groups=groups)
    assert set(splits) == set(SPLITS)
    check_no_leak("group", groups, splits)
    sizes = Counter(splits)
    assert abs(sizes["val"] - sizes["test"]) <= 2 * 7
    for part in SPLITS:
        assert set(select_part(labels, splits, part)) == set(labels)


def test_large_groups_are_left_to_train_on() -> None:
    sizes = [60, 40] + [5] * 20
    groups = [f"group {k}" for k, size in enumerate(sizes) for _ in range(size)]
    labels = ["ab"[k % 2] for k, size in enumerate(sizes) for _ in range(size)]
    found = Counter(hold_out("these", labels, ("val", "test"), groups=groups))
    assert found["train"] >= 160
    assert min(found["val"], found["test"]) >= 10


@pytest.mark.parametrize("groups", [3, 4, 12])
def test_few_groups_still_make_three_splits(groups: int) -> None:
    names = [f"group {i % groups}" for i in range(60)]
    splits = hold_out("these", ["a", "b"] * 30, ("val", "test"), groups=names)
    assert set(splits) == set(SPLITS)


@pytest.mark.parametrize("seed", range(5))
def test_every_label_is_trained_on_and_groups_stay_whole(seed: int) -> None:
    draw = random.Random(seed)
    groups = [f"group {draw.randrange(20)}" for _ in range(200)]
    labels = ["of one group" if group == "group 7" else draw.choice("ab") for group in groups]
    for label in ("once", "also once", "once more"):
        labels[draw.randrange(200)] = label
    splits = hold_out("these", labels, ("val", "test"), groups=groups)
    check_no_leak("group", groups, splits)
    assert set(splits) == set(SPLITS)
    assert set(select_part(labels, splits, "train")) == set(labels)


def test_a_class_whose_two_groups_were_drawn_keeps_one_in_training() -> None:
    groups = [f"group {k}" for k in range(8) for _ in range(3)]
    drawn = hold_out("these", ["a"] * 24, ("val", "test"), groups=groups, one_in=4)
    held = sorted({group for group, part in zip(groups, drawn, strict=True) if part != "train"})
    labels = ["rare" if group in held[:1] + held[-1:] else "a" for group in groups]
    splits = hold_out("these", labels, ("val", "test"), groups=groups, one_in=4)
    assert set(splits) == set(SPLITS)
    assert "rare" in select_part(labels, splits, "train")


def test_classes_of_one_group_each_leave_none_to_hold_out() -> None:
    with pytest.raises(InputError, match="at least 3 groups that share their classes with others are needed"):
        hold_out("my sounds", ["a", "a", "b", "b", "c", "c"], ("val", "test"), groups=list("xxyyzz"))


@pytest.mark.parametrize(("labels", "groups"), [([], None), (["a", "b", "c"], None), (["a"] * 9, ["x", "y", "x"] * 3)])
def test_too_few_to_hold_out(labels: list[str], groups: list[str] | None) -> None:
    with pytest.raises(InputError, match="my sounds: too few examples to hold out val and test"):
        hold_out("my sounds", labels, ("val", "test"), groups=groups)


def test_each_fold_is_tested_on_once_and_the_next_validates() -> None:
    folds = [1, 2, 3, 5, 1, 2, 3, 5]
    tested = [select_part(folds, rotate_folds("these", folds, fold), "test") for fold in (1, 2, 3, 5)]
    assert sorted(index for test in tested for index in test) == sorted(folds)
    assert set(select_part(folds, rotate_folds("these", folds, 5), "val")) == {1}
    assert set(select_part(folds, rotate_folds("these", folds, 2), "train")) == {1, 5}
    assert rotate_folds("these", folds, None) == rotate_folds("these", folds, 1)


def test_folds_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"no fold 4: choose one of 0, 1, 2$"):
        rotate_folds("these", [0, 1, 2], 4)
    with pytest.raises(InputError, match="at least three"):
        rotate_folds("these", [0, 1], 0)


def test_folds_that_cut_a_group_are_refused_whichever_is_tested_on() -> None:
    groups = ["Abba", "Bach", "Abba", "Cage", "Bach"]
    for test in (None, 0, 1, 2):
        with pytest.raises(InputError, match=r"these: artist 'Bach' is in fold 1 and in fold 2"):
            rotate_folds("these", [0, 1, 0, 2, 2], test, groups=groups, unit="artist")
        assert rotate_folds("these", [0, 1, 0, 2, 1], test, groups=groups) == rotate_folds(
            "these", [0, 1, 0, 2, 1], test
        )


def test_a_leak_names_the_group_and_both_parts() -> None:
    with pytest.raises(InputError, match=r"artist 'Bach' is in fold 0 and in fold 3"):
        check_no_leak("artist", ["Bach", "Abba", "Bach"], ["fold 0", "fold 0", "fold 3"])


def test_no_such_split() -> None:
    with pytest.raises(InputError, match="no split 'dev': choose one of train, val, test"):
        select_part([1], ["train"], "dev")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("count", [3, 10, 57, 1000])
@pytest.mark.parametrize("parts", [["val", "test"], ["test"]])
def test_rows_are_held_out_as_examples_of_one_label_are(count: int, parts: list[SplitName]) -> None:
    splits = hold_out("these", [""] * count, parts)
    rows = hold_out_rows("these", count, parts)
    assert {part: held.tolist() for part, held in rows.items()} == {
        part: select_part(range(count), splits, part) for part in ("train", *parts)
    }
    with pytest.raises(InputError, match="these: too few examples to hold out"):
        hold_out_rows("these", len(parts), parts)


def test_it_is_said_where_most_classes_are_too_small_to_be_tested() -> None:
    labels = ["large"] * 20 + [f"small {k}" for k in range(5) for _ in range(2)]
    with pytest.warns(UserWarning, match="5 of 6 classes are too small to be in val and test"):
        assert {labels[i] for i, part in enumerate(hold_out("it", labels, ("val", "test"))) if part != "train"} == {
            "large"
        }


def test_what_is_held_out_and_trained_on_too_is_counted() -> None:
    contents = ["a", "b", UNREADABLE_MARK, "a", "a", "c", UNREADABLE_MARK]
    parts: list[SplitName] = ["train", "train", "train", "val", "test", "test", "test"]
    assert count_copies(contents, parts) == 2
