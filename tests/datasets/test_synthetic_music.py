"""Synthetic music: pieces follow their scores, and the genre is in the rhythm alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from unifier.data.source import Example
from unifier.datasets.synthetic_music import GENRES, SyntheticMusic, render
from unifier.heads.classification import ClassificationHead, TaggingHead

Features = NDArray[np.floating]

small_music = partial(SyntheticMusic, train=20, val=10, test=10)


@pytest.fixture(scope="module")
def music() -> SyntheticMusic:
    return SyntheticMusic(train=300, val=5, test=150)


@pytest.mark.slow
def test_music_keeps_contract(check_generated: Callable[..., None]) -> None:
    check_generated(small_music)


@pytest.mark.slow
def test_pieces_follow_scores() -> None:
    source = small_music(seconds=2.5, rate=6000)
    for score, (sound, genre) in zip(source.scores("train"), source.split("train"), strict=True):
        assert np.array_equal(render(score, 2.5, 6000).waveform, sound.waveform)
        assert (sound.waveform.shape, sound.waveform.dtype, sound.sample_rate) == ((15000,), np.float32, 6000)
        assert 0 < np.abs(sound.waveform).max() <= 1
        assert score.genre == genre
    assert {genre for _, genre in source.split("train")} == set(source.labels)


@pytest.mark.slow
def test_tags_follow_score() -> None:
    source = small_music(target="tags", train=100)
    scores, examples = source.scores("train"), source.split("train")
    for score, (_, tags) in zip(scores, examples, strict=True):
        assert set(tags) <= set(source.labels)
        assert ("minor" in tags) == score.minor != ("major" in tags)
        assert ("drums" in tags, "triple" in tags) == (score.drums, score.genre == "waltz")
        assert ("syncopated" in tags) == (
            score.genre in ("house", "reggae", "swing")
        )  # Half of rock's chords are on the beat.
        assert ("fast" in tags) != ("slow" in tags)
        assert len(set(tags)) == len(tags) > 1
    for label in source.labels:
        assert 0 < sum(label in tags for _, tags in examples) < len(examples)


@pytest.mark.slow
def test_drums_and_bass_add_power() -> None:
    scores = [score._replace(drums=False, bass=False, noise=-60.0) for score in small_music().scores("train")]

    def power(low: int, high: int, **parts: bool) -> float:
        """Return the power of all pieces between two frequencies in Hz."""
        sounds = np.stack([render(score._replace(**parts), 3.0, 8000).waveform for score in scores])
        return (np.abs(np.fft.rfft(sounds)[:, 3 * low : 3 * high]) ** 2).sum()

    assert power(40, 150, bass=True) > 2 * power(40, 150)
    assert power(3000, 4000, drums=True) > 2 * power(3000, 4000)


def spectrogram(examples: Sequence[Example]) -> Features:
    """Return the log power (examples, 32 bands, frames) in equal bands, with frames of 32 ms every 10 ms."""
    waves = np.stack([example.input.waveform for example in examples])
    frames = np.lib.stride_tricks.sliding_window_view(waves, 256, axis=1)[:, ::80] * np.hanning(256)
    power = np.abs(np.fft.rfft(frames)[:, :, :-1]) ** 2
    return np.log(power.reshape(*power.shape[:2], 32, 4).mean(-1) + 1e-7).transpose(0, 2, 1)


def modulation(bands: Features) -> Features:
    """Return the modulation (examples, 8 bands x 48) of each band at each rate from 1/3 to 16 Hz."""
    coarse = bands.reshape(len(bands), 8, 4, -1).mean(2)
    return np.abs(np.fft.rfft(coarse - coarse.mean(-1, keepdims=True))[..., 1:49]).reshape(len(bands), -1)


def accuracy(music: SyntheticMusic, train: Features, test: Features) -> float:
    model = make_pipeline(StandardScaler(), SVC(C=10))
    model.fit(train, [example.target for example in music.split("train")])
    return cast(float, model.score(test, [example.target for example in music.split("test")]))


@pytest.mark.slow
def test_genre_needs_rhythm(music: SyntheticMusic) -> None:
    train, test = (spectrogram(music.split(name)) for name in ("train", "test"))
    by_rhythm = accuracy(music, modulation(train), modulation(test))
    assert by_rhythm > 0.9

    for feature in ("tempo", "key", "loudness", "brightness", "noise", "minor", "bass", "drums"):
        values = [np.array([[getattr(score, feature)] for score in music.scores(name)]) for name in ("train", "test")]
        assert accuracy(music, *values) < 2 / len(GENRES), feature

    spectra = [np.exp(bands).mean(-1) for bands in (train, test)]
    centroids = [(power @ np.arange(32) / power.sum(-1))[:, None] for power in spectra]
    assert accuracy(music, *centroids) < 2 / len(GENRES)
    assert accuracy(music, *map(np.log, spectra)) < by_rhythm - 0.3


@pytest.mark.parametrize("target", ["genre", "tags"])
def test_truth_and_guesses_span_the_score_range(target: Any) -> None:
    source = SyntheticMusic(train=1, val=1, test=20, seconds=1.0, target=target)
    head = (ClassificationHead if target == "genre" else TaggingHead)(source.labels, 4)
    targets = [example.target for example in source.split("test")]
    encoded = torch.stack([head.encode(label) for label in targets])
    truth = torch.eye(len(head.labels))[encoded] if target == "genre" else encoded
    score_range = source.score_range
    assert head.metrics(list(truth), targets)[score_range.metric] == score_range.reference
    guesses = list(torch.ones_like(truth))
    assert head.metrics(guesses, targets)[score_range.metric] == pytest.approx(score_range.chance)
