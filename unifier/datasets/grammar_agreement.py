"""Agreement of French words in gender and number, in translations of the generated grammar."""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

from unifier.datasets.grammar import ADJECTIVES, BEFORE_VOWEL, DETERMINERS, NOUNS
from unifier_tokenizers.text import WORD_START

Category = Literal["gender", "number"]

FORMS = (("m", "singular"), ("f", "singular"), ("m", "plural"), ("f", "plural"))
"""The gender and the number of each form of a French adjective, in the order of `Adjective.french`."""


class WordForm(NamedTuple):
    """One reading of a French word: its dictionary entry, and the genders and numbers that the word can have."""

    entry: str
    gender: frozenset[str]
    number: frozenset[str]


def agreement(translation: str, reference: str) -> Iterator[tuple[int, Category, bool]]:
    """Yield the index of each inflected word of a French translation, with a category and its correctness.

    Words are compared by their place in the sentence. A word is judged if the reference has a form of the same
    dictionary entry at this place. The form of the reference must have only one gender or only one number. The gender
    of a noun is not judged, because the noun determines the gender.

    Args:
        translation: The translation.
        reference: The correct translation.
    """
    pairs = zip(WORD_START.findall(translation), WORD_START.findall(reference), strict=False)
    for index, (word, correct) in enumerate(pairs):
        for form, right in _same_entry(word.lower(), correct.lower()):
            if len(right.gender) == 1:
                yield index, "gender", bool(form.gender & right.gender)
            if len(right.number) == 1:
                yield index, "number", bool(form.number & right.number)


def _same_entry(word: str, correct: str) -> Iterator[tuple[WordForm, WordForm]]:
    """Yield the readings of two words that belong to the same dictionary entry."""
    forms = {form.entry: form for form in _lexicon().get(word, ())}
    for right in _lexicon().get(correct, ()):
        if form := forms.get(right.entry):
            yield form, right


@cache
def _lexicon() -> dict[str, list[WordForm]]:
    """Return a mapping from each inflected French word to its readings."""
    readings = defaultdict[tuple[str, str], set[int]](set)
    for adjective in ADJECTIVES:
        for form, word in enumerate(adjective.french):
            readings[word, adjective.french[0]].add(form)
    for determiner in DETERMINERS:
        for form, word in enumerate((*determiner.french, determiner.french[-1])):
            readings[word, determiner.french[0]].add(form)
    for noun in NOUNS:
        for plural, word in enumerate(noun.french):
            readings[word, noun.french[0]] |= {2 * plural, 2 * plural + 1}  # A noun does not change with the gender.
    for (word, entry), forms in list(readings.items()):
        if shortened := BEFORE_VOWEL["fr"].get(word):
            readings[shortened, entry] |= forms
    lexicon = defaultdict[str, list[WordForm]](list)
    for (word, entry), forms in readings.items():
        gender, number = (frozenset(FORMS[form][part] for form in forms) for part in (0, 1))
        lexicon[word].append(WordForm(entry, gender, number))
    return lexicon
