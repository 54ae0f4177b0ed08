"""Statistics of a data set are read from headers if possible, and are equal for all folds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from unifier.data import statistics
from unifier.data.audio_files import open_audio
from unifier.data.source import Example
from unifier.data.statistics import max_duration, median_duration
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier_tokenizers import Audio, InputError


def table(folder: Path, seconds: list[float]) -> Path:
    """Write silent sounds of these lengths and a table of them."""
    rows = ["file,label"]
    for number, length in enumerate(seconds):
        soundfile.write(folder / f"{number:03}.wav", np.zeros((round(1000 * length), 2)), 1000)
        rows.append(f"{number:03}.wav,x")
    (folder / "table.csv").write_text("\n".join(rows))
    return folder / "table.csv"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Log the sounds that are opened."""
    paths = list[Path]()
    monkeypatch.setattr(statistics, "open_audio", lambda path: (paths.append(path), open_audio(path))[1])
    return paths


def test_median_is_read_from_readable_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = AudioFolder(table(tmp_path, [1.0, 5.0, 2.0, 9.0, 3.0]))
    with monkeypatch.context() as patch:
        patch.delattr(soundfile.SoundFile, "read")
        assert median_duration(source) == 3
    (tmp_path / "003.wav").write_text("no sound")
    (tmp_path / "001.wav").unlink()
    assert median_duration(source) == 2
    for path in tmp_path.glob("*.wav"):
        path.unlink()
    assert median_duration(source) == 0
    with pytest.raises(InputError, match=r"none\.csv"):
        median_duration(AudioFolder(tmp_path / "none.csv"))


@pytest.mark.slow
def test_statistics_open_a_sample(tmp_path: Path, opened: list[Path]) -> None:
    assert median_duration(AudioFolder(table(tmp_path, [1.0] * 20 + [2.0] * 40)), max_examples=10) == 2
    assert len(opened) == 10
    opened.clear()
    source = AudioFolder(table(tmp_path, [1.0] * 30 + [600.0] + [2.0] * 30))
    (tmp_path / "059.wav").unlink()
    assert (max_duration(source, max_files=10), len(opened)) == (600, 10)  # The largest files are opened.
    assert median_duration(source) < 3


def test_sounds_without_file_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sounds = [Example(Audio(np.zeros((2, 500 * k), np.float32), 1000), None) for k in (1, 2, 6)]  # 0.5, 1 and 3 s
    listed: Any = SimpleNamespace(name="listed", split=lambda _: sounds)
    assert (median_duration(listed), max_duration(listed)) == (1, 3)
    music = SyntheticMusic(seconds=4.0)  # This source declares the length of its sounds.
    monkeypatch.delattr(SyntheticMusic, "split")
    assert (median_duration(music), max_duration(music)) == (4, 4)
