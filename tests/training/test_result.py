"""A result is read whole or not, and says which commit made it: of the experiment's file, wherever it was started."""

import subprocess
from pathlib import Path

import pytest

from unifier.training.fit import RunContext
from unifier.training.result import Result, source_commit
from unifier_tokenizers import InputError


def checked_out(folder: Path) -> str:
    """A repository with one file, `study.py`, and its only commit."""
    folder.mkdir()
    (folder / "study.py").write_text("")
    who = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    for asked in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", folder.name]):
        subprocess.run(["git", *asked], cwd=folder, check=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_is_that_of_the_experiment_s_file_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (checked_out(tmp_path / name) for name in ("one", "other"))
    monkeypatch.chdir(tmp_path / "one")
    file = tmp_path / "other" / "study.py"
    assert one != other
    assert source_commit(str(file)) == other
    assert source_commit() == source_commit(str(tmp_path / "gone" / "study.py")) == one
    file.write_text("changed")
    assert source_commit(str(file)) == f"{other}-dirty"


@pytest.mark.parametrize("origin", ["/a/study.py:one", ["/a/study.py:one", "/b/study.py:two"]])
def test_the_file_is_the_first_experiment_s(origin: str | list[str], tmp_path: Path) -> None:
    assert RunContext(tmp_path, "study", origin=origin).file == "/a/study.py"
    assert RunContext(tmp_path, "study").file == ""


def test_a_result_whose_scores_are_none_is_broken(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"metrics": 5}')
    with pytest.raises(InputError, match=r"result\.json: broken \(it lacks metrics\)"):
        Result.read(tmp_path)
