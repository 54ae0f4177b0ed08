"""Emotify: folds by artist, genres and emotions."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from unifier.data.dataset import Examples
from unifier.data.source import SPLITS
from unifier.datasets.emotify import EMOTIFY_GENRES, EMOTIONS, Emotify
from unifier_tokenizers import InputError

PathsOf = Callable[[Examples[Any]], list[Path]]


def write_table(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def emotify(folder: Path, *, samples: int = 80) -> Emotify:
    """Write 20 constant sounds at 16 kHz, of four genres and ten artists, in the layout of Emotify."""
    tracks: list[Sequence[object]] = [("file", "genre", "artist", "fold")]
    emotions: list[Sequence[object]] = [("file", "n_annotators", *EMOTIONS)]
    for number in range(20):
        genre = EMOTIFY_GENRES[number % 4]
        file = f"audio/{genre}/{number}.wav"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / file, np.full(samples, 0.5), 16000)
        tracks.append((file, genre, f"artist {number // 2}", number // 4))
        emotions.append((file, 48, 0.3333, 0.3125, *(0.0 for _ in EMOTIONS[2:])))  # 16 and 15 listeners of 48.
    write_table(folder / "tracks.csv", tracks)
    write_table(folder / "emotions.csv", emotions)
    return Emotify(data=folder)


def test_emotify_keeps_contract(check_source: Callable[..., None]) -> None:
    check_source(emotify, named=True)


def test_emotify_folds_share_no_artist(tmp_path: Path, paths_of: PathsOf) -> None:
    source = emotify(tmp_path / "data")
    artists = [artist for name in SPLITS for artist in {int(p.stem) // 2 for p in paths_of(source.split(name))}]
    assert len(artists) == len(set(artists))
    waveform, rate = source.split("test")[0].input
    assert (waveform.shape, waveform.dtype, rate) == ((80,), np.float32, 16000)
    folds = [Emotify(fold=fold, data=tmp_path / "data") for fold in range(5)]
    for fold, following in zip(folds, folds[1:] + folds[:1], strict=True):
        assert paths_of(fold.split("val")) == paths_of(following.split("test"))


def test_emotify_tags_need_a_third_of_listeners(tmp_path: Path) -> None:
    emotify(tmp_path / "data")
    tags = Emotify("tags", data=tmp_path / "data")
    assert tags.labels == EMOTIONS
    assert {example.target for example in tags.split("train")} == {EMOTIONS[:1]}
    assert (tags.score_range.metric, tags.score_range.chance) == ("macro_auc", 0.5)


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("artist", "artist 9", "'artist 9' is in fold 0 and in fold 4"),
        ("genre", "polka", r"line 2.*'polka'"),
        ("fold", "x", "line 2.*'x'"),
        ("file", "audio/pop/none.ogg", r"audio/pop/none\.ogg"),
    ],
)
def test_emotify_refuses_table(tmp_path: Path, column: str, cell: str, message: str) -> None:
    source = emotify(tmp_path / "data")
    path = tmp_path / "data" / "tracks.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[0][column] = cell
    write_table(path, [list(rows[0]), *(list(row.values()) for row in rows)])
    with pytest.raises(InputError, match=message):
        source.split("train")
