"""Sentence pairs of a small English-French grammar, with their word alignment.

A derivation creates both sentences in parallel (syntax-directed transduction: Lewis & Stearns, 1968). Each word stores
the names of its links. A link connects an English word to the French word that translates it.

French words agree in gender and number. Most French adjectives follow the noun. A French negation has one word before
and one word after the verb. Some French words lose their last vowel before a vowel (elision). Translations are
therefore not word for word. Each sentence has exactly one translation in either direction.

No French word of the lexicon begins with an aspirated h. The first letter of a word therefore decides if the previous
word is elided.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from random import Random
from typing import Literal, NamedTuple, final, overload

from unifier.data.source import SPLITS, Example, ScoreRange, SplitName
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice


class Noun(NamedTuple):
    """A noun. `english` and `french` contain the singular and the plural."""

    english: list[str]
    french: list[str]
    feminine: bool
    kind: str


class Adjective(NamedTuple):
    """An adjective. `french` contains the masculine and feminine singular, then the masculine and feminine plural."""

    english: str
    french: list[str]
    place: str
    """The adjective's position in French: "before" or "after" the noun."""
    kinds: list[str]
    """The kinds of nouns that the adjective can describe."""


class Verb(NamedTuple):
    """A verb. `english`: base form and third person. `french`: forms for je, il, nous, vous, ils.

    For the verb "to be", `english` contains the forms for I, he, we, you, they.
    """

    english: list[str]
    french: list[str]
    subjects: list[str]
    objects: list[str]
    """The kinds of nouns that can be the verb's direct object. The list is empty if the verb has no object."""


class Determiner(NamedTuple):
    """A determiner. `english` contains the singular and plural. `french` contains the masculine, feminine and plural.

    A missing form is written as "-".
    """

    english: list[str]
    french: list[str]


class Pronoun(NamedTuple):
    """A subject pronoun. `person` is an index of `Verb.french`, and `form` is an index of `Adjective.french`."""

    english: str
    french: str
    person: int
    form: int


class Preposition(NamedTuple):
    """A preposition and the kinds of nouns that can follow it."""

    english: str
    french: str
    kinds: list[str]


def _parse_table(table: str) -> list[list[list[str]]]:
    """Split a table into rows, cells and words. Bars separate cells, and an underscore in a word becomes a space."""
    rows = (row.split("|") for row in table.strip().splitlines())
    return [[[word.replace("_", " ") for word in cell.split()] for cell in row] for row in rows]


_NOUNS = """
man men | homme hommes | m | person
woman women | femme femmes | f | person
boy boys | garçon garçons | m | person
girl girls | fille filles | f | person
king kings | roi rois | m | person
queen queens | reine reines | f | person
uncle uncles | oncle oncles | m | person
aunt aunts | tante tantes | f | person
cat cats | chat chats | m | animal
horse horses | cheval chevaux | m | animal
bird birds | oiseau oiseaux | m | animal
cow cows | vache vaches | f | animal
hen hens | poule poules | f | animal
apple apples | pomme pommes | f | food
pear pears | poire poires | f | food
cake cakes | gâteau gâteaux | m | food
egg eggs | œuf œufs | m | food
book books | livre livres | m | thing
hat hats | chapeau chapeaux | m | thing
tree trees | arbre arbres | m | thing
chair chairs | chaise chaises | f | thing
flower flowers | fleur fleurs | f | thing
garden gardens | jardin jardins | m | place
hotel hotels | hôtel hôtels | m | place
house houses | maison maisons | f | place
school schools | école écoles | f | place
street streets | rue rues | f | place
"""

_ADJECTIVES = """
small | petit petite petits petites | before | person animal food thing place
big | grand grande grands grandes | before | animal food thing place
beautiful | beau belle beaux belles | before | person animal thing place
new | nouveau nouvelle nouveaux nouvelles | before | thing place
young | jeune jeune jeunes jeunes | before | person animal
black | noir noire noirs noires | after | animal thing
white | blanc blanche blancs blanches | after | animal thing
red | rouge rouge rouges rouges | after | food thing
green | vert verte verts vertes | after | food thing
happy | heureux heureuse heureux heureuses | after | person animal
tired | fatigué fatiguée fatigués fatiguées | after | person animal
sad | triste triste tristes tristes | after | person animal
strange | étrange étrange étranges étranges | after | person animal thing place
"""

_VERBS = """
eat eats | mange mange mangeons mangez mangent | person animal | food
buy buys | achète achète achetons achetez achètent | person | animal food thing
sell sells | vends vend vendons vendez vendent | person | animal food thing
see sees | vois voit voyons voyez voient | person animal | person animal food thing place
look_for looks_for | cherche cherche cherchons cherchez cherchent | person animal | person animal food thing place
find finds | trouve trouve trouvons trouvez trouvent | person animal | person animal food thing place
love loves | aime aime aimons aimez aiment | person | person animal food place
draw draws | dessine dessine dessinons dessinez dessinent | person | person animal food thing place
listen_to listens_to | écoute écoute écoutons écoutez écoutent | person animal | person animal
wait_for waits_for | attends attend attendons attendez attendent | person animal | person animal
sing sings | chante chante chantons chantez chantent | person |
sleep sleeps | dors dort dormons dormez dorment | person animal |
work works | travaille travaille travaillons travaillez travaillent | person |
play plays | joue joue jouons jouez jouent | person animal |
"""

_DETERMINERS = """
the the | le la les
a some | un une des
this these | ce cette ces
my my | mon ma mes
our our | notre notre nos
every - | chaque chaque -
- two | - - deux
"""

_PRONOUNS = """
I | je | 0 | 0
he | il | 1 | 0
she | elle | 1 | 1
we | nous | 2 | 2
you | vous | 3 | 2
they | ils | 4 | 2
"""

_PREPOSITIONS = """
in | dans | place
behind | derrière | person animal place
in_front_of | devant | person animal place
near | près_de | person animal place
with | avec | person animal
"""

NOUNS = [Noun(en, fr, gender == "f", kind) for en, fr, (gender,), (kind,) in _parse_table(_NOUNS)]

ADJECTIVES = [Adjective(en, fr, place, kinds) for (en,), fr, (place,), kinds in _parse_table(_ADJECTIVES)]

VERBS = [Verb(*row) for row in _parse_table(_VERBS)]

TO_BE = Verb(["am", "is", "are", "are", "are"], ["suis", "est", "sommes", "êtes", "sont"], [], [])

DETERMINERS = [Determiner(*row) for row in _parse_table(_DETERMINERS)]

PRONOUNS = [Pronoun(en, fr, int(person), int(form)) for (en,), (fr,), (person,), (form,) in _parse_table(_PRONOUNS)]

PREPOSITIONS = [Preposition(en, fr, kinds) for (en,), (fr,), kinds in _parse_table(_PREPOSITIONS)]

ADVERBS = {"often": "souvent", "always": "toujours"}

Language = Literal["en", "fr"]

THIRD_PERSON = (1, 4)
"""The grammatical person of a singular noun and of a plural noun, as indices of (je, il, nous, vous, ils)."""

VOWELS = {"en": "aeiou", "fr": "aeiouéêhœ"}
"""First letters that change the form of the previous word. In this lexicon, h is silent only in French."""

BEFORE_VOWEL = {
    "en": {"a": "an"},
    "fr": {"le": "l'", "la": "l'", "je": "j'", "ne": "n'", "de": "d'"}
    | {"ce": "cet", "ma": "mon", "beau": "bel", "nouveau": "nouvel"},
}

CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("de", "des"): "de", ("de", "de"): "de", ("de", "d'"): "d'"}

MAX_REDRAWS = 10_000
"""Number of rejected sentences in a row after which the search for new sentences stops."""


class LinkedWord(NamedTuple):
    """A word and the names of its links. Linked words of the two languages translate each other."""

    text: str
    links: frozenset[str]


class WordPair(NamedTuple):
    """A phrase in English and in French."""

    english: list[LinkedWord]
    french: list[LinkedWord]


class Subject(NamedTuple):
    """The subject of a sentence.

    `person` selects the form of the verb, and `form` selects the form of the adjective. `kind` decides which verbs and
    adjectives are possible.
    """

    pair: WordPair
    person: int
    form: int
    kind: str


def _link_words(text: str, link: str) -> list[LinkedWord]:
    return [LinkedWord(word, frozenset([link])) for word in text.split()]


def _pair(english: str, french: str, link: str) -> WordPair:
    return WordPair(_link_words(english, link), _link_words(french, link))


def _noun_phrase(rng: Random, role: str, kinds: Sequence[str], negated: bool = False) -> Subject:
    """Draw a noun phrase: a determiner, a noun, and sometimes adjectives before and after the noun.

    `negated` is True for the object of a negated verb.
    """
    noun = rng.choice([noun for noun in NOUNS if noun.kind in kinds])
    plural = rng.randrange(2)
    form = 2 * plural + noun.feminine
    determiner = rng.choice([determiner for determiner in DETERMINERS if determiner.english[plural] != "-"])
    english, french = determiner.english[plural], determiner.french[2 if plural else noun.feminine]
    adjectives = {"before": WordPair([], []), "after": WordPair([], [])}
    for place in adjectives:
        fitting = [adjective for adjective in ADJECTIVES if adjective.place == place and noun.kind in adjective.kinds]
        if fitting and rng.random() < 0.3:
            adjective = rng.choice(fitting)
            adjectives[place] = _pair(adjective.english, adjective.french[form], f"{role} adjective {place}")
    before, after = adjectives.values()
    if negated and english in ("a", "some"):
        english, french = "any" if plural else "a", "de"
    if before.french and french == "des":
        french = "de"
    article = _pair(english, french, f"{role} determiner")
    name = _pair(noun.english[plural], noun.french[plural], f"{role} noun")
    pair = WordPair(
        article.english + before.english + after.english + name.english,
        article.french + before.french + name.french + after.french,
    )
    return Subject(pair, THIRD_PERSON[plural], form, noun.kind)


def _subject(rng: Random) -> Subject:
    """Draw a subject: a pronoun or a noun phrase."""
    if rng.random() < 0.4:
        pronoun = rng.choice(PRONOUNS)
        return Subject(_pair(pronoun.english, pronoun.french, "subject"), pronoun.person, pronoun.form, "person")
    return _noun_phrase(rng, "subject", ("person", "animal"))


def _finite(verb: Verb, person: int, adverb: str, negated: bool) -> WordPair:
    """Return the verb with its adverb and negation. In English, all verbs except "to be" are negated with "do"."""
    often, souvent = _link_words(adverb, "adverb"), _link_words(ADVERBS.get(adverb, ""), "adverb")
    singular = person == THIRD_PERSON[0]
    if verb is TO_BE:
        english = _link_words(verb.english[person], "verb") + _link_words("not" if negated else "", "negation") + often
    elif negated:
        english = (
            _link_words("does not" if singular else "do not", "negation") + often + _link_words(verb.english[0], "verb")
        )
    else:
        english = often + _link_words(verb.english[singular], "verb")
    french = _link_words(verb.french[person], "verb")
    if negated:
        french = [*_link_words("ne", "negation"), *french, *_link_words("pas", "negation")]
    return WordPair(english, french + souvent)


def _derive(rng: Random) -> WordPair:
    """Draw one sentence: a subject with an adjective, or a subject with a verb and sometimes an object and a place."""
    subject = _subject(rng)
    negated, adverb = rng.random() < 0.3, rng.choice([*ADVERBS, "", "", ""])
    if rng.random() < 0.2:
        adjective = rng.choice([adjective for adjective in ADJECTIVES if subject.kind in adjective.kinds])
        predicate = _pair(adjective.english, adjective.french[subject.form], "adjective")
        phrases = [subject.pair, _finite(TO_BE, subject.person, adverb, negated), predicate]
    else:
        verb = rng.choice([verb for verb in VERBS if subject.kind in verb.subjects])
        phrases = [subject.pair, _finite(verb, subject.person, adverb, negated)]
        if verb.objects:
            phrases.append(_noun_phrase(rng, "object", verb.objects, negated).pair)
        if rng.random() < (0.2 if verb.objects else 0.7):
            preposition = rng.choice(PREPOSITIONS)
            phrases.append(_pair(preposition.english, preposition.french, "preposition"))
            phrases.append(_noun_phrase(rng, "place", preposition.kinds).pair)
    phrases.append(_pair(".", ".", "stop"))
    return WordPair(
        _join_words([word for phrase in phrases for word in phrase.english], "en"),
        _join_words([word for phrase in phrases for word in phrase.french], "fr"),
    )


def _join_words(phrase: list[LinkedWord], language: Language) -> list[LinkedWord]:
    """Contract or elide each word if the next word requires it. Capitalize the first word."""
    joined: list[LinkedWord] = []
    for word in reversed(phrase):
        if joined and (contracted := CONTRACTED.get((word.text, joined[0].text))):
            word = LinkedWord(contracted, word.links | joined.pop(0).links)
        if joined and joined[0].text[0] in VOWELS[language]:
            word = word._replace(text=BEFORE_VOWEL[language].get(word.text, word.text))
        joined.insert(0, word)
    first = joined[0]
    return [first._replace(text=first.text[0].upper() + first.text[1:]), *joined[1:]]


def _to_text(phrase: list[LinkedWord]) -> str:
    return re.sub(r"(?<=') | (?=\.)", "", " ".join(word.text for word in phrase))


def _draw_new(rng: Random, seen: set[str], vocabulary: set[str]) -> Iterator[WordPair]:
    """Yield pairs of new sentences. Stop after `MAX_REDRAWS` rejected sentences in a row.

    Args:
        rng: Source of the random numbers.
        seen: Earlier sentences, which must not occur again. The function adds each new sentence to `seen`.
        vocabulary: Words that new sentences may contain. An empty set allows all words.
    """
    rejected = 0
    while rejected < MAX_REDRAWS:
        rejected += 1
        pair = _derive(rng)
        sentences = {_to_text(pair.english), _to_text(pair.french)}
        unknown = {word.text for phrase in pair for word in phrase} - vocabulary if vocabulary else set[str]()
        if unknown or sentences & seen:
            continue
        rejected = 0
        seen |= sentences
        yield pair


@final
class SentencePairs(Sequence[Example]):
    """The sentence pairs of one split, with the correct word alignment of each pair."""

    def __init__(self, pairs: Sequence[WordPair], reverse: bool) -> None:
        self._phrases = [(pair.french, pair.english) if reverse else (pair.english, pair.french) for pair in pairs]
        self._examples = [Example(_to_text(source), _to_text(target)) for source, target in self._phrases]

    def __len__(self) -> int:
        return len(self._examples)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        return self._examples[index]

    def alignment(self, index: int) -> list[tuple[int, int]]:
        """Return the word alignment of one sentence pair: (i, j) if input word i is linked to target word j.

        `WORD_START` defines where a word starts.
        """
        source, target = self._phrases[index]
        return [
            (i, j)
            for i, source_word in enumerate(source)
            for j, target_word in enumerate(target)
            if source_word.links & target_word.links
        ]


@final
class GrammarPairs:
    """Sentence pairs of a small English-French grammar, in either direction.

    The input is a sentence, and the target is its translation. No sentence occurs twice in the three splits. Every word
    of val and test also occurs in train.
    """

    name = "grammar"
    score_range = ScoreRange("bleu", 0.0, 100.0, "the grammar itself, in which each sentence has one translation")

    def __init__(
        self,
        *,
        train: int = 4000,
        val: int = 200,
        test: int = 300,
        source: str = "en",
        target: str = "fr",
        seed: int = 0,
    ) -> None:
        """Choose the sizes of the splits and the languages.

        Args:
            train: Number of pairs in train.
            val: Number of pairs in val.
            test: Number of pairs in test.
            source: Language of the input: "en" or "fr".
            target: Language of the target: "fr" if the source is "en", and "en" if the source is "fr".
            seed: Seed of the random sentences.
        """
        if {source, target} != {"en", "fr"}:
            raise InputError(
                f"source={source}, target={target}: give source=en and target=fr, or source=fr and target=en"
            )
        self._sizes: dict[SplitName, int] = {"train": train, "val": val, "test": test}
        if min(self._sizes.values()) < 1:
            raise InputError(f"train={train}, val={val}, test={test}: give each split at least one sentence pair")
        self._reverse, self._seed = source == "fr", seed

    def split(self, name: SplitName) -> SentencePairs:
        """Return the pairs of one split. Raises InputError if the grammar has too few sentences."""
        return self._splits[check_choice("split", name, SPLITS)]

    @property
    def sha256(self) -> str:
        """The hash of all sentences in the order of the splits."""
        content = [(name, *example) for name, examples in self._splits.items() for example in examples]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    @cached_property
    def _splits(self) -> dict[SplitName, SentencePairs]:
        return _draw_splits(tuple(self._sizes.items()), self._seed, self._reverse)


@lru_cache(maxsize=1)  # The cache is for comparisons, whose runs read equal pairs.
def _draw_splits(sizes: tuple[tuple[SplitName, int], ...], seed: int, reverse: bool) -> dict[SplitName, SentencePairs]:
    seen, vocabulary = set[str](), set[str]()
    splits: dict[SplitName, SentencePairs] = {}
    for name, size in sizes:
        pairs = list(islice(_draw_new(Random(f"{seed} {name}"), seen, vocabulary), size))
        if len(pairs) < size:
            raise InputError(
                f"{name}={size}: the grammar has only {len(pairs)} new sentences with words of train; "
                "give a smaller number, or a larger number for train"
            )
        vocabulary.update(word.text for pair in pairs for phrase in pair for word in phrase)
        splits[name] = SentencePairs(pairs, reverse)
    return splits
