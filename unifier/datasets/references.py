"""English sentences whose last word is a pronoun, with the French pronoun that depends on a noun n words back.

The sentences have the words of `unifier.datasets.grammar`. The noun is a thing, a food or a place. All other nouns and
pronouns are persons, to which "it" cannot refer.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import NamedTuple, final, overload

from unifier.data.source import SPLITS, Example, SplitName, accuracy_range
from unifier.datasets.grammar import ADJECTIVES, ADVERBS, MAX_REDRAWS, NOUNS, VERBS
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

DISTANCES = (2, 3, 5, 8, 12, 20, 30, 50, 70, 100)
"""The default distances from the noun to the pronoun, in words."""

THINGS = [noun for noun in NOUNS if noun.kind in ("food", "thing", "place")]
PERSONS = [noun.english[0] for noun in NOUNS if noun.kind == "person"]
QUALITIES = [adjective.english for adjective in ADJECTIVES if "person" in adjective.kinds]
ACTIONS = [verb.english[1] for verb in VERBS if not verb.objects]

SHORT_FILLERS = {0: "", 1: "now", 2: "over there"}
"""The words between the noun and "and it" that are too few for a clause, for each number of words."""

MIN_CLAUSE, MAX_CLAUSE = 3, 6
"""The smallest and the largest number of words of a clause that begins with "and"."""

MAX_CLAUSES_BEFORE = 3
"""Maximum number of clauses before the clause with the noun."""


class Reference(NamedTuple):
    """A sentence with the place of its noun."""

    words: list[str]
    noun: int
    """The index of the noun in `words`."""
    feminine: bool


@final
class ReferenceSentences(Sequence[Example]):
    """The sentences of one split. The split also knows the distance and the noun of each sentence."""

    def __init__(self, references: Sequence[Reference]) -> None:
        self._references = references
        self._examples = [Example(" ".join(each.words), ("il", "elle")[each.feminine]) for each in references]

    def __len__(self) -> int:
        return len(self._examples)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        return self._examples[index]

    def distance(self, index: int) -> int:
        """Return the number of words from the noun to the pronoun of a sentence."""
        return len(self._references[index].words) - 1 - self._references[index].noun

    def referent(self, index: int) -> int:
        """Return the index of the word to which the pronoun of a sentence refers."""
        return self._references[index].noun


@final
class DistantReferences:
    """Generated sentences that end with "it". The target is the French pronoun, il or elle.

    The pronoun refers to the only noun that is no person, a given number of words before the pronoun. In each split,
    every distance and both pronouns are equally frequent. No sentence occurs twice in the three splits.
    """

    name = "distant_references"
    labels = ("elle", "il")
    score_range = accuracy_range(labels, 100.0, "the grammar itself, in which each noun has one gender")

    def __init__(
        self,
        *,
        distances: Sequence[int] = DISTANCES,
        train: int = 10_000,
        val: int = 400,
        test: int = 2000,
        seed: int = 0,
    ) -> None:
        """Choose the distances and the sizes of the splits.

        Args:
            distances: The distances from the noun to the pronoun, in words.
            train: Number of sentences in train.
            val: Number of sentences in val.
            test: Number of sentences in test.
            seed: Seed of the random sentences.
        """
        if not distances or min(distances) < 2 or len(set(distances)) < len(distances):
            given = ",".join(map(str, distances))
            raise InputError(f"distances={given}: give different numbers of words, each at least 2")
        self._sizes: dict[SplitName, int] = {"train": train, "val": val, "test": test}
        if min(self._sizes.values()) < 2 * len(distances):
            raise InputError(
                f"train={train}, val={val}, test={test}: give each split at least {2 * len(distances)} sentences, "
                "which is one for each distance and pronoun"
            )
        self.distances, self._seed = tuple(distances), seed

    def split(self, name: SplitName) -> ReferenceSentences:
        """Return the sentences of one split."""
        return self._splits[check_choice("split", name, SPLITS)]

    @property
    def max_words(self) -> int:
        """The number of words of the longest possible sentence."""
        first_clause = max(len(verb.english[1].split()) for verb in VERBS) + 4
        return MAX_CLAUSES_BEFORE * MAX_CLAUSE + first_clause + max(self.distances)

    @property
    def sha256(self) -> str:
        """The hash of all sentences in the order of the splits."""
        content = [(name, *example) for name, examples in self._splits.items() for example in examples]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    @cached_property
    def _splits(self) -> dict[SplitName, ReferenceSentences]:
        seen = set[str]()
        splits: dict[SplitName, ReferenceSentences] = {}
        for name, size in self._sizes.items():
            rng = Random(f"{self._seed} {name}")
            kinds = [(self.distances[k // 2 % len(self.distances)], bool(k % 2)) for k in range(size)]
            splits[name] = ReferenceSentences([_draw_unseen(rng, *kind, seen) for kind in kinds])
        return splits


def _draw_unseen(rng: Random, distance: int, feminine: bool, seen: set[str]) -> Reference:
    for _ in range(MAX_REDRAWS):
        reference = draw_sentence(rng, distance, feminine=feminine)
        text = " ".join(reference.words)
        if text not in seen:
            seen.add(text)
            return reference
    raise InputError(f"distances={distance}: the grammar has too few sentences; give smaller splits")


def draw_sentence(rng: Random, distance: int, *, feminine: bool) -> Reference:
    """Draw a sentence.

    Args:
        rng: Source of the random numbers.
        distance: The number of words from the noun to the pronoun, at least 2.
        feminine: The gender of the noun in French.
    """
    noun = rng.choice([noun for noun in THINGS if noun.feminine == feminine])
    verb = rng.choice([verb for verb in VERBS if noun.kind in verb.objects and "person" in verb.subjects])
    before = [word for _ in range(rng.randint(0, MAX_CLAUSES_BEFORE)) for word in _draw_clause(rng, rng.randint(3, 6))]
    # The clauses begin with "and", which the first word of the sentence must not be.
    words = [*before[1:], *(["and"] if before else []), "the", rng.choice(PERSONS), *verb.english[1].split(), "the"]
    after = _draw_filler(rng, distance - 2)
    return Reference([*words, noun.english[0], *after, "and", "it"], len(words), feminine)


def _draw_filler(rng: Random, num_words: int) -> list[str]:
    """Draw clauses with `num_words` words in total."""
    words: list[str] = []
    while (rest := num_words - len(words)) >= MIN_CLAUSE:
        sizes = range(MIN_CLAUSE, MAX_CLAUSE + 1)
        words += _draw_clause(rng, rng.choice([k for k in sizes if rest == k or rest >= k + MIN_CLAUSE]))
    return words or SHORT_FILLERS[num_words].split()


def _draw_clause(rng: Random, num_words: int) -> list[str]:
    """Draw "and" and a clause on a person, with 3 to 6 words in total."""
    action = rng.choice(ACTIONS)
    if num_words == MIN_CLAUSE:
        return ["and", rng.choice(("he", "she")), action]
    quality = [rng.choice(QUALITIES)] if num_words > MIN_CLAUSE + 1 else []
    adverb = [rng.choice([*ADVERBS])] if num_words == MAX_CLAUSE else []
    return ["and", "the", *quality, rng.choice(PERSONS), *adverb, action]
