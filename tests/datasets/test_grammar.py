"""The grammar: deterministic splits, unique translations, alignment, and correct French."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from unifier.data.source import SPLITS, Example
from unifier.datasets.grammar import ADJECTIVES, DETERMINERS, NOUNS, PRONOUNS, VERBS, GrammarPairs
from unifier.heads.transformer_decoder import TranslationHead
from unifier_tokenizers import Vocabulary
from unifier_tokenizers.text import WORD_START

small_grammar = partial(GrammarPairs, train=600, val=50, test=50)


@pytest.fixture(scope="module")
def grammar() -> GrammarPairs:
    return GrammarPairs()


@pytest.mark.slow
def test_grammar_keeps_contract(check_generated: Callable[..., None]) -> None:
    check_generated(small_grammar)


def sentences(grammar: GrammarPairs) -> list[Example]:
    return [example for name in SPLITS for example in grammar.split(name)]


@pytest.mark.slow
def test_grammar_train_has_every_word(grammar: GrammarPairs) -> None:
    for side in (0, 1):
        trained = {word for pair in grammar.split("train") for word in WORD_START.findall(pair[side])}
        tested = {
            word for name in ("val", "test") for pair in grammar.split(name) for word in WORD_START.findall(pair[side])
        }
        assert tested <= trained


@pytest.mark.slow
def test_grammar_texts_are_words_and_spaces(grammar: GrammarPairs) -> None:
    for text in (text for pair in sentences(grammar) for text in pair):
        assert "".join(WORD_START.findall(text)) == text.replace(" ", "")
        assert text[0].isupper()
        assert text.endswith(".")


@pytest.mark.slow
def test_grammar_translation_is_unique_both_ways(grammar: GrammarPairs) -> None:
    pairs = {pair for seed in range(1, 4) for pair in sentences(small_grammar(train=2000, seed=seed))}
    pairs.update(sentences(grammar))
    assert len({pair.input for pair in pairs}) == len({pair.target for pair in pairs}) == len(pairs)


@pytest.mark.slow
def test_grammar_directions_mirror() -> None:
    forward, backward = small_grammar(), small_grammar(source="fr", target="en")
    for name in SPLITS:
        assert [(example.target, example.input) for example in forward.split(name)] == list(backward.split(name))
        for index in range(len(forward.split(name))):
            mirrored = [(t, s) for s, t in forward.split(name).alignment(index)]
            assert sorted(mirrored) == sorted(backward.split(name).alignment(index))


@pytest.mark.slow
def test_alignment_covers_all_words(grammar: GrammarPairs) -> None:
    pairs = grammar.split("test")
    for index, pair in enumerate(pairs):
        for side, places in enumerate(zip(*pairs.alignment(index), strict=True)):
            assert set(places) == set(range(len(WORD_START.findall(pair[side]))))


def test_alignment_agrees_with_lexicon(grammar: GrammarPairs) -> None:
    lexicon = {en: fr for noun in NOUNS for en, fr in zip(noun.english, noun.french, strict=True)}
    pairs, crossing = grammar.split("test"), 0
    for index, pair in enumerate(pairs):
        source, target = WORD_START.findall(pair.input), WORD_START.findall(pair.target)
        links = pairs.alignment(index)
        assert all(target[t] == lexicon[source[s]] for s, t in links if source[s] in lexicon)
        crossing += any(s < s2 and t > t2 for s, t in links for s2, t2 in links)
    assert crossing > len(pairs) / 4  # The order of words differs.


def test_elision_and_contraction(grammar: GrammarPairs) -> None:
    elided = {"l'", "j'", "n'", "d'", "cet", "bel", "nouvel"}
    whole = {"le", "la", "je", "ne", "de", "ce", "ma", "beau", "nouveau"}
    for english, french in sentences(grammar):
        for word, following in pairwise(WORD_START.findall(french.lower())):
            assert word not in (whole if following.startswith(tuple("aeiouéêhœ")) else elided), french
            assert word != "de" or following not in {"le", "les", "des", "de", "du"}, french
        for word, following in pairwise(WORD_START.findall(english.lower())):
            assert word != ("a" if following.startswith(tuple("aeiou")) else "an"), english


def test_noun_phrases_agree(grammar: GrammarPairs) -> None:
    forms = defaultdict[str, set[tuple[bool, int]]](set)  # The (feminine, plural) forms of a word.
    for noun in NOUNS:
        for plural, word in enumerate(noun.french):
            forms[word].add((noun.feminine, plural))
    for adjective in ADJECTIVES:
        for form, word in enumerate(adjective.french):
            forms[word].add((form % 2 == 1, form // 2))
    for masculine, feminine, plural in (determiner.french for determiner in DETERMINERS):
        forms[masculine].add((False, 0))
        forms[feminine].add((True, 0))
        forms[plural] |= {(False, 1), (True, 1)}
    for word in ("bel", "nouvel", "cet", "du"):
        forms[word].add((False, 0))
    forms["mon"].add((True, 0))  # Before a vowel.
    checked = set[str]()
    for _, french in sentences(grammar):
        for word, following in pairwise(WORD_START.findall(french.lower())):
            if word in forms and following in forms:  # Neighbors in one noun phrase.
                assert forms[word] & forms[following], french
                checked |= {word, following}
    assert checked >= {word for adjective in ADJECTIVES for word in adjective.french} | {"mon", "cet", "du"}


def test_verbs_and_predicates_agree_with_pronoun(grammar: GrammarPairs) -> None:
    by_pronoun = {pronoun.french: pronoun for pronoun in PRONOUNS}
    verbs = {form for verb in VERBS for form in verb.french}
    to_be = {"suis": 0, "est": 1, "sommes": 2, "êtes": 3, "sont": 4}
    seen = set[str]()
    for _, french in sentences(grammar):
        tokens = [word.replace("j'", "je") for word in WORD_START.findall(french.lower())]
        if tokens[0] not in by_pronoun:
            continue
        pronoun = by_pronoun[tokens[0]]
        verb = next(word for word in tokens if word in to_be or word in verbs)
        if verb in to_be:
            assert to_be[verb] == pronoun.person, french
            assert any(tokens[-2] == adjective.french[pronoun.form] for adjective in ADJECTIVES), french
            seen.add(tokens[0])
        else:
            assert any(verb == paradigm.french[pronoun.person] for paradigm in VERBS), french
    assert seen == set(by_pronoun)


def test_negation_surrounds_french_verb(grammar: GrammarPairs) -> None:
    for english, french in sentences(grammar):
        tokens = WORD_START.findall(french.lower())
        negated = "ne" in tokens or "n'" in tokens
        assert negated == ("not" in WORD_START.findall(english)) == ("pas" in tokens)
        if negated:
            ne = next(place for place, word in enumerate(tokens) if word in ("ne", "n'"))
            assert tokens[ne + 2] == "pas"


def test_truth_and_nothing_span_the_score_range() -> None:
    source = GrammarPairs(train=200, val=5, test=20)
    targets = [example.target for example in source.split("test")]
    head = TranslationHead(Vocabulary.fit(targets, size=300), 8, depth=1, heads=2, ffn_dim=8)
    score_range = source.score_range
    assert head.metrics(targets, targets)[score_range.metric] == pytest.approx(score_range.reference)
    assert head.metrics(["" for _ in targets], targets)[score_range.metric] == score_range.chance
