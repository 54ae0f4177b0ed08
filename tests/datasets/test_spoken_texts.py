"""Texts with their sounds: codes of speakers, splits, and texts that cannot be spoken."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unifier as uf
from unifier.data.source import SPLITS
from unifier.datasets.fsdd import SPEAKERS, FSDDStrings
from unifier.datasets.spoken_texts import SpokenTexts
from unifier_tokenizers import Audio, InputError, MarkedText, SubwordTokenizer, Vocabulary


@pytest.fixture
def strings(tmp_path: Path, write_tone: Callable[..., Path]) -> FSDDStrings:
    for number, speaker in enumerate(SPEAKERS[:2]):
        for take in (4, 5, 49):
            for digit in range(2):
                write_tone(tmp_path / "recordings" / f"{digit}_{speaker}_{take}.wav", 0.1 + number / 9, rate=8000)
    return FSDDStrings(None, train=8, held_out=4, lengths=(2, 3), data=tmp_path)


@pytest.mark.slow
def test_texts_begin_with_their_speaker_and_keep_the_sound(strings: FSDDStrings) -> None:
    source = SpokenTexts(strings)
    for name in SPLITS:
        speakers = set[str]()
        for string, (text, sound), (same, digits) in zip(
            strings.strings(name), source.split(name), strings.split(name), strict=True
        ):
            assert isinstance(text, MarkedText)
            assert text == f"<{string.recordings[0].speaker}> {' '.join(digits)}"
            assert (np.asarray(sound.waveform) == np.asarray(same.waveform)).all()
            assert {recording.speaker for recording in string.recordings} == {string.recordings[0].speaker}
            speakers.add(string.recordings[0].speaker)
        assert speakers == {*SPEAKERS[:2]}
    takes = [{r.number for string in strings.strings(name) for r in string.recordings} for name in SPLITS]
    assert takes == [{49}, {5}, {4}]


def test_sentences_have_no_code() -> None:
    class Sentences:
        name, labels = "own", tuple("abc ")

        def split(self, name: str) -> list[Any]:
            return [uf.Example(Audio(np.zeros(9, np.float32), 8000), text) for text in ("a b", " ")]

    source = SpokenTexts(Sentences())  # pyright: ignore[reportArgumentType]
    first, second = source.split("train"), source.reader.prepare("cab")
    assert (first[0].input, second, source.codes, {*source.characters}) == ("a b", "cab", (), set("abc "))
    with pytest.raises(InputError, match="example 1"):
        first[1]


def test_unknown_letters_and_speakers_are_named(strings: FSDDStrings) -> None:
    source = SpokenTexts(strings)
    vocabulary = Vocabulary.fit((source.characters,), level="character", size=300, extra=source.codes)
    tokenizer = SubwordTokenizer(vocabulary, 8, codes=source.codes, known_characters=True)
    plain, coded = (tokenizer.encode(source.reader.prepare(text)).values for text in ("3 1", "<george> 3 1"))
    assert plain.tolist() == coded.tolist()
    assert tokenizer.encode(source.reader.prepare("<theo> 3 1")).values.tolist()[1:] == coded.tolist()[1:]
    with pytest.raises(InputError, match=r"'x' 'é'.*'7'"):
        tokenizer.encode(source.reader.prepare("3 xéx"))
    with pytest.raises(InputError, match=r"<bob>.*<theo>"):
        tokenizer.encode(source.reader.prepare("<bob> 3"))
