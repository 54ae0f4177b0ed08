"""The model card: its code runs, its numbers are the facts, and its steps repeat the preprocessing."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from torch import Tensor
from torch.nn import functional

from unifier import (
    Audio,
    ClassificationHead,
    FrameTokenizer,
    Mixture,
    PatchTokenizer,
    SampleTokenizer,
    SeriesTokenizer,
    SubwordTokenizer,
    TaggingHead,
    Tokenizer,
    Units,
    VideoTokenizer,
    Vocabulary,
    WaveformTokenizer,
    create_trunk,
)
from unifier.data.inputs import ImageReader, SeriesReader, reader_of
from unifier.datasets import ESC, MNIST
from unifier.models.card import write_card
from unifier.models.folder import ModelTask, StoredModel
from unifier.models.preprocessing import Names, describe_preprocessing

D = 12
VOCABULARY = Vocabulary.fit(["one two three"], size=280)
MIXTURE = Mixture({"t": SubwordTokenizer(VOCABULARY, D), "i": PatchTokenizer(D)})
DATA = {"name": "mine", "train": 60, "val": 20, "test": 1000, "skipped": {"test": 7}, "sha256": "abc", "copies": 3}
FACTS = {
    "scores": {"test/a/accuracy": 97.25, "test/a/macro_f1": "nan"},
    "intervals": {"test/a/accuracy": {"low": 91.5, "high": 99.75, "method": "Wilson"}},
    "data": {"a": {**DATA, "license": "CC BY 4.0"}, "b": DATA},
    "seed": 5,
    "parameters": {"total": 10},
    "budget": {"tokens": 1234567.0, "flops": 2.5e12},
    "settings": {"dim": 12, "data": "x|y<script>"},
    "versions": {"torch": "2.11"},
}


class OwnTokenizer(Tokenizer):
    def encode(self, raw: Any) -> Units:
        return Units(torch.tensor(raw), torch.arange(len(raw))[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return torch.zeros(len(values), self.dim, values.shape[-1])


def card_of(tokenizer: Tokenizer, *others: Tokenizer, head: Any = None) -> str:
    tasks = {
        name: ModelTask(part, head or ClassificationHead(["cat", "dog"], D), reader_of(None, part), longest=77)
        for name, part in zip("ab", (tokenizer, *others), strict=False)
    }
    return write_card(StoredModel("small", create_trunk("transformer", D, 1, 2, D), tasks, 256, FACTS))


@pytest.mark.parametrize(
    ("tokenizers", "example"),
    [
        ([PatchTokenizer(D)], '["picture.png"]'),
        ([WaveformTokenizer(D)], '["sound.wav"]'),
        ([SampleTokenizer(D)], '["sound.wav"]'),
        ([VideoTokenizer(D)], '["clip.gif"]'),
        ([SeriesTokenizer(D, context=20, patch=4, stride=4)], "[[[0.5] * 20]]"),
        ([SubwordTokenizer(VOCABULARY, D), PatchTokenizer(D)], '["a text"], task="a"'),
        (
            [Mixture({"t": SubwordTokenizer(VOCABULARY, D), "i": PatchTokenizer(D)})],
            '[{"t": "a text", "i": "picture.png"}]',
        ),
        ([OwnTokenizer(D)], "[value]"),
    ],
)
def test_use_fits_the_modality(tokenizers: list[Tokenizer], example: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", card_of(*tokenizers), flags=re.DOTALL)
    assert len(code.splitlines()) == 3
    assert f"model.predict({example})" in code
    assert ("classes=[OwnTokenizer]" in code) == isinstance(tokenizers[0], OwnTokenizer)
    compile(code, "card", "exec")


def test_card_names_the_trained_models_and_their_cost() -> None:
    cost = {"tokens": 5000, "flops": 3e12, "seconds": 0.5}
    lineage = {"start": "words|", "sha256": "f" * 64, "tokenizers": ["a"], "teachers": ["big"], "pretraining": cost}
    task = ModelTask(PatchTokenizer(D), ClassificationHead(["cat", "dog"], D), ImageReader(3), longest=77)
    model = StoredModel(
        "small", create_trunk("transformer", D, 1, 2, D), {"a": task}, 256, FACTS | {"lineage": lineage}
    )
    text = write_card(model)
    for named in ("words\\|", "f" * 64, "tokenizers of a", "| big |", "tokens=5,000", "flops=3e+12", "seconds=0.5"):
        assert named in text
    assert "started from" not in card_of(PatchTokenizer(D))


def test_card_has_the_facts() -> None:
    text = card_of(PatchTokenizer(D), SubwordTokenizer(VOCABULARY, D))
    lines = text.splitlines()
    assert "| test/a/accuracy | 97.25 | 91.50 to 99.75 | Wilson | 993 |" in lines
    assert "| its license | CC BY 4.0 |" in lines
    assert "| its license | not stated |" in lines
    for fact in ("`abc`", "x\\|y&lt;script>", "tokens=1,234,567", "flops=2.5e+12", "cat, dog", "| seed | 5 |", "77"):
        assert fact in text
    card: Any = ModelCard(text).data
    assert (card.library_name, card.pipeline_tag, card.tags) == (
        "unifier",
        None,
        ["unifier", "image", "text", "classification"],
    )
    assert "pipeline_tag: image-classification" in card_of(PatchTokenizer(D)).splitlines()
    assert "any number of 2 tags" in card_of(PatchTokenizer(D), head=TaggingHead("ab", D))


def test_members_of_a_mixture_are_named() -> None:
    assert "a text (t) and a picture (i)" in card_of(MIXTURE)


def test_series_channels_are_named() -> None:
    tokenizer = SeriesTokenizer(D, context=20, patch=4, stride=4)
    for joint in (False, True):
        reader = SeriesReader(("load", "heat"), (0, 0), (1, 1), context=20, joint=joint)
        assert "load, heat" in " ".join(describe_preprocessing(tokenizer, reader, Names()))


def numbers(step: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?", step)]


def test_picture_steps_repeat_the_encoding() -> None:
    """Read the sizes and the statistics from the steps, and compute the tokens from them."""
    tokenizer = PatchTokenizer(D, patch=4, stride=3, channels=1).fit([np.arange(100, dtype=np.uint8).reshape(10, 10)])
    steps = describe_preprocessing(tokenizer, ImageReader(1, size=9), Names("tokenizers.a"))
    size = int(numbers(steps[2])[0])
    patch, _, stride = map(int, numbers(steps[3])[:3])
    _, mean, std = numbers(steps[4])
    assert size == 9
    raw = np.random.default_rng(0).integers(0, 256, (7, 10), np.uint8)
    values = torch.from_numpy(raw).unfold(0, patch, stride).unfold(1, patch, stride).reshape(-1, patch * patch).T
    units = tokenizer.encode(raw)
    assert torch.equal(values, units.values)
    columns = ((values.T / 255 - mean) / std)[None]
    expected = tokenizer.encoding(tokenizer.project(columns, units.positions[None]), units.positions[None])
    torch.testing.assert_close(tokenizer.embed(units.values[None], units.positions[None]), expected)


def test_sound_steps_repeat_the_encoding() -> None:
    wave = torch.from_numpy(np.random.default_rng(0).normal(size=8000).astype(np.float32) / 4)
    tokenizer = FrameTokenizer(D, sample_rate=8000, n_mels=20, patch=(4, 10), normalize="whole").fit(
        [Audio(wave, 8000)]
    )
    steps = describe_preprocessing(tokenizer, reader_of(None, tokenizer), Names("tokenizers.a"))
    rate = int(numbers(steps[2])[0])
    window, fft, hop = map(int, numbers(steps[3])[:3])
    bands, _, top, _ = map(int, numbers(steps[4])[:4])
    floor = numbers(steps[4])[-1]
    frames, height, step, rise, fill = numbers(steps[5])[:5]
    mean, std = numbers(steps[6])
    assert (rate, top) == (8000, 4000)
    import torchaudio

    power = torchaudio.transforms.MelSpectrogram(rate, fft, window, hop, n_mels=bands, center=False)(wave)
    plane = power.clamp(min=floor).log().T
    assert fill == pytest.approx(math.log(floor), abs=1e-5)
    plane = functional.pad(plane, (0, 0, 0, int(-(len(plane) - frames) % step)), value=fill)
    tiles = plane.unfold(0, int(frames), int(step)).unfold(1, int(height), int(rise))
    units = tokenizer.encode(Audio(wave, 8000))
    torch.testing.assert_close(tiles.reshape(-1, int(frames * height)).T, units.values, atol=1e-4, rtol=1e-4)
    assert (mean, std) == pytest.approx((float(tokenizer.norm.mean[0]), float(tokenizer.norm.std[0])), rel=1e-6)


@pytest.mark.parametrize("kind", ["band", "example"])
def test_every_tokenizer_has_steps(kind: Any) -> None:
    members = {
        "t": SubwordTokenizer(VOCABULARY, D, positions="learned", length=33),
        "w": WaveformTokenizer(D, normalize=kind),
    }
    tokenizer = Mixture({**members, "own": OwnTokenizer(D)})
    text = "\n".join(describe_preprocessing(tokenizer, reader_of(None, tokenizer), Names("tokenizers.a")))
    for fact in ("Member 2, `w`", "members.w.bank", "`OwnTokenizer`", "at most 33", f"{len(VOCABULARY)} entries"):
        assert fact in text


def test_own_sources_state_their_license() -> None:
    assert [ESC("esc10").license, ESC("esc50").license, MNIST("fashion_mnist").license] == [
        "CC BY 3.0",
        "CC BY-NC 3.0",
        "MIT",
    ]
