"""GTZAN: split by number or by lists."""

from collections.abc import Callable
from pathlib import Path

import pytest

from unifier.data.source import SPLITS
from unifier.datasets.gtzan import GTZAN
from unifier_tokenizers import InputError

Make = Callable[[Path], GTZAN]

split_by_number = pytest.mark.filterwarnings("ignore:.* gtzan is split by number")


@pytest.fixture
def make(write_tone: Callable[..., Path]) -> Make:
    def make(folder: Path) -> GTZAN:
        for genre in GTZAN.labels:
            for number in (0, 54, 79, 80, 89, 90, 99):
                write_tone(folder / "genres_original" / genre / f"{genre}.{number:05}.wav", number / 100)
        return GTZAN(data=folder)

    return make


@pytest.mark.slow
@split_by_number
def test_gtzan_keeps_contract(make: Make, check_source: Callable[..., None]) -> None:
    check_source(make, named=True)


def test_gtzan_without_lists_warns(make: Make, tmp_path: Path) -> None:
    source = make(tmp_path / "data")
    with pytest.warns(UserWarning, match="gtzan is split by number") as warned:
        assert source.split("test").example_id(0).endswith("blues.00090.wav")
    assert "\n" not in str(warned[0].message)
    assert {split: len(source.split(split)) for split in SPLITS} == {"train": 30, "val": 20, "test": 20}


@split_by_number
def test_gtzan_lists_define_split(make: Make, tmp_path: Path) -> None:
    by_number, folder = make(tmp_path / "data").sha256, tmp_path / "data"
    (folder / "train_filtered.txt").write_text("blues/blues.00000.wav\n\n")
    (folder / "valid_filtered.txt").write_text("jazz/jazz.00099.wav\n")
    listed = folder / "test_filtered.txt"
    with pytest.raises(InputError, match=r"test_filtered\.txt"):
        GTZAN(data=folder).split("train")
    listed.write_text("pop/pop.00054.wav\n")
    source = GTZAN(data=folder)
    assert [[example.target for example in source.split(split)] for split in SPLITS] == [["blues"], ["jazz"], ["pop"]]
    assert source.sha256 != by_number
    listed.write_text("pop/pop.00001.wav\n")
    with pytest.raises(InputError, match=r"test_filtered\.txt, line 1.*'pop/pop\.00001\.wav'"):
        GTZAN(data=folder).split("train")
    listed.write_text("blues/blues.00000.wav")
    with pytest.raises(InputError, match=r"'blues\.00000\.wav' is in train_filtered\.txt and in test_filtered\.txt"):
        GTZAN(data=folder).split("train")
