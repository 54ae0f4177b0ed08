"""A share of a training split, within every larger share."""

import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, final

import pytest

from unifier.data.dataset import Examples, Subset
from unifier.data.prepare import sha256_of
from unifier.data.source import Example, ScoreRange, SplitName, describe_example
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier_tokenizers import InputError

SHARES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)


@final
class Songs:
    """Examples that know their places."""

    name = "songs"
    labels = ("even", "odd")
    score_range = ScoreRange("accuracy", 50.0, None, "two classes of one size")
    dropped: ClassVar = {"duplicates": 2}

    def split(self, name: SplitName) -> Examples[int]:
        count = 40 if name == "train" else 5
        return Examples(range(count), self.read, "line {}".format)

    def read(self, number: int) -> Example:
        return Example(number, self.labels[number % 2])


def numbers(examples: Sequence[Example]) -> list[int]:
    return [example.input for example in examples]


@pytest.mark.parametrize("seed", [0, 7])
def test_a_share_lies_within_every_larger_one(seed: int) -> None:
    kept = [numbers(Subset(Songs(), share, seed).split("train")) for share in SHARES]
    assert [len(one) for one in kept] == [1, 1, 1, 4, 12, 40]
    for smaller, larger in pairwise(kept):
        assert set(smaller) <= set(larger)
    assert kept[-1] == numbers(Songs().split("train"))


def test_what_is_kept_is_the_seed_s_and_spread_over_the_whole() -> None:
    pairs = GrammarPairs(train=200, val=10, test=10)
    first, again, other = (list(Subset(pairs, 0.2, seed).split("train")) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    places = [list(pairs.split("train")).index(example) for example in first]
    assert places == sorted(places)
    assert max(places) > 150


def test_held_out_splits_and_what_is_said_of_them_are_the_whole_s() -> None:
    subset = Subset(Songs(), 0.1)
    for name in ("val", "test"):
        assert list(subset.split(name)) == list(Songs().split(name))
    assert (subset.name, subset.labels, subset.score_range) == (Songs.name, Songs.labels, Songs.score_range)
    assert (subset.dropped, Subset(GrammarPairs(train=30, val=3, test=3), 0.5).dropped) == ({"duplicates": 2}, None)
    pairs = GrammarPairs(train=30, val=3, test=3)
    test: Any = Subset(pairs, 0.5).split("test")
    assert test.alignment(0) == pairs.split("test").alignment(0)


def test_examples_keep_their_place() -> None:
    train = Subset(Songs(), 0.3).split("train")
    assert isinstance(train, Examples)
    for index, (number, _) in enumerate(train):
        assert describe_example(train, index) == f"line {number}"
    traveled = pickle.loads(pickle.dumps(train))  # into a data worker
    assert list(traveled) == list(train)
    plain = Subset(Digits(), 0.01).split("train")
    assert describe_example(plain, 0).startswith("example ")


def test_each_share_has_a_hash_of_its_own() -> None:
    digits = Digits()
    hashes = {sha256_of(Subset(digits, share, seed)) for share in (0.1, 0.2) for seed in (0, 1)}
    assert len(hashes | {digits.sha256}) == 5
    assert Subset(Songs(), 0.5).sha256 is None
    assert len({sha256_of(source) for source in (Songs(), Subset(Songs(), 0.5), Subset(Songs(), 0.5, 1))}) == 3


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=r"share=.*above 0 and at most 1"):
        Subset(Digits(), share)
