"""The embedded data sets: deterministic, disjoint, right in their French, and neither trivial nor hopeless to learn."""

import pickle
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from unifier.data.source import SPLITS, Example, Source
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import ADJECTIVES, DETERMINERS, NOUNS, PRONOUNS, VERBS, GrammarPairs
from unifier.datasets.synthetic_music import GENRES, SyntheticMusic, render
from unifier_tokenizers import InputError
from unifier_tokenizers.text import WORD_START

Features = NDArray[np.floating]

small_music = partial(SyntheticMusic, train=20, val=10, test=10)
small_grammar = partial(GrammarPairs, train=600, val=50, test=50)
MAKERS = pytest.mark.parametrize("make", [small_grammar, Digits, small_music])


def content(example: Example) -> tuple[bytes | str, Any]:
    """What an example is made of, in a form that can be compared and hashed."""
    raw = getattr(example.input, "waveform", example.input)
    return (raw.tobytes() if isinstance(raw, np.ndarray) else raw, example.target)


@pytest.fixture(scope="module")
def grammar() -> GrammarPairs:
    return GrammarPairs()


@pytest.fixture(scope="module")
def music() -> SyntheticMusic:
    return SyntheticMusic(train=300, val=5, test=150)


@MAKERS
def test_seed_names_the_data(make: Any) -> None:
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    for name in reversed(SPLITS):  # the order of asking does not matter
        assert list(map(content, first.split(name))) == list(map(content, again.split(name)))
    assert first.sha256 == again.sha256 != other.sha256
    assert len(bytes.fromhex(first.sha256)) == 32
    assert isinstance(first, Source)


@MAKERS
def test_splits_are_disjoint_and_without_repeats(make: Any) -> None:
    source = make()
    inputs = [content(example)[0] for name in SPLITS for example in source.split(name)]
    assert len(set(inputs)) == len(inputs)


@MAKERS
def test_source_survives_pickling(make: Any) -> None:
    source = make()
    before = [content(example) for example in source.split("test")]
    copy = pickle.loads(pickle.dumps(source))
    assert [content(example) for example in copy.split("test")] == before
    assert copy.sha256 == source.sha256


@MAKERS
def test_unknown_split_is_refused_by_name(make: Any) -> None:
    with pytest.raises(InputError, match=r"'dev'.*train, val, test"):
        make().split("dev")


@pytest.mark.parametrize(
    ("make", "settings", "way_out"),
    [
        (GrammarPairs, {"train": 0}, "at least one"),
        (GrammarPairs, {"source": "fr"}, "fr to en"),
        (GrammarPairs, {"target": "de"}, "en to fr"),
        (Digits, {"val": 0}, "at least 10"),
        (Digits, {"test": 1700}, "at most"),
        (SyntheticMusic, {"test": -1}, "at least one"),
        (SyntheticMusic, {"task": "mood"}, "genre, tags"),
        (SyntheticMusic, {"seconds": 0.1}, "at least 1 s"),
        (SyntheticMusic, {"rate": 100}, "4000 Hz"),
    ],
)
def test_senseless_settings_are_refused_with_a_way_out(make: Any, settings: dict[str, Any], way_out: str) -> None:
    with pytest.raises(InputError, match=way_out):
        make(**settings)


def test_too_little_training_for_the_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match="more in train"):
        GrammarPairs(train=2, val=100).split("val")


def sentences(grammar: GrammarPairs) -> list[Example]:
    return [example for name in SPLITS for example in grammar.split(name)]


def test_every_tested_word_is_taught(grammar: GrammarPairs) -> None:
    for side in (0, 1):
        taught = {word for pair in grammar.split("train") for word in WORD_START.findall(pair[side])}
        asked = {
            word for name in ("val", "test") for pair in grammar.split(name) for word in WORD_START.findall(pair[side])
        }
        assert asked <= taught


def test_words_lose_nothing_but_spaces(grammar: GrammarPairs) -> None:
    for text in (text for pair in sentences(grammar) for text in pair):
        assert "".join(WORD_START.findall(text)) == text.replace(" ", "")
        assert text[0].isupper()
        assert text.endswith(".")


def test_translation_is_a_function_both_ways(grammar: GrammarPairs) -> None:
    pairs = {pair for seed in range(1, 4) for pair in sentences(small_grammar(train=2000, seed=seed))}
    pairs.update(sentences(grammar))
    assert len({pair.input for pair in pairs}) == len({pair.target for pair in pairs}) == len(pairs)


def test_directions_mirror_each_other() -> None:
    there, back = small_grammar(), small_grammar(source="fr", target="en")
    for name in SPLITS:
        assert [(example.target, example.input) for example in there.split(name)] == list(back.split(name))
        for index in range(len(there.split(name))):
            mirrored = [(t, s) for s, t in there.split(name).alignment(index)]
            assert sorted(mirrored) == sorted(back.split(name).alignment(index))


def test_alignment_covers_every_word_and_stays_in_the_sentence(grammar: GrammarPairs) -> None:
    pairs = grammar.split("test")
    for index, pair in enumerate(pairs):
        for side, places in enumerate(zip(*pairs.alignment(index), strict=True)):
            assert set(places) == set(range(len(WORD_START.findall(pair[side]))))


def test_alignment_agrees_with_the_lexicon(grammar: GrammarPairs) -> None:
    lexicon = {en: fr for noun in NOUNS for en, fr in zip(noun.english, noun.french, strict=True)}
    pairs, crossing = grammar.split("test"), 0
    for index, pair in enumerate(pairs):
        source, target = WORD_START.findall(pair.input), WORD_START.findall(pair.target)
        links = pairs.alignment(index)
        assert all(target[t] == lexicon[source[s]] for s, t in links if source[s] in lexicon)
        crossing += any(s < s2 and t > t2 for s, t in links for s2, t2 in links)
    assert crossing > len(pairs) / 4  # word for word would not do


def test_elision_and_contraction_are_right(grammar: GrammarPairs) -> None:
    elided = {"l'", "j'", "n'", "d'", "cet", "bel", "nouvel"}
    whole = {"le", "la", "je", "ne", "de", "ce", "ma", "beau", "nouveau"}
    for english, french in sentences(grammar):
        for word, following in pairwise(WORD_START.findall(french.lower())):
            assert word not in (whole if following.startswith(tuple("aeiouéêhœ")) else elided), french
            assert word != "de" or following not in {"le", "les", "des", "de", "du"}, french
        for word, following in pairwise(WORD_START.findall(english.lower())):
            assert word != ("a" if following.startswith(tuple("aeiou")) else "an"), english


def test_noun_phrases_agree_in_gender_and_number(grammar: GrammarPairs) -> None:
    forms = defaultdict[str, set[tuple[bool, int]]](set)  # word -> the (feminine, plural) that it can be
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
    forms["mon"].add((True, 0))  # before a vowel
    checked = set[str]()
    for _, french in sentences(grammar):
        for word, following in pairwise(WORD_START.findall(french.lower())):
            if word in forms and following in forms:  # neighbors within one noun phrase
                assert forms[word] & forms[following], french
                checked |= {word, following}
    assert checked >= {word for adjective in ADJECTIVES for word in adjective.french} | {"mon", "cet", "du"}


def test_predicates_and_verbs_agree_with_a_pronoun(grammar: GrammarPairs) -> None:
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


def test_negation_stands_on_both_sides_of_the_french_verb(grammar: GrammarPairs) -> None:
    for english, french in sentences(grammar):
        tokens = WORD_START.findall(french.lower())
        negated = "ne" in tokens or "n'" in tokens
        assert negated == ("not" in WORD_START.findall(english)) == ("pas" in tokens)
        if negated:
            ne = next(place for place, word in enumerate(tokens) if word in ("ne", "n'"))
            assert tokens[ne + 2] == "pas"


def test_digits_are_pictures_with_every_label_in_every_split() -> None:
    digits = Digits()
    assert sum(len(digits.split(name)) for name in SPLITS) == 1797
    for name in SPLITS:
        examples = digits.split(name)
        counts = [sum(example.target == label for example in examples) for label in digits.labels]
        assert max(counts) - min(counts) <= 0.03 * len(examples)
        assert all((picture.shape, picture.dtype) == ((8, 8), np.uint8) for picture, _ in examples)
    assert max(picture.max() for picture, _ in digits.split("train")) == 255


def test_sounds_are_sound_and_follow_their_scores() -> None:
    source = small_music(seconds=2.5, rate=6000)
    for score, (sound, genre) in zip(source.scores("train"), source.split("train"), strict=True):
        assert np.array_equal(render(score, 2.5, 6000).waveform, sound.waveform)
        assert (sound.waveform.shape, sound.waveform.dtype, sound.rate) == ((15000,), np.float32, 6000)
        assert 0 < np.abs(sound.waveform).max() <= 1
        assert score.genre == genre
    assert {genre for _, genre in source.split("train")} == set(source.labels)


def test_tags_follow_the_score() -> None:
    source = small_music(target="tags", train=100)
    scores, examples = source.scores("train"), source.split("train")
    for score, (_, tags) in zip(scores, examples, strict=True):
        assert set(tags) <= set(source.labels)
        assert ("minor" in tags) == score.minor != ("major" in tags)
        assert ("drums" in tags) == score.drums
        assert ("triple" in tags) == (score.genre == "waltz")
        assert ("syncopated" in tags) == (score.genre in ("house", "reggae", "swing"))  # rock has half its chords on it
        assert ("fast" in tags) != ("slow" in tags)
        assert len(set(tags)) == len(tags) > 1
    for label in source.labels:
        assert 0 < sum(label in tags for _, tags in examples) < len(examples)


def test_drums_and_bass_are_heard() -> None:
    scores = [score._replace(drums=False, bass=False, noise=-60.0) for score in small_music().scores("train")]

    def power(low: int, high: int, **parts: bool) -> float:
        """The power between two frequencies in Hz, over all pieces."""
        sounds = np.stack([render(score._replace(**parts), 3.0, 8000).waveform for score in scores])
        return (np.abs(np.fft.rfft(sounds)[:, 3 * low : 3 * high]) ** 2).sum()

    assert power(40, 150, bass=True) > 2 * power(40, 150)
    assert power(3000, 4000, drums=True) > 2 * power(3000, 4000)


def spectrogram(examples: Sequence[Example]) -> Features:
    """(examples, 32 bands, frames): log power in equal bands, frames of 32 ms every 10 ms."""
    waves = np.stack([example.input.waveform for example in examples])
    frames = np.lib.stride_tricks.sliding_window_view(waves, 256, axis=1)[:, ::80] * np.hanning(256)
    power = np.abs(np.fft.rfft(frames)[:, :, :-1]) ** 2
    return np.log(power.reshape(*power.shape[:2], 32, 4).mean(-1) + 1e-7).transpose(0, 2, 1)


def modulation(bands: Features) -> Features:
    """(examples, 8 bands x 48): how strongly each band beats at each rate from 1/3 to 16 Hz."""
    coarse = bands.reshape(len(bands), 8, 4, -1).mean(2)
    return np.abs(np.fft.rfft(coarse - coarse.mean(-1, keepdims=True))[..., 1:49]).reshape(len(bands), -1)


def accuracy(music: SyntheticMusic, train: Features, test: Features) -> float:
    model = make_pipeline(StandardScaler(), SVC(C=10))
    model.fit(train, [example.target for example in music.split("train")])
    return cast(float, model.score(test, [example.target for example in music.split("test")]))


def test_genre_is_in_the_rhythm_and_not_in_any_one_feature(music: SyntheticMusic) -> None:
    train, test = (spectrogram(music.split(name)) for name in ("train", "test"))
    heard = accuracy(music, modulation(train), modulation(test))
    assert heard > 0.9

    for feature in ("tempo", "key", "loudness", "brightness", "noise", "minor", "bass", "drums"):
        known = [np.array([[getattr(score, feature)] for score in music.scores(name)]) for name in ("train", "test")]
        assert accuracy(music, *known) < 2 / len(GENRES), feature

    spectra = [np.exp(bands).mean(-1) for bands in (train, test)]
    centroids = [(power @ np.arange(32) / power.sum(-1))[:, None] for power in spectra]
    assert accuracy(music, *centroids) < 2 / len(GENRES)
    assert accuracy(music, *map(np.log, spectra)) < heard - 0.3
