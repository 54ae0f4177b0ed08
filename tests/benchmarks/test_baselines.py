"""Baselines: validation chooses, the test is looked at once, and the features are what they are said to be."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from benchmarks import baselines
from unifier.data.source import Example, LabeledSource, SplitName
from unifier.datasets.digits import Digits
from unifier.datasets.fsdd import SPEAKERS
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier_tokenizers import Audio

NOISE = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0)) * 0.1


class WithoutTest:
    """A source whose test targets are all the same label, so that looking at them would choose something else."""

    def __init__(self, source: LabeledSource) -> None:
        self.source, self.name, self.labels = source, source.name, source.labels

    def split(self, name: SplitName) -> Sequence[Example]:
        examples = self.source.split(name)
        return [Example(example.input, self.labels[0]) for example in examples] if name == "test" else examples


class WithoutHalf:
    """Digits of which training has seen the first five alone."""

    name, labels = "half", Digits.labels

    def split(self, name: SplitName) -> Sequence[Example]:
        return [one for one in Digits().split(name) if name != "train" or one.target in "01234"]


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_a_sounds_statistics_know_neither_loudness_nor_channels_nor_length(rate: int) -> None:
    features = baselines.describe(Audio(NOISE, rate))
    assert features.shape == (80,)
    assert np.allclose(features, baselines.describe(Audio(NOISE.mean(0), rate)))
    louder = baselines.describe(Audio(3 * NOISE, rate))
    assert np.allclose(louder[1:], features[1:], atol=1e-3), "loudness is in the first coefficient's mean alone"
    assert louder[0] > features[0] + 1
    twice = baselines.describe(Audio(torch.cat([NOISE, NOISE], 1), rate))
    assert np.abs(twice - features).max() < 0.1 * np.abs(features).max()
    assert np.isfinite(baselines.describe(Audio(NOISE[0, :1], rate))).all()


def test_pixels_are_shares_of_full_scale() -> None:
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20
    assert np.allclose(baselines.describe(picture), picture.ravel() / 255)


def test_validation_chooses_and_the_test_does_not() -> None:
    source = Digits()
    figure, blind = baselines.baseline(source), baselines.baseline(WithoutTest(source))
    assert figure.test > 0.95
    assert blind.test < 0.2
    assert blind._replace(test=0, refit=0) == figure._replace(test=0, refit=0)


def test_a_refit_learns_from_validation_too() -> None:
    figure = baselines.baseline(WithoutHalf())
    assert figure.test < 0.55 < 0.7 < figure.refit


def test_no_more_pictures_are_trained_on_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST", 100)
    first, again = baselines.baseline(Digits()), baselines.baseline(Digits())
    assert first == again
    assert first.trained == 100
    assert first.test > 0.8


def test_tags_are_scored_by_the_area_under_the_curve() -> None:
    figure = baselines.baseline(SyntheticMusic(target="tags", train=60, val=30, test=30, seconds=1))
    assert 0.6 < figure.test <= 1


def test_the_command_writes_every_fold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spoken digits that are tones, a tone for each digit: every speaker's are known from the others'."""
    (tmp_path / "fsdd" / "recordings").mkdir(parents=True)
    for digit in range(3):
        for speaker in SPEAKERS:
            for take in (4, 5, 49):
                tone = np.sin(np.arange(2000) * (digit + 1) / 4 + take) + 0.01 * np.random.RandomState(take).randn(2000)
                soundfile.write(tmp_path / "fsdd" / "recordings" / f"{digit}_{speaker}_{take}.wav", 0.4 * tone, 8000)
    out = tmp_path / "out.json"
    for name in ("fsdd", "fsdd_speakers"):
        assert baselines.main([name, "--data", str(tmp_path), "--out", str(out)]) == 0
    assert "| fsdd_speakers | accuracy | 100.0 | 100.0, 100.0, 100.0, 100.0, 100.0, 100.0 |" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert [len(figures) for figures in (found["fsdd"], found["fsdd_speakers"])] == [1, 6]
    assert found["fsdd_speakers"][0]["trained"] == 3 * 4 * 3
    assert baselines.main(["esc10", "--data", str(tmp_path), "--out", str(out)]) == 2
    assert "esc10" in capsys.readouterr().err
    assert baselines.main(["fsd", "--out", str(out)]) == 2
    assert "neither a place nor one of the sets emotify" in capsys.readouterr().err


def test_what_lies_in_folders_has_one_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stripes this way and that, of unlike sizes, and two tones in a table with folds."""
    draw = np.random.RandomState(0)
    for label in ("across", "down"):
        (tmp_path / "stripes" / label).mkdir(parents=True)
        for number in range(30):
            stripes = np.zeros(draw.randint(20, 80, 2), np.uint8)
            (stripes if label == "across" else stripes.T)[draw.randint(8) :: 8] = 255
            Image.fromarray(stripes).save(tmp_path / "stripes" / label / f"{number}.png")
    rows = ["file,label,fold"]
    for number in range(24):
        tone = np.sin(np.arange(2000) * (number % 2 + 1) / 4) + 0.01 * draw.randn(2000)
        soundfile.write(tmp_path / f"{number}.wav", 0.4 * tone, 8000)
        rows.append(f"{number}.wav,{number % 2},{number // 8}")
    (tmp_path / "tones.csv").write_text("\n".join(rows))
    stripes, tones = str(tmp_path / "stripes"), str(tmp_path / "tones.csv")
    assert baselines.main([stripes, tones, "--out", str(tmp_path / "out.json")]) == 0
    assert f"| {tones} | accuracy | 100.0 | 100.0, 100.0, 100.0 |" in capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found[tones]) == 3
    assert found[stripes][0]["trained"] == 48
    assert found[stripes][0]["test"] > 0.5


def test_sounds_with_a_picture_among_them_are_sounds_and_of_yours_nothing_is_kept_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "__file__", str(tmp_path / "baselines.py"))
    for number in range(60):
        label = "low" if number % 2 else "high"
        (place := tmp_path / "tones" / label).mkdir(parents=True, exist_ok=True)
        soundfile.write(place / f"{number}.wav", 0.4 * np.sin(np.arange(2000) * (number % 2 + 1) / 4 + number), 8000)
        Image.new("L", (8, 8)).save(place / "cover.png")
    with pytest.warns(UserWarning, match=r"left out are .* \(2 \.png\)"):
        assert baselines.main([str(tmp_path / "tones")]) == 0
    assert "tones | accuracy | 100.0 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "baselines.json").read_text()) == {}
