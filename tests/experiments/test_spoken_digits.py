"""The place of a named digit: its tokens, and a short run whose model answers a sound."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import unifier as uf
from unifier.config import load_experiment
from unifier.datasets import DigitSpans, FSDDStrings, find_floor
from unifier.heads.question_answering import CONTEXT, QUESTION
from unifier_tokenizers import InputError

RATE, SAMPLES = 8000, 1600


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a loud tone of 0.2 seconds for each of three digits of each speaker."""
    folder = tmp_path / "fsdd" / "recordings"
    folder.mkdir(parents=True)
    for speaker in FSDDStrings.speakers:
        for digit in range(3):
            soundfile.write(folder / f"{digit}_{speaker}_7.wav", np.sin(np.arange(SAMPLES) * (digit + 1) / 4), RATE)
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    return folder


def test_span_has_the_length_of_the_digit_and_begins_in_its_sound(recordings: Path) -> None:
    strings = FSDDStrings(train=9, held_out=9, lengths=(1, 3))
    source = DigitSpans(strings, 0.04)
    for example, string in zip(source.split("train"), strings.split("train"), strict=True):
        assert len(example.target.spans) == string.target.count(example.input[QUESTION]) > 0
        np.testing.assert_array_equal(example.input[CONTEXT].waveform, string.input.waveform)
        for first, last in example.target.spans:
            assert last - first + 1 in (SAMPLES // 320 - 1, SAMPLES // 320)
            assert (last + 1) * 320 <= len(string.input.waveform)
    again = DigitSpans(strings, 0.04).split("train")
    assert [each.input[QUESTION] for each in again] == [each.input[QUESTION] for each in source.split("train")]


def test_first_digit_begins_with_the_sound(recordings: Path) -> None:
    (example, *_) = DigitSpans(FSDDStrings(train=1, held_out=1, lengths=(1, 1)), 0.04).split("train")
    assert example.target.spans == ((0, SAMPLES // 320 - 1),)
    with pytest.raises(InputError, match="token_seconds=0"):
        DigitSpans(FSDDStrings(), 0)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_recipe_trains_and_its_model_points_into_a_sound(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FSDDStrings.__init__.__kwdefaults__, "held_out", 9)  # pyright: ignore[reportArgumentType]
    settings: dict[str, Any] = {"train": 9, "lengths": (1, 2), "dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16}
    options: dict[str, Any] = {
        "steps": 2,
        "num_validations": 1,
        "precision": "float32",
        "out": tmp_path,
        "track": "off",
    }
    [result] = uf.run(load_experiment("spoken_digits"), **settings, **options)
    assert 0 <= result.metrics["test/fsdd_spans/f1"] <= 100
    samples = json.loads((result.folder / "samples.json").read_text())["fsdd_spans"]
    assert samples[0]["question"].isdigit()
    assert samples[0]["target_image"].startswith("data:image/png")
    assert samples[0]["prediction_image"].startswith("data:image/png")
    assert samples[0]["target_image"] in (result.folder / "report.html").read_text()
    [answer] = uf.load(result.folder).predict([{QUESTION: "1", CONTEXT: str(recordings / "1_theo_7.wav")}])
    begin, end = map(float, answer.split("-"))
    assert 0 <= begin < end < SAMPLES / 8000 + 0.04
    (task,) = uf.load(result.folder).experiment.tasks.values()
    assert 20 < find_floor(task.source, task.tokenizer, task.head).measure() < 100
