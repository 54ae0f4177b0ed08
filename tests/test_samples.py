"""Samples as a page shows them: small pictures, short sounds, and what was said."""

import base64
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from unifier.data.embedded import Digits, SyntheticMusic
from unifier.heads.classification import ClassificationHead
from unifier.running.telling.samples import SIDE, samples, shown
from unifier.study.experiment import Arm
from unifier.study.files import read_json, write_json
from unifier_tokenizers import FrameTokenizer, PatchTokenizer
from unifier_tokenizers.parts.sound import Sound

D = 8


def content(url: str, kind: str) -> io.BytesIO:
    start = f"data:{kind};base64,"
    assert url.startswith(start)
    return io.BytesIO(base64.b64decode(url.removeprefix(start)))


@pytest.mark.parametrize("colours", [(), (1,), (3,)])
def test_a_small_picture_is_kept_pixel_by_pixel(colours: tuple[int, ...]) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (20, 30, *colours), dtype=np.uint8)
    found = np.asarray(Image.open(content(shown(raw)["image"], "image/png")))
    np.testing.assert_array_equal(found, raw.squeeze())


def test_a_large_picture_becomes_small() -> None:
    for raw in (Image.new("RGB", (800, 400), "red"), torch.zeros(400, 800)):
        assert Image.open(content(shown(raw)["image"], "image/png")).size == (SIDE, SIDE // 2)


def test_a_sound_is_its_beginning() -> None:
    wave = np.sin(np.arange(8 * 44_100) * 2 * np.pi * 440 / 44_100).astype(np.float32) / 2
    found, rate = soundfile.read(content(shown(Sound(np.stack([wave, wave]), 44_100))["audio"], "audio/flac"))
    assert (rate, found.shape) == (16_000, (80_000,))
    expected = np.sin(np.arange(80_000) * 2 * np.pi * 440 / 16_000) / 2
    np.testing.assert_allclose(found[2000:-2000], expected[2000:-2000], atol=5e-3)


def test_a_short_sound_at_a_low_rate_is_kept_whole() -> None:
    wave = torch.linspace(-1, 1, 800)
    found, rate = soundfile.read(content(shown(Sound(wave, 8000))["audio"], "audio/flac"))
    assert rate == 8000
    np.testing.assert_allclose(found, wave.numpy(), atol=1e-4)


@pytest.mark.parametrize("wave", [np.ones(800, np.int16), np.full(800, np.nan, np.float32), np.zeros(0, np.float32)])
def test_a_waveform_that_no_tokenizer_takes_is_not_played(wave: np.ndarray[Any, Any]) -> None:
    assert shown(Sound(wave, 8000)) == {}


def test_a_mixture_shows_the_first_of_each_and_a_text_nothing() -> None:
    picture, sound = np.zeros((4, 4), np.uint8), Sound(torch.zeros(400), 8000)
    found = shown({"text": "a", "first": picture, "second": picture + 9, "sound": sound})
    assert found == {**shown(picture), **shown(sound)}
    assert shown("a text") == shown([1.0, 2.0]) == shown(np.zeros((4, 4, 7))) == shown(torch.full((4, 4), 7.0)) == {}


def test_every_sample_says_what_was_expected_and_what_was_said() -> None:
    digits, music = Digits(), SyntheticMusic(train=5, val=5, test=5, seconds=1.0)
    arms = {
        "digits": Arm(digits, PatchTokenizer(D, channels=1), ClassificationHead(digits.labels, D)),
        "music": Arm(music, FrameTokenizer(D, rate=8000), ClassificationHead(music.labels, D)),
    }
    labels = {"digits": digits.labels, "music": music.labels}
    said = {arm: {i: torch.eye(len(labels[arm]))[0] for i in range(5)} for arm in arms}
    found = samples(arms, said)
    assert {frozenset(sample) for sample in found["digits"]} == {frozenset(("input", "target", "prediction", "image"))}
    assert {frozenset(sample) for sample in found["music"]} == {frozenset(("input", "target", "prediction", "audio"))}
    assert sorted(sample["target"] for sample in found["digits"]) == sorted(
        digits.split("test")[i].target for i in range(5)
    )


def test_a_file_whose_name_is_no_utf8_is_a_sample_too(tmp_path: Path) -> None:
    found = {"digits": [{"input": os.fsdecode(b"caf\xe9.png")}]}
    write_json(tmp_path / "samples.json", found)
    assert read_json(tmp_path / "samples.json") == found
