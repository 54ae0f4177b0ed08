"""The size of the cache, and its removal."""

from pathlib import Path
from shutil import rmtree

import pytest

from unifier.cli import main
from unifier.data.cache import lookup, open_for_write
from unifier.inference import clean

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a cache with two entries and a file of the user."""
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path))
    for key in ("one", "two"):
        with open_for_write(tmp_path / "encoded", key) as folder:
            (folder / "values").write_bytes(bytes(1_000_000))
    (tmp_path / "encoded" / "mine").mkdir()
    return tmp_path / "encoded"


def test_cache_is_shown_and_cleared_only_with_yes(cache: Path, capsys: Capture) -> None:
    assert main(["clean"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{cache}: 2 entries, 2.0 MB"
    assert lookup(cache, "one")
    with open_for_write(cache, "three") as draft:  # Another process writes this entry.
        (draft / "values").write_bytes(b"0")
        assert main(["clean", "--yes"]) == 0
    assert "2 entries" in capsys.readouterr().out.splitlines()[-1]
    assert [lookup(cache, key) is not None for key in ("one", "two", "three")] == [False, False, True]
    assert (cache / "mine").is_dir()


def test_entry_of_a_running_process_is_not_counted_as_deleted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(entry: Path, *, ignore_errors: bool) -> None:
        rmtree(entry, ignore_errors=ignore_errors)
        with open_for_write(cache, f"new {entry.name}") as folder:
            (folder / "values").write_bytes(b"0")

    monkeypatch.setattr(clean, "rmtree", delete)
    before = clean.measure_cache()
    assert clean.clear_cache() == before
    assert clean.measure_cache().entries == 2


def test_copies_of_shards_are_entries(cache: Path, capsys: Capture) -> None:
    copies = cache.parent / "shards"
    copies.mkdir()
    for name in ("a" * 64, ".lock", "mine"):
        (copies / name).write_bytes(bytes(500_000))
    assert main(["clean", "--yes"]) == 0
    assert "3 entries, 2.5 MB" in capsys.readouterr().out.splitlines()[-1]
    assert sorted(path.name for path in copies.iterdir()) == [".lock", "mine"]


def test_missing_cache_is_empty_and_a_cache_that_is_off_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "gone"))
    assert main(["clean", "--yes"]) == 0
    assert "0 entries" in capsys.readouterr().out
    monkeypatch.setenv("UNIFIER_CACHE", "off")
    assert main(["clean"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
