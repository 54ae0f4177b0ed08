"""Agreement of French words: changed forms are found, and words without a known form are not judged."""

import pytest

from unifier.datasets import GrammarPairs
from unifier.datasets.grammar_agreement import agreement


def wrong(translation: str, reference: str) -> list[tuple[int, str]]:
    """Return the wrong words of a translation with their category."""
    return [(word, category) for word, category, right in agreement(translation, reference) if not right]


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("La petite fille mange une pomme noire.", []),
        ("La petit fille mange une pomme noire.", [(1, "gender")]),
        ("Les petite fille mange un pomme noires.", [(0, "number"), (4, "gender"), (6, "number")]),
        ("La petite filles mange une pomme noire.", [(2, "number")]),
        ("Cette petite poire mange une pomme noire.", []),
    ],
)
def test_agreement_finds_wrong_forms(translation: str, expected: list[tuple[int, str]]) -> None:
    assert wrong(translation, "La petite fille mange une pomme noire.") == expected


def test_agreement_before_a_vowel_judges_only_the_number() -> None:
    judged = {(word, category) for word, category, _ in agreement("Mon amie.", "Mon amie.")}
    assert judged == {(0, "number")}


def test_every_reference_agrees_with_itself() -> None:
    examples = list(GrammarPairs(train=300, val=20, test=20).split("train"))
    judged = [right for each in examples for _, _, right in agreement(each.target, each.target)]
    assert all(judged)
    assert len(judged) > 2 * len(examples)
