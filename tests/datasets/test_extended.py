"""Further examples to train on, behind those of a set."""

import pickle
from pathlib import Path

import pytest

from unifier.data.prepare import describe_data, sha256_of
from unifier.data.source import describe_example
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.parallel_text import ParallelText, WithExtraPairs
from unifier_tokenizers import InputError

OWN = GrammarPairs(train=30, val=3, test=3)


def more(path: Path, count: int = 20) -> ParallelText:
    path.write_text("".join(f"line {k}\tligne {k}\n" for k in range(count)))
    return ParallelText(path)


def test_extra_examples_are_trained_on_and_nothing_else(tmp_path: Path) -> None:
    extra = more(tmp_path / "more.tsv")
    both = WithExtraPairs(OWN, extra)
    assert list(both.split("train")) == [*OWN.split("train"), *extra.whole]
    for name in ("val", "test"):
        assert list(both.split(name)) == list(OWN.split(name))
    assert (both.name, both.score_range) == (OWN.name, OWN.score_range)


def test_examples_keep_their_places_on_the_way_to_a_worker(tmp_path: Path) -> None:
    train = WithExtraPairs(OWN, more(tmp_path / "more.tsv")).split("train")
    traveled = pickle.loads(pickle.dumps(train))
    assert list(traveled) == list(train)
    assert describe_example(traveled, 29) == describe_example(OWN.split("train"), 29)
    assert describe_example(traveled, 30) == f"{tmp_path / 'more.tsv'}, line 1"
    with pytest.raises(IndexError):
        train[50]


def test_its_hash_is_of_both(tmp_path: Path) -> None:
    few, many = (more(tmp_path / f"{count}.tsv", count) for count in (4, 5))
    assert len({sha256_of(source) for source in (OWN, WithExtraPairs(OWN, few), WithExtraPairs(OWN, many))}) == 3


def test_all_pairs_of_a_file_are_those_of_its_splits_that_cleaning_leaves(tmp_path: Path) -> None:
    file = more(tmp_path / "more.tsv")
    assert sorted(file.whole) == sorted(pair for name in ("train", "val", "test") for pair in file.split(name))
    with (tmp_path / "more.tsv").open("a") as table:
        table.write("line 1\tligne 1\n")
    assert len(ParallelText(tmp_path / "more.tsv").whole) == 21
    assert len(ParallelText(tmp_path / "more.tsv", duplicates="drop").whole) == 20


def test_what_is_dropped_of_either_is_counted(tmp_path: Path) -> None:
    for name, times in (("own", 3), ("more", 5)):
        lines = [*(f"{k}\t{k}\n" for k in range(30)), *["again\tencore\n"] * times]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    own, extra = (ParallelText(tmp_path / f"{name}.tsv", duplicates="drop") for name in ("own", "more"))
    assert describe_data(WithExtraPairs(own, extra), {})["dropped"] == {"duplicates": 6}
    assert describe_data(WithExtraPairs(OWN, extra), {})["dropped"] == {"duplicates": 4}


def test_files_are_read_when_they_are_trained_on_and_not_before(tmp_path: Path) -> None:
    both = WithExtraPairs(OWN, ParallelText(tmp_path / "gone.tsv"))
    assert list(both.split("val")) == list(OWN.split("val"))
    with pytest.raises(InputError, match=r"gone\.tsv"):
        both.split("train")
