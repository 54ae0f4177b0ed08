"""Predictions, samples, confusion matrices and scores by length, from a run's test predictions."""

import base64
import io
import json
import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix
from torch import Tensor
from torch.nn import functional

from unifier import ClassificationHead, FrameTokenizer, PatchTokenizer, RecurrentHead, TaggingHead, Task
from unifier.data.dataset import open_split
from unifier.data.source import Example
from unifier.datasets import Digits, GrammarPairs, SyntheticMusic
from unifier.figures.render import SAMPLE, THUMBNAIL, describe_input, render_input
from unifier.files import read_json, write_json
from unifier.heads.grouped_text import GroupedText
from unifier.heads.text_metrics import text_scores
from unifier.training import artifacts
from unifier.training.artifacts import collect_samples, scores_by_length
from unifier_tokenizers import InputError, Mixture, SubwordTokenizer, Tokenizer, Units, Vocabulary, WordTokenizer
from unifier_tokenizers.audio import Audio
from unifier_tokenizers.text import WORD_START

D = 8
PICTURES, SOUNDS = PatchTokenizer(D, channels=1), FrameTokenizer(D, sample_rate=8000)


def source_of(examples: list[Example]) -> Any:
    return SimpleNamespace(split=lambda name: examples)


def render(raw: Any, tokenizer: Tokenizer, name: str, kind: str) -> io.BytesIO:
    """Render an input, and return the decoded file of its data URL."""
    url, start = render_input(raw, tokenizer)[name], f"data:{kind};base64,"
    assert url.startswith(start)
    return io.BytesIO(base64.b64decode(url.removeprefix(start)))


@pytest.mark.parametrize("colors", [(), (1,), (3,)])
def test_small_picture_keeps_every_pixel(colors: tuple[int, ...]) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (20, 30, *colors), dtype=np.uint8)
    pixels = np.asarray(Image.open(render(raw, PICTURES, "image", "image/png")))
    np.testing.assert_array_equal(pixels, raw.squeeze())


def test_large_picture_is_shrunk() -> None:
    for raw in (Image.new("RGB", (800, 400), "red"), torch.zeros(400, 800)):
        assert Image.open(render(raw, PICTURES, "image", "image/png")).size == (SAMPLE.side, SAMPLE.side // 2)


def test_long_sound_is_cut_and_resampled() -> None:
    wave = np.sin(np.arange(8 * 44_100) * 2 * np.pi * 440 / 44_100).astype(np.float32) / 2
    samples, rate = soundfile.read(render(Audio(np.stack([wave, wave]), 44_100), SOUNDS, "audio", "audio/flac"))
    assert (rate, samples.shape) == (16_000, (80_000,))
    expected = np.sin(np.arange(80_000) * 2 * np.pi * 440 / 16_000) / 2
    np.testing.assert_allclose(samples[2000:-2000], expected[2000:-2000], atol=5e-3)
    short = torch.linspace(-1, 1, 800)
    samples, rate = soundfile.read(render(Audio(short, 8000), SOUNDS, "audio", "audio/flac"))
    assert rate == 8000
    np.testing.assert_allclose(samples, short.numpy(), atol=1e-4)


def test_thumbnails_are_small_and_contain_the_loudest_second() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 5 * 6000).astype(np.float32)
    noise[12_000:18_000] *= 3
    url = render_input(Audio(noise, 6000), SOUNDS, THUMBNAIL)["audio"]
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(url.removeprefix("data:audio/mpeg;base64,"))))
    assert (rate, len(url) < 6000) == (8000, True)
    assert samples.std() == pytest.approx(0.3, rel=0.1)
    assert len(samples) == pytest.approx(8000, rel=0.2)
    picture = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    url = render_input(picture, PICTURES, THUMBNAIL)["image"]
    assert Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/webp;base64,")))).size == (64, 48)
    assert len(url) < 6000


@pytest.mark.parametrize("wave", [np.ones(800, np.int16), np.full(800, np.nan, np.float32), np.zeros(0, np.float32)])
def test_invalid_waveform_is_not_played(wave: np.ndarray[Any, Any]) -> None:
    assert render_input(Audio(wave, 8000), SOUNDS) == {}


class OtherTokenizer(Tokenizer):
    """A modality that unifier does not have."""

    def encode(self, raw: Any) -> Units:
        return Units(torch.zeros(1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long))

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return torch.zeros(len(values), self.dim, values.shape[-1])


def test_mixture_shows_first_of_each_kind() -> None:
    picture, sound = np.zeros((4, 4), np.uint8), Audio(torch.zeros(400), 8000)
    pictures = {"first": PICTURES, "second": PICTURES, "sound": SOUNDS}
    members = {"text": OtherTokenizer(D), **pictures, "words": OtherTokenizer(D)}
    raw = {"text": "a", "first": picture, "second": picture + 9, "sound": sound, "words": ["b", "c"]}
    expected = {**render_input(picture, PICTURES), **render_input(sound, SOUNDS), "input": "a, b, c"}
    assert render_input(raw, Mixture(members)) == expected
    assert render_input(np.zeros((4, 4, 7)), PICTURES) == render_input(torch.full((4, 4), 7.0), PICTURES) == {}


@pytest.mark.parametrize(
    ("raw", "text"),
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
def test_texts_and_numbers_are_described(raw: Any, text: str) -> None:
    assert describe_input(raw) == text
    assert render_input(raw, OtherTokenizer(D)) == {"input": text}
    words = WordTokenizer(Vocabulary.fit(["a"], size=260), D)
    assert render_input(("New", "York ."), words) == {"input": "New York ."}


def test_samples_of_odd_inputs_are_named_or_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    many = source_of([Example(object(), torch.arange(10_000)), Example([0.1] * 10_000, "x" * 10_000)])
    head = TaggingHead(("a", "b"), D)
    monkeypatch.setattr(head, "describe", lambda _: "y" * 10_000)
    samples = collect_samples({"own": Task(many, OtherTokenizer(D), head)}, {"own": {0: None, 1: None}})["own"]
    by_input = sorted(samples, key=lambda sample: sample["input"], reverse=True)
    assert by_input[0]["input"] == "example 0"
    assert by_input[1]["input"].startswith("0.1, 0.1, ")
    assert all(len(text) <= SAMPLE.letters for sample in samples for text in sample.values())


def test_samples_have_target_and_prediction() -> None:
    digits, music = Digits(), SyntheticMusic(train=5, val=5, test=5, seconds=1.0)
    parts = {"digits": (digits, PICTURES), "music": (music, SOUNDS)}
    tasks = {name: Task(source, part, ClassificationHead(source.labels, D)) for name, (source, part) in parts.items()}
    predictions = {name: {i: torch.eye(len(each[0].labels))[0] for i in range(5)} for name, each in parts.items()}
    samples = collect_samples(tasks, predictions)
    for name, kind in (("digits", "image"), ("music", "audio")):
        assert all(set(sample) == {"input", "target", "prediction", kind} for sample in samples[name])
        targets = [open_split(tasks[name].source, "test")[i].target for i in range(5)]
        assert sorted(sample["target"] for sample in samples[name]) == sorted(targets)


def test_samples_with_undecodable_file_name(tmp_path: Path) -> None:
    samples = {"digits": [{"input": os.fsdecode(b"caf\xe9.png")}]}
    write_json(tmp_path / "samples.json", samples)
    assert read_json(tmp_path / "samples.json") == samples


LABELS = ("dog", "cat", "owl")
PAIRS = GrammarPairs(train=40, val=5, test=120)


def text_tasks() -> dict[str, Task]:
    vocabulary = Vocabulary.fit((text for pair in PAIRS.split("train") for text in pair), size=300)
    head = RecurrentHead(vocabulary, D, depth=1, language="fr")
    digits = Task(Digits(), PICTURES, ClassificationHead(Digits.labels, D))
    return {"en-fr": Task(PAIRS, SubwordTokenizer(vocabulary, D), head), "digits": digits}


def test_confusions_agree_with_sklearn() -> None:
    true = ["cat", "dog", "owl", "cat", "cat", "dog"]
    predicted = {0: "cat", 1: "owl", 3: "dog", 4: "cat", 5: "dog"}  # The example of index 2 is unreadable.
    one_hot = {k: functional.one_hot(torch.tensor(LABELS.index(label)), 3).float() for k, label in predicted.items()}
    labels, tags = source_of([Example(None, t) for t in true]), source_of([Example(None, (t,)) for t in true])
    animals = Task(labels, PICTURES, ClassificationHead(LABELS, D))
    tasks = {"animals": animals, "moods": Task(tags, PICTURES, TaggingHead(LABELS, D))}
    expected = confusion_matrix([true[k] for k in predicted], list(predicted.values()), labels=LABELS)
    assert artifacts.confusion_counts(tasks, dict.fromkeys(tasks, one_hot)) == {
        "animals": {"labels": list(LABELS), "counts": expected.tolist()}
    }


def test_confusions_of_many_classes_are_sparse() -> None:
    pairs = torch.randint(5000, (300, 2)).tolist() * 2
    many = ClassificationHead([str(k) for k in range(5000)], D)
    tasks = {"many": Task(source_of([Example(None, str(true)) for true, _ in pairs]), PICTURES, many)}
    predictions = {k: functional.one_hot(torch.tensor(label), 5000).float() for k, (_, label) in enumerate(pairs)}
    confusion = artifacts.confusion_counts(tasks, {"many": predictions})["many"]
    assert confusion["cells"] == [[*pair, count] for pair, count in sorted(Counter(map(tuple, pairs)).items())]
    assert len(json.dumps(confusion)) < 100_000


def test_lengths_skip_unreadable_examples() -> None:
    class Torn(list[Example]):
        def __getitem__(self, index: Any) -> Any:
            if index == 0:
                raise InputError("torn")
            return super().__getitem__(index)

    pairs = PAIRS.split("test")
    torn = {"en-fr": replace(text_tasks()["en-fr"], source=source_of(Torn(pairs)))}
    (groups,) = scores_by_length(torn, {"en-fr": dict.fromkeys(range(1, len(pairs)), "")}).values()
    assert sum(group["examples"] for group in groups) == len(pairs) - 1


def test_lengths_group_and_score_each_example() -> None:
    pairs = list(PAIRS.split("test"))
    lengths = [len(WORD_START.findall(pair.input)) for pair in pairs]
    predictions = {k: pair.target if lengths[k] < 8 else "rien" for k, pair in enumerate(pairs)}
    (groups,) = scores_by_length(text_tasks(), {"en-fr": predictions, "digits": {}}).values()
    assert 3 <= len(groups) <= artifacts.LENGTH_BUCKETS
    assert sum(group["examples"] for group in groups) == len(pairs)
    assert max(group["examples"] for group in groups) < len(pairs) / 2
    assert all(group["to"] < following["from"] for group, following in pairwise(groups))
    for group in groups:
        rows = [k for k, length in enumerate(lengths) if group["from"] <= length <= group["to"]]
        assert group["from"] <= group["words"] <= group["to"]
        assert group["examples"] == len(rows)
        bleu = text_scores([predictions[k] for k in rows], [pairs[k].target for k in rows], "fr")["bleu"].score
        assert group["bleu"] == pytest.approx(bleu)
        assert (group["bleu"] > 99) == (group["to"] < 8)
    of_one_length = {k: pair.target for k, pair in enumerate(pairs) if lengths[k] == lengths[0]}
    (group,) = scores_by_length(text_tasks(), {"en-fr": of_one_length})["en-fr"]
    assert (group["from"], group["to"]) == (lengths[0], lengths[0])


@pytest.mark.parametrize(("period", "bleu"), [(1, 100), (2, 50), (21, 0)])
def test_bleu_of_single_words_reaches_100(period: int, bleu: float) -> None:
    examples = [Example(f"w{k}", f"m{k}") for k in range(20)]
    short = {"en-fr": replace(text_tasks()["en-fr"], source=source_of(examples))}
    predictions = {k: f"m{k}" if (k + 1) % period == 0 else "rien" for k in range(20)}
    (group,) = scores_by_length(short, {"en-fr": predictions})["en-fr"]
    assert group["bleu"] == pytest.approx(bleu, abs=3)


def test_prediction_rows_have_words_and_scores() -> None:
    pairs, labels = list(PAIRS.split("test"))[:2], source_of([Example(None, t) for t in ("dog", "owl", 1)])
    animals = Task(labels, PICTURES, ClassificationHead(LABELS, D))
    tasks = {"animals": animals, "en-fr": text_tasks()["en-fr"]}
    eye = torch.eye(3)
    rows = artifacts.prediction_rows(tasks, {"animals": {2: eye[1], 0: eye[0], 1: eye[0]}, "en-fr": {1: "rien"}})
    assert [row["index"] for row in rows] == [0, 1, 2, 1]
    assert [row["target"] for row in rows] == ["dog", "owl", "cat", pairs[1].target]
    assert [row["score"] for row in rows] == [100.0, 0.0, 100.0, ""]
    assert rows[0]["prediction"] == tasks["animals"].head.describe(eye[0])
    assert (rows[0]["task"], rows[0]["example_id"], rows[3]["prediction"]) == ("animals", "example 0", "rien")
    assert [(row["groups"], row["cluster"]) for row in rows] == [("", "")] * 4


def test_prediction_rows_have_groups_and_clusters() -> None:
    target = GroupedText("chat", ("seen", "seen_fr"), "fr", cluster="cat")
    task = replace(text_tasks()["en-fr"], source=source_of([Example("cat", target)]))
    (row,) = artifacts.prediction_rows({"en-fr": task}, {"en-fr": {0: "rien"}})
    assert (row["groups"], row["cluster"]) == ("seen seen_fr", "cat")


@pytest.mark.slow
def test_intervals_are_over_the_predicted_examples_of_each_task() -> None:
    source = source_of([Example(0, label) for label in "abab"])
    head, right = ClassificationHead("ab", D), torch.eye(2)[0]
    tasks: dict[str, Any] = {name: SimpleNamespace(source=source, head=head) for name in ("one", "two")}
    intervals = artifacts.intervals_of_scores(tasks, {"one": {0: right, 2: right}, "two": {1: right, 3: right}})
    assert intervals["test/one/accuracy"]["high"] == intervals["test/one/macro_f1"]["low"] == pytest.approx(100)
    assert intervals["test/two/accuracy"]["low"] == pytest.approx(0)
