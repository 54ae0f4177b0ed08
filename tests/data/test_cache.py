"""A folder is found whole or not at all, by whoever has its key, until others need its room."""

import os
import pwd
from pathlib import Path

import pytest

from unifier.data import cache
from unifier.data.source import data_folder
from unifier_tokenizers import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_nothing_half_made_is_left_or_found(root: Path) -> None:
    def torn() -> None:
        with cache.open_for_write(root, "key") as folder:
            (folder / "values").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torn()
    assert list(root.iterdir()) == []
    assert cache.lookup(root, "key") is None


def test_of_two_processes_at_once_each_has_its_own_and_one_is_found(root: Path) -> None:
    with cache.open_for_write(root, "key") as first, cache.open_for_write(root, "key") as second:
        (first / "values").write_text("one")
        (second / "values").write_text("one")
    (entry,) = root.iterdir()
    assert cache.lookup(root, "key") == entry
    assert cache.lookup(root, "other") is None


def test_what_was_used_longest_ago_makes_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LIMIT", 2500)
    for made, key in enumerate("abc"):
        with cache.open_for_write(root, key) as folder:
            (folder / "values").write_bytes(bytes(1000))
            (folder / key).touch()
        (own,) = (entry for entry in root.iterdir() if (entry / key).exists())
        os.utime(own, (made, made))
        if key == "b":
            cache.lookup(root, "a")  # used again
    assert [cache.lookup(root, key) is not None for key in "abc"] == [True, False, True]
    with cache.open_for_write(root, "large") as folder:
        (folder / "values").write_bytes(bytes(9000))
    assert [entry.name for entry in root.iterdir()] == [cache.lookup(root, "large").name]  # pyright: ignore[reportOptionalMemberAccess]


def test_what_another_process_still_writes_makes_no_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LIMIT", 500)
    left = root / f"{cache.DRAFT_PREFIX}left"
    left.mkdir(parents=True)
    with cache.open_for_write(root, "slow") as slow:
        (slow / "values").write_bytes(bytes(1000))
        os.utime(left, (1, 1))
        with cache.open_for_write(root, "quick") as quick:
            (quick / "values").write_bytes(bytes(1000))
        assert not left.exists(), "nobody has written there for a day"
    assert cache.lookup(root, "slow") is not None


def test_what_one_user_keeps_another_may_read(root: Path) -> None:
    before = os.umask(0o022)
    try:
        with cache.open_for_write(root, "key"):
            pass
    finally:
        os.umask(before)
    (entry,) = root.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o755


def test_where_folders_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.cache_folder() is None  # while tests run
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "encoded"
    monkeypatch.delenv("UNIFIER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache.cache_folder() == Path.home() / ".cache" / "unifier" / "encoded"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "unifier" / "encoded"


def test_of_a_user_without_a_home_nothing_is_kept_and_data_have_to_be_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "UNIFIER_CACHE", "UNIFIER_DATA"):
        monkeypatch.delenv(name, raising=False)
    assert cache.cache_folder() is None
    with pytest.raises(InputError, match=r"multi30k: there is no home folder .*; give --data, or set XDG_CACHE_HOME"):
        data_folder("multi30k")
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    assert data_folder("multi30k") == tmp_path / "multi30k"
