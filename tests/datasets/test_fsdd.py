"""FSDD: the official split, one speaker left out, and wrong files."""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import pytest

from unifier.data.dataset import Examples
from unifier.data.source import SPLITS
from unifier.datasets.fsdd import FSDD, SPEAKERS, FSDDStrings
from unifier_tokenizers import InputError

Make = Callable[[Path], FSDD]
PathsOf = Callable[[Examples[Any]], list[Path]]


@pytest.fixture
def makers(write_tone: Callable[..., Path]) -> dict[str, Make]:
    def folder_source(folder: Path) -> FSDD:
        recordings = folder / "recordings"
        for digit in range(3):
            for number, speaker in enumerate(SPEAKERS):
                for take in (4, 5, 49):
                    level = digit / 20 + number / 100 + take / 1000
                    write_tone(recordings / f"{digit}_{speaker}_{take}.wav", level, rate=8000)
        (recordings / "readme.txt").write_text("not a recording")
        return FSDD(data=folder)

    def zip_source(folder: Path) -> FSDD:
        source = folder_source(folder)
        with ZipFile(folder / "recordings.zip", "w") as archive:
            for path in sorted((folder / "recordings").iterdir()):
                archive.writestr(ZipInfo(f"recordings/{path.name}"), path.read_bytes())  # ZipInfo has a fixed date.
        shutil.rmtree(folder / "recordings")
        return source

    return {"folder": folder_source, "zip": zip_source}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_fsdd_keeps_contract(makers: dict[str, Make], kind: str, check_source: Callable[..., None]) -> None:
    check_source(makers[kind], named=kind == "folder")


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_fsdd_splits_by_number_or_speaker(
    makers: dict[str, Make], kind: str, tmp_path: Path, paths_of: PathsOf
) -> None:
    def speakers(split: Examples[Any]) -> set[str]:
        return {path.name.split("_")[1] for path in paths_of(split)}

    source = makers[kind](tmp_path / "data")
    for name, take in zip(SPLITS, (49, 5, 4), strict=True):
        split = source.split(name)
        assert (len(split), speakers(split)) == (3 * 6, set(SPEAKERS))
        for path, (sound, digit) in zip(paths_of(split), split, strict=True):
            assert re.fullmatch(rf"{digit}_[a-z]+_{take}\.wav", path.name)
            assert (sound.waveform.shape, sound.sample_rate) == ((80,), 8000)
    alone = FSDD(speaker="yweweler", data=tmp_path / "data")
    assert (speakers(alone.split("test")), speakers(alone.split("val"))) == ({"yweweler"}, {"george"})
    assert speakers(alone.split("train")) == set(SPEAKERS[1:5])


@pytest.mark.slow
def test_strings_are_composed_within_a_speaker(makers: dict[str, Make], tmp_path: Path) -> None:
    makers["zip"](tmp_path)
    source, again = (FSDDStrings("theo", train=20, held_out=5, lengths=(2, 4), data=tmp_path) for _ in range(2))
    speakers: dict[str, set[str]] = {}
    for name in SPLITS:
        split = source.split(name)
        assert len(split) == (20 if name == "train" else 5)
        speakers[name] = {split.example_id(k).split()[3] for k in range(len(split))}
        for (sound, digits), (same, _) in zip(split, again.split(name), strict=True):
            assert 2 <= len(digits) <= 4
            assert set(digits) <= set("012")
            samples = np.asarray(sound.waveform)
            assert 80 * len(digits) <= len(samples) <= (80 + 0.3 * 8000) * len(digits)
            assert (samples == np.asarray(same.waveform)).all()
    assert (speakers["test"], len(speakers["val"])) == ({"theo"}, 1)
    assert not speakers["train"] & (speakers["val"] | speakers["test"])
    assert source.sha256 == again.sha256 != FSDDStrings("theo", train=21, data=tmp_path).sha256
    with pytest.raises(InputError, match="lengths"):
        FSDDStrings(lengths=(3, 2))
    with pytest.raises(InputError, match="longer=\\(4, 5\\)"):
        FSDDStrings(lengths=(2, 4), longer=(4, 5))
    longer = FSDDStrings("theo", train=20, held_out=6, lengths=(2, 4), longer=(5, 6), data=tmp_path)
    assert [len(target) > 4 for _, target in longer.split("test")] == [False] * 6 + [True] * 2
    assert max(len(target) for _, target in longer.split("train")) <= 4
    constant = FSDDStrings("theo", train=5, held_out=5, pauses=(0.1, 0.1), data=tmp_path)
    for sound, digits in constant.split("train"):
        assert np.shape(sound.waveform) == ((80 + 800) * len(digits),)
    assert constant.sha256 != FSDDStrings("theo", train=5, held_out=5, data=tmp_path).sha256
    for wrong in ((0.2, 0.1), (-0.1, 0.1), (0.1, math.inf)):
        with pytest.raises(InputError, match="pauses="):
            FSDDStrings(pauses=wrong)


def test_fsdd_refuses_files(tmp_path: Path, write_tone: Callable[..., Path]) -> None:
    (tmp_path / "recordings").mkdir()
    with pytest.raises(InputError, match=r"7_theo_49\.wav"):
        FSDD(data=tmp_path).split("train")
    write_tone(tmp_path / "recordings" / "1_nobody_2.wav")
    with pytest.raises(InputError, match=r"1_nobody_2\.wav.*'nobody'"):
        FSDD(data=tmp_path).split("train")
