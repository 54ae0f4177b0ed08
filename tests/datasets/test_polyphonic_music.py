"""Polyphonic music is read from its file, and a broken file is refused by name."""

import gzip
import json
from pathlib import Path

import pytest

from unifier.data.dataset import open_split
from unifier.datasets.polyphonic_music import PolyphonicMusic
from unifier_tokenizers import InputError

PIECES = {"train": [[[60], [62, 64]], [[50], []]], "valid": [[[61]]], "test": [[[62]], [[63]]]}


def write(folder: Path, content: bytes) -> PolyphonicMusic:
    (folder / "nottingham.json.gz").write_bytes(content)
    return PolyphonicMusic("nottingham", data=folder)


def test_splits_are_those_of_the_file(tmp_path: Path) -> None:
    source = write(tmp_path, gzip.compress(json.dumps(PIECES).encode()))
    assert [example.input for example in open_split(source, "train")] == PIECES["train"]
    assert [len(open_split(source, name)) for name in ("train", "val", "test")] == [2, 1, 2]
    assert len(source.sha256) == 64


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"[1", mtime=0),
        gzip.compress(b'{"train": 3}', mtime=0),
        gzip.compress(b"x" * 99, mtime=0)[:-9],
    ],
)
def test_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match="nottingham"):
        write(tmp_path, content).split("train")


def test_missing_file_and_unknown_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nottingham"):
        PolyphonicMusic("nottingham", data=tmp_path).split("test")
    with pytest.raises(InputError, match="bach"):
        PolyphonicMusic("bach")  # pyright: ignore[reportArgumentType]
