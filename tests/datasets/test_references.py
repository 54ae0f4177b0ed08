"""Sentences with a distant noun: the distance, the gender of the pronoun, balance, and refusals."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from unifier.data.source import SPLITS
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.references import PERSONS, THINGS, DistantReferences
from unifier_tokenizers import InputError

small_references = partial(DistantReferences, distances=(2, 3, 4, 5, 30, 100), train=240, val=24, test=60)

GRAMMAR_SHA256 = "85abb8a8cc6767a6dba3dd1ddf81abd8249af730082990412b3e346e743d2c74"


@pytest.mark.slow
def test_references_keep_contract(check_generated: Callable[..., None]) -> None:
    check_generated(small_references)


def test_pronoun_depends_on_the_only_thing_at_its_distance() -> None:
    source, genders = small_references(), {noun.english[0]: noun.feminine for noun in THINGS}
    for name in SPLITS:
        split, kinds = source.split(name), Counter[tuple[int, str]]()
        for index, (text, target) in enumerate(split):
            words = text.split()
            assert words[-1] == "it"
            assert [k for k, word in enumerate(words) if word in genders] == [split.referent(index)]
            assert split.distance(index) == len(words) - 1 - split.referent(index)
            assert target == ("il", "elle")[genders[words[split.referent(index)]]]
            assert len(words) <= source.max_words
            kinds[split.distance(index), target] += 1
        assert set(kinds) == {(n, label) for n in source.distances for label in source.labels}
        assert len(set(kinds.values())) == 1
    assert not genders.keys() & set(PERSONS)


@pytest.mark.parametrize("distances", [(), (1, 2), (5, 5)])
def test_wrong_distances_are_refused(distances: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=f"distances={','.join(map(str, distances))}"):
        DistantReferences(distances=distances)


@pytest.mark.slow
def test_grammar_keeps_its_hash() -> None:
    assert GrammarPairs().sha256 == "85abb8a8cc6767a6dba3dd1ddf81abd8249af730082990412b3e346e743d2c74", (
        "all figures of the log were measured on these sentences"
    )
