"""FMA: the official splits, genres and tags, subsets, and missing files."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unifier.datasets.factory import create_audio_dataset
from unifier.datasets.fma import FMA
from unifier_tokenizers import InputError

GENRES = {10: "Pop", 12: "Rock", 21: "Hip-Hop", 25: "Punk"}
SPLIT_NAMES = ("training", "training", "validation", "test")


@pytest.fixture
def make(write_tone: Callable[..., Path]) -> Callable[[Path], FMA]:
    """Return a function that writes a folder in the layout of FMA, with 16 small clips and 2 medium clips."""

    def make(folder: Path) -> FMA:
        (folder / "fma_metadata").mkdir(parents=True)
        with (folder / "fma_metadata" / "genres.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("genre_id", "#tracks", "title"), *((k, 1, v) for k, v in GENRES.items())])
        header: list[list[Any]] = [["", "album", "set", "set", "track", "track", "track"]]
        header += [["", "title", "split", "subset", "genre_top", "genres_all", "title"], ["track_id", *[""] * 6]]
        rows: list[list[Any]] = []
        for k in range(18):
            number, genre = 998 + k, ("Pop", "Rock")[k % 2]
            genres = [10] if genre == "Pop" else [12, 25]
            subset = "small" if k < 16 else "medium"
            rows.append([number, "two\nlines", SPLIT_NAMES[k // 2 % 4], subset, genre, genres, "a, b"])
            for clips in ("fma_small", "fma_medium") if k < 16 else ("fma_medium",):
                write_tone(folder / clips / f"{number:06d}"[:3] / f"{number:06d}.mp3", level=0.01 * (k + 1))
        with (folder / "fma_metadata" / "tracks.csv").open("w", newline="") as file:
            csv.writer(file).writerows(header + rows)
        return FMA(data=folder)

    return make


def test_fma_keeps_contract(make: Callable[[Path], FMA], check_source: Callable[..., None]) -> None:
    check_source(make, named=True)


def test_fma_has_the_official_splits(make: Callable[[Path], FMA], tmp_path: Path) -> None:
    source = make(tmp_path / "fma")
    assert [len(source.split(name)) for name in ("train", "val", "test")] == [8, 4, 4]
    assert source.split("val").example_id(0).endswith("001/001002.mp3")
    assert source.labels == ("Pop", "Rock")
    assert len(FMA(subset="medium", data=tmp_path / "fma").split("train")) == 10
    tags = FMA("tags", data=tmp_path / "fma")
    assert tags.labels == ("Pop", "Punk", "Rock")
    assert {example.target for example in tags.split("test")} == {("Pop",), ("Rock", "Punk")}


def test_missing_clips_are_named_and_counted(
    make: Callable[[Path], FMA], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make(tmp_path / "fma")
    for number in (998, 1003):
        (tmp_path / "fma" / "fma_small" / f"{number:06d}"[:3] / f"{number:06d}.mp3").unlink()
    assert [len(source.split(name)) for name in ("train", "val", "test")] == [7, 3, 4]
    (line,) = capsys.readouterr().err.splitlines()
    assert "2 of 16" in line
    assert "000998.mp3, 001003.mp3" in line
    assert source.dropped == {"missing": 2}


@pytest.mark.parametrize("missing", ["fma_metadata/tracks.csv", "fma_metadata/genres.csv", "fma_small", "all clips"])
def test_folder_without_its_files_is_one_line(
    make: Callable[[Path], FMA], tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "fma")
    for path in sorted((tmp_path / "fma" / "fma_small").rglob("*.mp3")) if missing == "all clips" else ():
        path.unlink()
    if missing != "all clips":
        (tmp_path / "fma" / missing).rename(tmp_path / "other")
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    source = create_audio_dataset("fma")
    if missing == "fma_small":  # The clips of the larger subset are used.
        assert "fma_medium" in source.split("train").example_id(0)  # pyright: ignore[reportAttributeAccessIssue]
        return
    with pytest.raises(InputError, match="16 of 16" if missing == "all clips" else missing) as error:
        FMA("tags").split("train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [("validation", "tuning", "tuning"), ("[10]", "10", "'10'"), ("split", "part", "set split")],
)
def test_fma_refuses_table(make: Callable[[Path], FMA], tmp_path: Path, old: str, new: str, match: str) -> None:
    source, table = make(tmp_path / "fma"), tmp_path / "fma" / "fma_metadata" / "tracks.csv"
    table.write_text(table.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=match):
        source.split("train")
