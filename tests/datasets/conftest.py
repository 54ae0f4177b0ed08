"""The contract of a data set, and small sound files."""

import pickle
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import soundfile

from unifier.data.dataset import Examples
from unifier.data.source import SPLITS, Example, Source, accuracy_range
from unifier.heads.detection import Boxes
from unifier_tokenizers import InputError

HASHED_SUFFIXES = {
    ".gz",
    ".xz",
    ".zip",
    ".wav",
    ".ogg",
    ".PNG",
    ".de",
    ".csv",
    ".jsonl",
    ".train",
    ".all",
    ".tsv",
    ".annotated",
}
"""Suffixes of the files that the tests' data sets consist of."""

CheckSource = Callable[..., None]


@pytest.fixture
def check_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckSource:
    """Return a function that checks the source which `make` writes into a folder.

    A `named` source is also found in the folder of `--data`.
    """

    def check(make: Callable[[Path], Any], *, named: bool = False) -> None:
        source, moved, changed = (make(tmp_path / name / "files") for name in ("data", "moved", "changed"))
        check_splits(source, moved, str(tmp_path / "data"))
        score_range = getattr(source, "score_range", None) or accuracy_range(("right", "wrong"), None, "plain texts")
        assert score_range.origin
        assert score_range.reference is None or score_range.chance < score_range.reference <= 100
        if labels := getattr(source, "labels", None):
            chances = {"accuracy": 100 / len(labels), "f1": 0, "iou": 0, "ap50": 0}
            assert score_range.chance == chances[score_range.metric]
        for path in (tmp_path / "changed").rglob("*"):
            if path.suffix in HASHED_SUFFIXES:
                path.write_bytes(path.read_bytes() + (b"\n" if path.suffix == ".csv" else b"\0"))
        assert source.sha256 == moved.sha256 != changed.sha256
        if named:
            (tmp_path / "data" / "files").rename(tmp_path / "data" / source.name)
            monkeypatch.setenv("UNIFIER_DATA", str(tmp_path / "data"))
            assert len(type(source)().split("train"))
            monkeypatch.setenv("UNIFIER_DATA", str(tmp_path / "data" / source.name))
            with pytest.raises(InputError, match=f"{source.name}.*put") as error:
                type(source)().split("train")
            assert "\n" not in str(error.value)

    return check


def check_splits(source: Any, moved: Any, root: str) -> None:
    assert isinstance(cast(object, source), Source)
    splits = {name: source.split(name) for name in SPLITS}
    ids = [split.example_id(index) for split in splits.values() for index in range(len(split))]
    assert len(ids) == len(set(ids)), "an example is in two splits"
    assert all(root in name for name in ids)
    for name, split in splits.items():
        assert len(split)
        unpickled = pickle.loads(pickle.dumps(split))
        assert repr(unpickled[0]) == repr(split[0])
        assert [repr(example) for example in split[:2]] == [repr(split[i]) for i in range(min(2, len(split)))]
        assert split[1:].example_id(0) == split.example_id(1)
        assert [repr(example) for example in moved.split(name)] == [repr(example) for example in split]
        with pytest.raises(IndexError):
            split[len(split)]
    with pytest.raises(InputError, match="'dev'"):
        source.split("dev")
    if labels := getattr(source, "labels", None):
        assert len(set(labels)) == len(labels)
        targets = [example.target for split in splits.values() for example in split]
        sequences = [target if isinstance(target, tuple) else (target,) for target in targets]
        if not isinstance(targets[0], np.ndarray | Boxes):
            assert {*chain(*sequences)} - {None} <= set(labels)


@pytest.fixture
def check_generated() -> CheckSource:
    """Return a function that checks the source which `make` draws from a seed."""

    def check(make: Callable[..., Any]) -> None:
        source, again, other = make(seed=3), make(seed=3), make(seed=4)
        for name in reversed(SPLITS):  # The order of the splits does not matter.
            assert list(map(content, source.split(name))) == list(map(content, again.split(name)))
        assert source.sha256 == again.sha256 != other.sha256
        assert len(bytes.fromhex(source.sha256)) == 32
        assert isinstance(cast(object, source), Source)
        inputs = [content(example)[0] for name in SPLITS for example in source.split(name)]
        assert len(set(inputs)) == len(inputs), "an input is repeated"
        unpickled = pickle.loads(pickle.dumps(source))
        assert list(map(content, unpickled.split("test"))) == list(map(content, source.split("test")))
        assert unpickled.sha256 == source.sha256
        with pytest.raises(InputError, match=r"'dev'.*train, val, test"):
            source.split("dev")

    return check


def content(example: Example) -> tuple[bytes | str, Any]:
    """Return an example in a form that can be compared and hashed."""
    raw = getattr(example.input, "waveform", example.input)
    return (raw.tobytes() if isinstance(raw, np.ndarray) else raw, example.target)


@pytest.fixture
def write_tone() -> Callable[..., Path]:
    """Return a function that writes a short constant sound as WAV, whatever the suffix.

    An Ogg file would contain a random serial number.
    """

    def write(path: Path, level: float = 0.5, *, channels: int = 1, samples: int = 80, rate: int = 16000) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.full((samples, channels), level), rate, format="WAV")
        return path

    return write


@pytest.fixture
def paths_of() -> Callable[[Examples[Any]], list[Path]]:
    """Return a function from a split to the paths of its examples."""
    return lambda split: [Path(split.example_id(index)) for index in range(len(split))]
