"""Settings and fixtures of all tests: one thread per process, a fixed seed, no cache, and empty figures."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the programs that tests start
os.environ["UNIFIER_CACHE"] = "off"  # or tests would leave what they encode with the user

import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from matplotlib.figure import Figure

from unifier.data.source import SPLITS, Source
from unifier_tokenizers import InputError

DATA = {".gz", ".xz", ".zip", ".wav", ".ogg", ".PNG", ".de"}
"""Endings of the files that the tests' data sets are made of."""


@pytest.fixture(autouse=True)
def torch_seed() -> None:
    """Seed torch, so that no test depends on those before it."""
    torch.manual_seed(0)


@pytest.fixture
def keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Check a source that `make` writes into a folder; a `named` one is also found in the command line's --data."""

    def check(make: Callable[[Path], Any], *, named: bool = False) -> None:
        source, moved, changed = (make(tmp_path / name) for name in ("data", "moved", "changed"))
        _splits(source, moved, str(tmp_path / "data"))
        for path in (tmp_path / "changed").rglob("*"):
            if path.suffix in DATA:
                path.write_bytes(path.read_bytes() + b"\0")
        assert source.sha256 == moved.sha256 != changed.sha256
        if named:
            _found(source, tmp_path, monkeypatch)

    return check


def _splits(source: Any, moved: Any, root: str) -> None:
    assert isinstance(cast(object, source), Source)
    splits = {name: source.split(name) for name in SPLITS}
    places = [split.example_id(index) for split in splits.values() for index in range(len(split))]
    assert len(places) == len(set(places)), "an example is in two splits"
    assert all(root in place for place in places)
    for name, split in splits.items():
        assert len(split)
        traveled = pickle.loads(pickle.dumps(split))
        assert repr(traveled[0]) == repr(split[0])
        assert [repr(one) for one in split[:2]] == [repr(split[i]) for i in range(min(2, len(split)))]
        assert split[1:].example_id(0) == split.example_id(1)
        assert [repr(one) for one in moved.split(name)] == [repr(one) for one in split]
        with pytest.raises(IndexError):
            split[len(split)]
    with pytest.raises(InputError, match="no split 'dev'"):
        source.split("dev")
    if labels := getattr(source, "labels", None):
        assert len(set(labels)) == len(labels)
        assert {example.target for split in splits.values() for example in split} <= set(labels)


def _found(made: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "data").rename(root / made.name)
    monkeypatch.setenv("UNIFIER_DATA", str(root))
    assert len(type(made)().split("train"))
    monkeypatch.setenv("UNIFIER_DATA", str(root / made.name))
    with pytest.raises(InputError, match=f"{made.name}.*put") as error:
        type(made)().split("train")
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def undrawn() -> Iterator[Callable[..., None]]:
    """Write empty figures, because drawing takes most of a small run; yield the function that draws them."""
    drawn = Figure.savefig

    def empty(_: Figure, file: Path | io.StringIO, **_given: Any) -> None:
        svg = '<svg xmlns="http://www.w3.org/2000/svg"><style></style></svg>'
        file.write(svg) if isinstance(file, io.StringIO) else file.write_text(svg)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", empty)
        yield drawn
