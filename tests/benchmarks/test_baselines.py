"""Baselines choose their settings on validation and are scored once on the test split."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks import baselines
from unifier.data.source import Example, LabeledSource, SplitName
from unifier.datasets.digits import Digits
from unifier.datasets.fsdd import SPEAKERS
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier_tokenizers import Audio

NOISE = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0)) * 0.1


@final
class ConstantTest:
    """A source whose test targets are all equal, so that a choice that reads them would differ."""

    def __init__(self, source: LabeledSource) -> None:
        self.source, self.name, self.labels = source, source.name, source.labels

    def split(self, name: SplitName) -> Sequence[Example]:
        examples = self.source.split(name)
        return [Example(example.input, self.labels[0]) for example in examples] if name == "test" else examples


@final
class HalfTrained:
    """Digits whose training split has only the first five classes."""

    name, labels = "half", Digits.labels

    def split(self, name: SplitName) -> Sequence[Example]:
        return [example for example in Digits().split(name) if name != "train" or example.target in "01234"]


def tone(pitch: int, phase: float, noise: NDArray[np.floating] | float = 0.0) -> NDArray[np.floating]:
    """Return 2,000 samples of a tone."""
    return 0.4 * (np.sin(np.arange(2000) * pitch / 4 + phase) + 0.01 * noise)


@pytest.mark.parametrize("sample_rate", [8000, 16000, 44100])
def test_audio_features_ignore_loudness(sample_rate: int) -> None:
    features = baselines.compute_features(Audio(NOISE, sample_rate))
    assert features.shape == (80,)
    assert np.allclose(features, baselines.compute_features(Audio(NOISE.mean(0), sample_rate)))
    louder = baselines.compute_features(Audio(3 * NOISE, sample_rate))
    assert np.allclose(louder[1:], features[1:], atol=1e-3), "only the mean of the first coefficient has the loudness"
    assert louder[0] > features[0] + 1
    twice = baselines.compute_features(Audio(torch.cat([NOISE, NOISE], 1), sample_rate))
    assert np.abs(twice - features).max() < 0.1 * np.abs(features).max()
    assert np.isfinite(baselines.compute_features(Audio(NOISE[0, :1], sample_rate))).all()
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20
    assert np.allclose(baselines.compute_features(picture), picture.ravel() / 255), "pixels are scaled only"


@pytest.mark.slow
def test_settings_are_chosen_on_validation() -> None:
    scores, constant = (baselines.score_baseline(source) for source in (Digits(), ConstantTest(Digits())))
    assert scores.test > 0.95
    assert constant.test < 0.2
    assert constant._replace(test=0, refit=0) == scores._replace(test=0, refit=0)
    half = baselines.score_baseline(HalfTrained())
    assert half.test < 0.55 < 0.7 < half.refit, "the refit learns from validation"


@pytest.mark.slow
def test_training_pictures_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MAX_PICTURES", 100)
    first, second = baselines.score_baseline(Digits()), baselines.score_baseline(Digits())
    assert first == second
    assert first.trained == 100
    assert first.test > 0.8


@pytest.mark.slow
def test_tags_are_scored_by_roc_auc() -> None:
    scores = baselines.score_baseline(SyntheticMusic(target="tags", train=60, val=30, test=30, seconds=1))
    assert 0.6 < scores.test <= 1


@pytest.mark.slow
def test_main_writes_every_fold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each spoken digit is a tone of its own, so a speaker's digits are predictable from other speakers."""
    folder, out = tmp_path / "fsdd" / "recordings", tmp_path / "out.json"
    folder.mkdir(parents=True)
    for digit in range(3):
        for speaker in SPEAKERS:
            for take in (4, 5, 49):
                samples = tone(digit + 1, take, np.random.RandomState(take).randn(2000))
                soundfile.write(folder / f"{digit}_{speaker}_{take}.wav", samples, 8000)
    for name in ("fsdd", "fsdd_speakers"):
        assert baselines.main([name, "--data", str(tmp_path), "--out", str(out)]) == 0
    assert "| fsdd_speakers | accuracy | 100.0 | 100.0, 100.0, 100.0, 100.0, 100.0, 100.0 |" in capsys.readouterr().out
    scores = json.loads(out.read_text())
    assert [len(folds) for folds in (scores["fsdd"], scores["fsdd_speakers"])] == [1, 6]
    assert scores["fsdd_speakers"][0]["trained"] == 3 * 4 * 3
    assert baselines.main(["esc10", "--data", str(tmp_path), "--out", str(out)]) == 2
    assert "esc10" in capsys.readouterr().err
    assert baselines.main(["fsd", "--out", str(out)]) == 2
    assert "emotify" in capsys.readouterr().err


@pytest.mark.slow
def test_main_accepts_own_folders_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Horizontal and vertical stripes of different sizes, and two tones in a table with folds."""
    rng = np.random.RandomState(0)
    for label in ("horizontal", "vertical"):
        (tmp_path / "stripes" / label).mkdir(parents=True)
        for number in range(30):
            stripes = np.zeros(rng.randint(20, 80, 2), np.uint8)
            (stripes if label == "horizontal" else stripes.T)[rng.randint(8) :: 8] = 255
            Image.fromarray(stripes).save(tmp_path / "stripes" / label / f"{number}.png")
    rows = ["file,label,fold"]
    for number in range(24):
        soundfile.write(tmp_path / f"{number}.wav", tone(number % 2 + 1, 0, rng.randn(2000)), 8000)
        rows.append(f"{number}.wav,{number % 2},{number // 8}")
    (tmp_path / "tones.csv").write_text("\n".join(rows))
    stripes, tones = str(tmp_path / "stripes"), str(tmp_path / "tones.csv")
    assert baselines.main([stripes, tones, "--out", str(tmp_path / "out.json")]) == 0
    assert f"| {tones} | accuracy | 100.0 | 100.0, 100.0, 100.0 |" in capsys.readouterr().out
    scores = json.loads((tmp_path / "out.json").read_text())
    assert len(scores[tones]) == 3
    assert scores[stripes][0]["trained"] == 48
    assert scores[stripes][0]["test"] > 0.5


@pytest.mark.slow
def test_main_sounds_with_covers_are_sounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --out, the scores of own data are printed and not written."""
    monkeypatch.setattr(baselines, "__file__", str(tmp_path / "baselines.py"))
    for number in range(60):
        folder = tmp_path / "tones" / ("low" if number % 2 else "high")
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"{number}.wav", tone(number % 2 + 1, number), 8000)
        Image.new("L", (8, 8)).save(folder / "cover.png")
    with pytest.warns(UserWarning, match=r"2 \.png"):
        assert baselines.main([str(tmp_path / "tones")]) == 0
    assert "tones | accuracy | 100.0 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "baselines.json").read_text()) == {}
