"""ESC-10 and ESC-50: both layouts, and five folds that share no recording."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from unifier.data.dataset import Examples
from unifier.data.source import SPLITS
from unifier.datasets.esc import ESC, ESC_FOLDERS
from unifier_tokenizers import InputError

Make = Callable[[Path], ESC]
PathsOf = Callable[[Examples[Any]], list[Path]]
Name = Literal["esc10", "esc50"]
Makers = dict[Name, Make]


@pytest.fixture
def makers(write_tone: Callable[..., Path]) -> Makers:
    def esc10(folder: Path) -> ESC:
        for number, name in enumerate(ESC_FOLDERS):
            for fold in range(1, 6):
                for take in "AB":
                    write_tone(folder / name / f"{fold}-{100 * fold + number}-{take}.ogg", fold / 10)
            (folder / name / "notes.txt").write_text("not a sound")
        return ESC(data=folder)

    def esc50(folder: Path) -> ESC:
        rows: list[Sequence[object]] = [("filename", "fold", "target", "category", "esc10", "src_file", "take")]
        for target, (category, in_esc10) in enumerate((("cat", False), ("dog", True), ("rain", True))):
            for fold in range(1, 6):
                file = f"{fold}-{10 * fold + target}-A-{target}.wav"
                write_tone(folder / "audio" / file, fold / 10)
                rows.append((file, fold, target, category, in_esc10, 10 * fold + target, "A"))
        (folder / "meta").mkdir()
        with (folder / "meta" / "esc50.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        return ESC("esc50", data=folder)

    return {"esc10": esc10, "esc50": esc50}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["esc10", "esc50"])
def test_esc_keeps_contract(makers: Makers, name: Name, check_source: Callable[..., None]) -> None:
    check_source(makers[name], named=name == "esc10")


@pytest.mark.parametrize("name", ["esc10", "esc50"])
def test_esc_folds_share_no_recording(makers: Makers, name: Name, tmp_path: Path, paths_of: PathsOf) -> None:
    makers[name](tmp_path / "data")
    folds = [ESC(name, fold=fold, data=tmp_path / "data") for fold in range(1, 6)]
    for fold, following in zip(folds, folds[1:] + folds[:1], strict=True):
        recordings = [{path.name.split("-")[1] for path in paths_of(fold.split(part))} for part in SPLITS]
        assert sum(map(len, recordings)) == len(set.union(*recordings))
        assert paths_of(fold.split("val")) == paths_of(following.split("test"))


def test_esc10_is_part_of_esc50(makers: Makers, tmp_path: Path) -> None:
    assert makers["esc50"](tmp_path / "data").labels == ("cat", "dog", "rain")
    part = ESC("esc10", data=tmp_path / "data")
    assert part.labels == ("dog", "rain")
    assert set(part.labels) < set(makers["esc10"](tmp_path / "folders").labels) == set(ESC_FOLDERS.values())


def test_esc_refuses_recording_in_two_folds(makers: Makers, tmp_path: Path, write_tone: Callable[..., Path]) -> None:
    source = makers["esc10"](tmp_path / "ten")
    write_tone(tmp_path / "ten" / "002 - Rain" / "4-100-A.ogg", 0.1)
    with pytest.raises(InputError, match="recording '100' is in fold 1 and in fold 4"):
        source.split("train")
    source = makers["esc50"](tmp_path / "fifty")
    table = tmp_path / "fifty" / "meta" / "esc50.csv"
    table.write_text(table.read_text().replace(",51,A", ",12,A"))  # The dog of fold 5.
    with pytest.raises(InputError, match="recording '12' is in fold 5 and in fold 1"):
        source.split("train")
