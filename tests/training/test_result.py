"""A result is read whole or not at all, and names the commit of the experiment's file."""

import json
import math
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unifier import Result
from unifier.distributed import PeerError
from unifier.training.result import DivergedError, Interrupted, RunFailed, processor, source_commit
from unifier_tokenizers import InputError

FIELDS: dict[str, Any] = {
    **{"name": "digits", "tasks": ["a"], "seed": 0, "status": "finished", "metrics": {"test/a/accuracy": 50.0}},
    **{key: {} for key in ("signatures", "parameters", "budget", "task_budgets", "speed", "settings")},
    **{"data": {}, "versions": {}, "lineage": {}, "commit": "", "machine": "", "threads": 2, "error": ""},
}


def test_result_is_read_as_written(tmp_path: Path) -> None:
    result = replace(Result(**FIELDS, folder=tmp_path), metrics={"test/a/accuracy": 50.0, "val/a/auc": math.nan})
    result.write()
    assert json.loads((tmp_path / "result.json").read_text())["metrics"]["val/a/auc"] is None
    read = Result.read(tmp_path)
    assert math.isnan(read.metrics["val/a/auc"])
    assert read.content() == result.content()
    assert (read.threads, read.folder) == (2, tmp_path)


@pytest.mark.parametrize("content", ['{"metrics": 5}', '{"metrics": {}}', "{", json.dumps({**FIELDS, "more": 1})])
def test_broken_result_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(InputError, match=r"result\.json"):
        Result.read(tmp_path)


FAILED = replace(Result(**FIELDS, folder=Path("runs/a")), status="failed", error="cause")


@pytest.mark.parametrize(
    ("error", "attribute"),
    [
        (RunFailed(FAILED), "result"),
        (Interrupted(Path("runs/a")), "folder"),
        (DivergedError("loss"), "args"),
        (PeerError("process 1"), "args"),
        (InputError("dim=0"), "args"),
    ],
)
def test_error_survives_pickling(error: BaseException, attribute: str) -> None:
    """Check the errors that the processes of a comparison send to each other."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), getattr(again, attribute)) == (str(error), getattr(error, attribute))


def create_repository(folder: Path) -> str:
    """Create a repository with one file, `study.py`, and return its only commit."""
    folder.mkdir()
    (folder / "study.py").write_text("")
    author = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", folder.name]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_source_commit_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = (create_repository(tmp_path / name) for name in ("here", "other"))
    monkeypatch.chdir(tmp_path / "here")
    file = tmp_path / "other" / "study.py"
    assert here != other
    assert source_commit(str(file)) == other
    assert source_commit() == source_commit(str(tmp_path / "gone" / "study.py")) == here
    file.write_text("changed")
    assert source_commit(str(file)) == f"{other}-dirty"


def test_processor_has_family_and_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: Some CPU\ncpu family\t: 6\nmodel\t\t: 143\n\nmodel name\t: Another\n")
    assert processor(cpuinfo) == "Some CPU (family 6, model 143)"
    cpuinfo.write_text("model name\t: Arm CPU\n\n")
    assert processor(cpuinfo) == "Arm CPU"
    assert processor(tmp_path / "none")


@pytest.mark.parametrize(
    "change", [{"metrics": {"a": "x"}}, {"status": "asleep"}, {"data": [1]}, {"tasks": 3}, {"seed": []}], ids=str
)
def test_result_of_another_type_is_named(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({**FIELDS, **change}))
    with pytest.raises(InputError, match=next(iter(change))):
        Result.read(tmp_path)
