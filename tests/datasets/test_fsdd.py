"""FSDD: the official split, one speaker left out, and files that are wrong."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import pytest
import soundfile

from unifier.data.dataset import Examples
from unifier.data.source import SPLITS
from unifier.datasets.fsdd import FSDD, SPEAKERS
from unifier_tokenizers import InputError


def tone(path: Path, level: float = 0.5) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.full(80, level), 8000)


def spoken(folder: Path) -> None:
    for digit in range(3):
        for number, speaker in enumerate(SPEAKERS):
            for take in (4, 5, 49):
                tone(folder / f"{digit}_{speaker}_{take}.wav", digit / 20 + number / 100 + take / 1000)
    (folder / "readme.txt").write_text("no recording")


def fsdd(folder: Path) -> FSDD:
    spoken(folder / "recordings")
    return FSDD(data=folder)


def fsdd_packed(folder: Path) -> FSDD:
    spoken(folder / "recordings")
    with ZipFile(folder / "recordings.zip", "w") as archive:
        for path in sorted((folder / "recordings").iterdir()):
            archive.writestr(ZipInfo(f"recordings/{path.name}"), path.read_bytes())  # with no time in it
    shutil.rmtree(folder / "recordings")
    return FSDD(data=folder)


@pytest.mark.parametrize("make", [fsdd, fsdd_packed])
def test_the_contract(make: Callable[[Path], Any], keeps_the_contract: Callable[..., None]) -> None:
    keeps_the_contract(make, named=make is fsdd)


def speakers(split: Examples[Any]) -> set[str]:
    return {Path(split.example_id(index)).name.split("_")[1] for index in range(len(split))}


@pytest.mark.parametrize("make", [fsdd, fsdd_packed])
def test_fsdd_by_number_and_by_speaker(make: Callable[[Path], FSDD], tmp_path: Path) -> None:
    source = make(tmp_path / "data")
    for name, takes in zip(SPLITS, (49, 5, 4), strict=True):
        split = source.split(name)
        assert len(split) == 3 * 6
        assert speakers(split) == set(SPEAKERS)
        for index, (sound, digit) in enumerate(split):
            assert re.search(rf"/{digit}_[a-z]+_{takes}\.wav$", split.example_id(index))
            assert (sound.waveform.shape, sound.rate) == ((80,), 8000)
    alone = FSDD(speaker="yweweler", data=tmp_path / "data")
    assert speakers(alone.split("test")) == {"yweweler"}
    assert speakers(alone.split("val")) == {"george"}
    assert speakers(alone.split("train")) == set(SPEAKERS[1:5])
    with pytest.raises(InputError, match="no speaker 'theodor': choose one of george"):
        FSDD(speaker="theodor")


def test_fsdd_files_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    with pytest.raises(InputError, match=r"has no recordings such as 7_theo_49\.wav"):
        FSDD(data=tmp_path).split("train")
    tone(tmp_path / "recordings" / "1_nobody_2.wav")
    with pytest.raises(InputError, match=r"no speaker \(.*1_nobody_2\.wav\) 'nobody'"):
        FSDD(data=tmp_path).split("train")
