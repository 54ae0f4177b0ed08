"""ESC-10 and ESC-50: both layouts, five folds, and no recording in two of them."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import soundfile

from unifier.data.dataset import Examples
from unifier.data.source import SPLITS
from unifier.datasets.esc import ESC
from unifier.datasets.esc import ESC_FOLDERS as ESC10
from unifier_tokenizers import InputError

Size = Literal["esc10", "esc50"]


def tone(path: Path, level: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # WAV whatever its name: an Ogg file holds a number that is drawn anew each time.
    soundfile.write(path, np.full(80, level), 44100, format="WAV")


def esc10(folder: Path) -> ESC:
    for number, name in enumerate(ESC10):
        for fold in range(1, 6):
            for take in "AB":
                tone(folder / name / f"{fold}-{100 * fold + number}-{take}.ogg", level=fold / 10)
        (folder / name / "notes.txt").write_text("no sound")
    return ESC(data=folder)


def esc50(folder: Path) -> ESC:
    rows: list[Sequence[object]] = [("filename", "fold", "target", "category", "esc10", "src_file", "take")]
    for target, (category, small) in enumerate((("cat", False), ("dog", True), ("rain", True))):
        for fold in range(1, 6):
            file = f"{fold}-{10 * fold + target}-A-{target}.wav"
            tone(folder / "audio" / file, level=fold / 10)
            rows.append((file, fold, target, category, small, 10 * fold + target, "A"))
    (folder / "meta").mkdir()
    with (folder / "meta" / "esc50.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return ESC("esc50", data=folder)


@pytest.mark.parametrize("make", [esc10, esc50])
def test_the_contract(make: Callable[[Path], Any], keeps_the_contract: Callable[..., None]) -> None:
    keeps_the_contract(make, named=make is esc10)


def clips(split: Examples[Any]) -> list[str]:
    return [Path(split.example_id(index)).name for index in range(len(split))]


@pytest.mark.parametrize(("make", "name"), [(esc10, "esc10"), (esc50, "esc50")])
def test_each_fold_is_tested_on_and_the_next_validates(make: Callable[[Path], ESC], name: Size, tmp_path: Path) -> None:
    make(tmp_path / "data")
    folds = [ESC(name, fold=fold, data=tmp_path / "data") for fold in range(1, 6)]
    for fold, following in zip(folds, folds[1:] + folds[:1], strict=True):
        recordings = [{clip.split("-")[1] for clip in clips(fold.split(part))} for part in SPLITS]
        assert sum(map(len, recordings)) == len(set.union(*recordings)), "a recording is in two splits"
        assert clips(fold.split("val")) == clips(following.split("test"))
    with pytest.raises(InputError, match="no fold 0: choose one of 1, 2, 3, 4, 5"):
        ESC(fold=0)
    with pytest.raises(InputError, match="no set 'esc'"):
        ESC("esc")  # pyright: ignore[reportArgumentType]


def test_esc10_is_a_part_of_esc50(tmp_path: Path) -> None:
    assert esc50(tmp_path / "data").labels == ("cat", "dog", "rain")
    part = ESC("esc10", data=tmp_path / "data")
    assert part.labels == ("dog", "rain")
    assert set(part.labels) < set(esc10(tmp_path / "own").labels) == set(ESC10.values())


def test_esc_folds_that_leak_a_recording(tmp_path: Path) -> None:
    esc10(tmp_path / "data")
    tone(tmp_path / "data" / "002 - Rain" / "4-100-A.ogg", 0.1)
    with pytest.raises(InputError, match=r"recording '100' is in fold 1 and in fold 4"):
        ESC(data=tmp_path / "data").split("train")
    esc50(tmp_path / "fifty")
    listed = tmp_path / "fifty" / "meta" / "esc50.csv"
    listed.write_text(listed.read_text().replace(",51,A", ",12,A"))  # the dog of fold 5
    with pytest.raises(InputError, match=r"recording '12' is in fold 5 and in fold 1"):
        ESC("esc50", data=tmp_path / "fifty").split("train")
