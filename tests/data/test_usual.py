"""What is usual in a set is read from headers where there are any, and is the same for all folds."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

import unifier.data.statistics
from unifier.data.readers import open_audio
from unifier.data.source import Example, SplitName
from unifier.data.statistics import max_duration, median_duration
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier_tokenizers import Audio, InputError


def table(folder: Path, seconds: list[float]) -> Path:
    rows = ["file,label"]
    for number, length in enumerate(seconds):
        soundfile.write(folder / f"{number:03}.wav", np.zeros((round(1000 * length), 2)), 1000)
        rows.append(f"{number:03}.wav,x")
    (folder / "table.csv").write_text("\n".join(rows))
    return folder / "table.csv"


def test_no_file_is_decoded_and_a_broken_one_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_few_of_many_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, asked = AudioFolder(table(tmp_path, [1.0] * 20 + [2.0] * 40)), list[Path]()
    monkeypatch.setattr(unifier.data.statistics, "open_sound", lambda path: (asked.append(path), open_audio(path))[1])
    assert median_duration(source, max_examples=10) == 2
    assert len(asked) == 10


def test_the_longest_of_many_is_found_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = table(tmp_path, [1.0] * 30 + [600.0] + [2.0] * 30)
    (tmp_path / "059.wav").unlink()
    asked = list[Path]()
    monkeypatch.setattr(unifier.data.statistics, "open_sound", lambda path: (asked.append(path), open_audio(path))[1])
    assert max_duration(AudioFolder(place), max_files=10) == 600
    assert len(asked) == 10
    assert median_duration(AudioFolder(place)) < 3


class Listed:
    """Sounds that no file holds, of 0.5, 1 and 3 s."""

    name = "listed"

    def split(self, name: SplitName) -> list[Example]:
        return [Example(Audio(np.zeros((2, 500 * k), np.float32), 1000), None) for k in (1, 2, 6)]


def test_sounds_without_a_file_are_read_unless_the_set_says_how_long_they_are() -> None:
    assert (median_duration(Listed()), max_duration(Listed())) == (1, 3)
    music = SyntheticMusic(seconds=4.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(SyntheticMusic, "split")
        assert (median_duration(music), max_duration(music)) == (4, 4)


def test_a_split_that_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        median_duration(AudioFolder(tmp_path / "none.csv"))
