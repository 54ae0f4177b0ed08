"""Folders have unique names and locks, and the folders of killed processes are removed."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL

import pytest

from unifier import folders
from unifier.folders import LOCK_FILE, lock_folder, lock_temporary, new_folder, remove_unlocked
from unifier_tokenizers import InputError


def test_new_folders_have_different_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(["aa", "aa", "bb"])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(numbers))  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr("time.strftime", lambda _: "now")  # pyright: ignore[reportUnknownLambdaType]
    with new_folder(tmp_path / "runs", "seed0") as first, new_folder(tmp_path / "runs", "seed0") as second:
        assert [first.name, second.name] == ["now-seed0-aa", "now-seed0-bb"]


def test_new_folder_in_invalid_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "none")
    for name in ("file", "link"):
        with pytest.raises(InputError, match=f"{name}: .*--out"), new_folder(tmp_path / name):
            pass


def test_folders_of_processes_killed_at_the_start_are_removed(tmp_path: Path) -> None:
    names = [f"20260101-000000-{label}abcd" for label in ("", "seed0-", "settings-", "comparison-", "checkpoints-")]
    for name, first in zip([*names, "notes"], ("", "", *folders.FIRST_FILES, ""), strict=True):
        (tmp_path / name / first).mkdir(parents=True)
    (tmp_path / names[1] / LOCK_FILE).touch()
    (tmp_path / "20260101-000000-link-abcd").symlink_to(tmp_path / "notes")
    with new_folder(tmp_path, "running") as running, new_folder(tmp_path, "second") as second:
        kept = {running, second, *(tmp_path / name for name in [*names[2:], "notes", "20260101-000000-link-abcd"])}
        assert set(tmp_path.iterdir()) == kept
        with pytest.raises(InputError, match="another process"), lock_folder(running):
            pass


def test_folder_that_another_process_removes_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, created = folders._create_folder, list[Path]()  # pyright: ignore[reportPrivateUsage]

    def create_and_lose(parent: Path, label: str) -> Path:
        created.append(create(parent, label))
        if len(created) == 1:
            folders.remove_unstarted(parent)
        if len(created) == 2:
            others.enter_context(lock_folder(created[1]))
        return created[-1]

    monkeypatch.setattr(folders, "_create_folder", create_and_lose)
    with ExitStack() as others, new_folder(tmp_path) as folder:
        assert (folder, len(created)) == (created[2], 3)


def test_temporary_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name in ("part-killed", "part-running", "other"):
        (tmp_path / name / "file").mkdir(parents=True)
    with lock_temporary(tmp_path / "part-running"):
        remove_unlocked(tmp_path, "part-")
    assert {path.name for path in tmp_path.iterdir()} == {"part-running", "other"}


@pytest.mark.slow
def test_lock_does_not_survive_a_kill(tmp_path: Path) -> None:
    code = f"""
import os, time
from pathlib import Path
from unifier.folders import lock_folder
with lock_folder(Path({str(tmp_path)!r})):
    if not os.fork():
        print("locked", flush=True)
    time.sleep(20)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        process.stdout.readline()
        with pytest.raises(InputError, match="another process"), lock_folder(tmp_path):
            pass
        os.kill(process.pid, SIGKILL)
        process.wait()
        with lock_folder(tmp_path), lock_folder(tmp_path / "missing"):
            os.killpg(process.pid, SIGKILL)
