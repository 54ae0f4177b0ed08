"""What examples are known by outlives a run, and changes with the code that reads them."""

import importlib
from pathlib import Path

import pytest

from unifier.data.examples import Labelled, from_files


def test_the_function_that_reads_is_known_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reading_of_mine.py").write_text("def load(path):\n    return path.name\n")
    load = importlib.import_module("reading_of_mine").load

    def identities() -> list[str] | None:
        return from_files([Labelled(tmp_path / "a.wav", "a"), Labelled(tmp_path / "b.wav", "b")], load).identities()

    before = identities()
    assert before is not None
    assert len(set(before)) == 2
    assert identities() == before
    (tmp_path / "reading_of_mine.py").write_text("def load(path):\n    return path.stem\n")
    assert set(identities() or []).isdisjoint(before)
