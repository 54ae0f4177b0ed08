"""Samples as a page shows them: small pictures, short sounds, and what was said."""

import base64
import io
import os
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from torch import Tensor

from unifier.data.source import Example, SplitName
from unifier.datasets.digits import Digits
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier.experiment import Task
from unifier.files import read_json, write_json
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.training.artifacts import MAX_LETTERS, MAX_SIDE, collect_samples, describe_input, render_input
from unifier_tokenizers import FrameTokenizer, Mixture, PatchTokenizer, Tokenizer, Units
from unifier_tokenizers.audio import Audio

D = 8
PICTURES, SOUNDS = PatchTokenizer(D, channels=1), FrameTokenizer(D, sample_rate=8000)


def content(url: str, kind: str) -> io.BytesIO:
    start = f"data:{kind};base64,"
    assert url.startswith(start)
    return io.BytesIO(base64.b64decode(url.removeprefix(start)))


@pytest.mark.parametrize("colors", [(), (1,), (3,)])
def test_a_small_picture_is_kept_pixel_by_pixel(colors: tuple[int, ...]) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (20, 30, *colors), dtype=np.uint8)
    found = np.asarray(Image.open(content(render_input(raw, PICTURES)["image"], "image/png")))
    np.testing.assert_array_equal(found, raw.squeeze())


def test_a_large_picture_becomes_small() -> None:
    for raw in (Image.new("RGB", (800, 400), "red"), torch.zeros(400, 800)):
        assert Image.open(content(render_input(raw, PICTURES)["image"], "image/png")).size == (MAX_SIDE, MAX_SIDE // 2)


def test_a_sound_is_its_beginning() -> None:
    wave = np.sin(np.arange(8 * 44_100) * 2 * np.pi * 440 / 44_100).astype(np.float32) / 2
    found, rate = soundfile.read(
        content(render_input(Audio(np.stack([wave, wave]), 44_100), SOUNDS)["audio"], "audio/flac")
    )
    assert (rate, found.shape) == (16_000, (80_000,))
    expected = np.sin(np.arange(80_000) * 2 * np.pi * 440 / 16_000) / 2
    np.testing.assert_allclose(found[2000:-2000], expected[2000:-2000], atol=5e-3)


def test_a_short_sound_at_a_low_rate_is_kept_whole() -> None:
    wave = torch.linspace(-1, 1, 800)
    found, rate = soundfile.read(content(render_input(Audio(wave, 8000), SOUNDS)["audio"], "audio/flac"))
    assert rate == 8000
    np.testing.assert_allclose(found, wave.numpy(), atol=1e-4)


@pytest.mark.parametrize("wave", [np.ones(800, np.int16), np.full(800, np.nan, np.float32), np.zeros(0, np.float32)])
def test_a_waveform_that_no_tokenizer_takes_is_not_played(wave: np.ndarray[Any, Any]) -> None:
    assert render_input(Audio(wave, 8000), SOUNDS) == {}


class Own(Tokenizer):
    """A modality of one's own."""

    def encode(self, raw: Any) -> Units:
        return Units(torch.zeros(1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long))

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return torch.zeros(len(values), self.dim, values.shape[-1])


def test_a_mixture_shows_the_first_of_each_and_says_all_texts() -> None:
    picture, sound = np.zeros((4, 4), np.uint8), Audio(torch.zeros(400), 8000)
    members = {"text": Own(D), "first": PICTURES, "second": PICTURES, "sound": SOUNDS, "words": Own(D)}
    raw = {"text": "a", "first": picture, "second": picture + 9, "sound": sound, "words": ["b", "c"]}
    expected = {**render_input(picture, PICTURES), **render_input(sound, SOUNDS), "input": "a, b, c"}
    assert render_input(raw, Mixture(members)) == expected
    assert render_input(np.zeros((4, 4, 7)), PICTURES) == render_input(torch.full((4, 4), 7.0), PICTURES) == {}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("a text", "a text"),
        (["two", "words"], "two, words"),
        (("power", "joyful_activation"), "power, joyful_activation"),
        ({"b", "a"}, "a, b"),
        ((), "none"),
        (3, "3"),
        ([1.0, 0.1 + 0.2], "1, 0.3"),
        (np.eye(2, dtype=np.float32), "1, 0, 0, 1"),
        (torch.tensor([0.1, 2.0]), "0.1, 2"),
        (np.float32(0.1), "0.1"),
    ],
)
def test_what_is_made_of_texts_and_numbers_is_said_and_no_picture(raw: Any, said: str) -> None:
    assert describe_input(raw) == said
    assert render_input(raw, Own(D)) == {"input": said}


def test_what_is_neither_is_named_by_its_place_and_what_is_long_by_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples = [Example(object(), torch.arange(10_000)), Example([0.1] * 10_000, "x" * 10_000)]

    @final
    class Many:
        name = "many"

        def split(self, name: SplitName) -> list[Example]:
            return examples

    head = TaggingHead(("a", "b"), D)
    monkeypatch.setattr(head, "describe", lambda _: "y" * 10_000)
    found = collect_samples({"own": Task(Many(), Own(D), head)}, {"own": {0: None, 1: None}})["own"]
    by_input = sorted(found, key=lambda sample: sample["input"], reverse=True)
    assert by_input[0]["input"] == "example 0"
    assert by_input[1]["input"].startswith("0.1, 0.1, ")
    assert all(len(text) <= MAX_LETTERS for sample in found for text in sample.values())


def test_every_sample_says_what_was_expected_and_what_was_said() -> None:
    digits, music = Digits(), SyntheticMusic(train=5, val=5, test=5, seconds=1.0)
    tasks = {
        "digits": Task(digits, PatchTokenizer(D, channels=1), ClassificationHead(digits.labels, D)),
        "music": Task(music, FrameTokenizer(D, sample_rate=8000), ClassificationHead(music.labels, D)),
    }
    labels = {"digits": digits.labels, "music": music.labels}
    said = {task: {i: torch.eye(len(labels[task]))[0] for i in range(5)} for task in tasks}
    found = collect_samples(tasks, said)
    assert {frozenset(sample) for sample in found["digits"]} == {frozenset(("input", "target", "prediction", "image"))}
    assert {frozenset(sample) for sample in found["music"]} == {frozenset(("input", "target", "prediction", "audio"))}
    assert sorted(sample["target"] for sample in found["digits"]) == sorted(
        digits.split("test")[i].target for i in range(5)
    )


def test_a_file_whose_name_is_no_utf8_is_a_sample_too(tmp_path: Path) -> None:
    found = {"digits": [{"input": os.fsdecode(b"caf\xe9.png")}]}
    write_json(tmp_path / "samples.json", found)
    assert read_json(tmp_path / "samples.json") == found
