"""What can be encoded of a set is kept though some of it cannot, and that is tried again."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from unifier.data.cache import fit_once, load_or_encode
from unifier.data.encoding import EncodedSplit
from unifier.datasets.audio_folder import AudioFolder
from unifier.heads.classification import ClassificationHead
from unifier_tokenizers import FrameTokenizer, InputError

RATE = 4000


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nine sounds in three folds, of which the third is none."""
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "cache"))
    lines = ["file,label,fold"]
    for k in range(9):
        soundfile.write(tmp_path / f"{k}.wav", np.random.default_rng(k).uniform(-0.5, 0.5, RATE // 4 + 37 * k), RATE)
        lines.append(f"{k}.wav,{'ab'[k % 2]},{k // 3}")
    (tmp_path / "2.wav").write_text("no sound")
    (tmp_path / "sounds.csv").write_text("\n".join(lines))
    return tmp_path / "sounds.csv"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the sounds that are read, in turn; those that begin with a minus are a disk's faults."""
    names: list[str] = []
    whole = soundfile.SoundFile

    def counted(file: Path, *args: Any, **more: Any) -> soundfile.SoundFile:
        if f"-{file.name}" in names:
            raise OSError("the disk is gone")
        names.append(file.name)
        return whole(file, *args, **more)

    monkeypatch.setattr(soundfile, "SoundFile", counted)
    return names


def first_fold(table: Path, **more: Any) -> tuple[EncodedSplit, list[str]]:
    """The first fold, and what is left out of it."""
    source = AudioFolder(table)
    units = load_or_encode(source, FrameTokenizer(8, sample_rate=RATE, n_mels=16), num_workers=0, **more)
    assert units is not None
    return units.split(source.split("test"), ClassificationHead("ab", 8), desc="test", **more)


def content(split: EncodedSplit) -> list[Any]:
    return [[part.tolist() for part in split.units(k)] for k in range(len(split))]


def test_later_runs_read_what_is_bad_alone(table: Path, read: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, left_out = first_fold(table, bad_examples="skip")
    assert (first.indices.tolist(), len(read)) == ([0, 1], 9)
    assert "encoded, and kept for later runs" in capsys.readouterr().out
    read.clear()
    again, same = first_fold(table, bad_examples="skip")
    assert read == ["2.wav"]
    assert content(again) == content(first)
    assert again.indices.tolist() == [0, 1]
    assert same == left_out
    with pytest.raises(InputError, match=r"test: .*2\.wav cannot be read .* \(bad_examples=skip leaves"):
        first_fold(table)


def test_what_was_a_disks_fault_is_left_out_no_longer(table: Path, read: list[str]) -> None:
    read.append("-1.wav")
    assert first_fold(table, bad_examples="skip")[0].indices.tolist() == [0]
    read.clear()
    for times in ("mended", "kept"):
        assert first_fold(table, bad_examples="skip")[0].indices.tolist() == [0, 1], times
    assert len(read) == 1 + 9 + 1


def test_statistics_that_a_full_disk_has_no_room_for_are_not_kept(table: Path, tmp_path: Path) -> None:
    fitted = FrameTokenizer(8, sample_rate=RATE, n_mels=16)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # bytes a file
    try:
        fit_once(fitted, AudioFolder(table))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert fitted.normal.mean.any()
    assert list((tmp_path / "cache" / "encoded").iterdir()) == []
