"""The list of runs, and the differences between two runs."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unifier.cli import main
from unifier.files import write_sealed_json
from unifier.report.list_runs import compare_runs, list_runs
from unifier_tokenizers import InputError

FIRST, SECOND, STOPPED = (f"2026010{day}-120000-seed0-{day}abc" for day in (1, 2, 3))


def write_run(folder: Path, accuracy: float | None = None, **settings: Any) -> Path:
    """Write the files of a run with two tasks. Without an accuracy, the run has not finished."""
    folder.mkdir(parents=True)
    settings_file = {"name": "digits", "seed": 0, "settings": {"dim": 8, **settings}, "study": "a.py:digits"}
    write_sealed_json(folder / "settings.json", {**settings_file, "experiment": {"experiment.py": "0" * 64}})
    if accuracy is not None:
        scores = {"val/a/accuracy": 1.0, "test/a/accuracy": accuracy, "test/a/macro_f1": 2.0, "test/b/nats": None}
        data = {"a": {"name": "digits", "sha256": "f" * 64}, "b": {"lower_is_better": ["nats"]}}
        content = {**settings_file, "status": "finished", "metrics": scores, "data": data}
        write_sealed_json(folder / "result.json", content)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "digits" / SECOND, 97.25, dim=16)
    write_run(tmp_path / "digits" / STOPPED)
    first = write_run(tmp_path / "pair" / "20260101-000000-cccc" / "trials" / FIRST, 95.0)
    (first / "model").mkdir()
    (first / "model" / "weights").write_bytes(bytes(1000))
    return tmp_path


def test_runs_and_trials_are_listed_by_date(runs: Path) -> None:
    (runs / ".vscode").mkdir()
    (runs / ".vscode" / "settings.json").write_text("{}")
    (runs / "digits" / SECOND / "copy").mkdir()
    (runs / "digits" / SECOND / "copy" / "settings.json").write_text("{}")
    first, second, stopped = list_runs(runs)
    assert [run.folder.name for run in (first, second, stopped)] == [FIRST, SECOND, STOPPED]
    assert (second.name, second.score, second.started) == (
        "digits",
        "a accuracy 97.25, b nats undefined ↓",
        "2026-01-02 12:00",
    )
    assert stopped.score == "unfinished"
    sizes = {run.folder: sum(path.stat().st_size for path in run.folder.rglob("*.json")) for run in (first, second)}
    assert [first.size - 1000, second.size] == list(sizes.values())


def test_files_that_vanish_meanwhile_have_no_size(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, walk = [run.size for run in list_runs(runs)], os.walk

    def walk_late(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for path, inner, files in walk(folder):
            yield path, inner, [*files, "deleted.part"]

    monkeypatch.setattr(os, "walk", walk_late)
    assert [run.size for run in list_runs(runs)] == sizes


def test_broken_and_renamed_runs_are_listed(runs: Path) -> None:
    (runs / "digits" / SECOND / "result.json").write_text("{")
    (runs / "digits" / STOPPED / "settings.json").write_text("[")
    renamed = (runs / "pair").rename(runs / "other") / "20260101-000000-cccc" / "trials" / FIRST
    renamed = renamed.rename(renamed.with_name("mine"))
    os.utime(renamed / "settings.json", (0, 0))
    scores = {run.folder.name: run.score for run in list_runs(runs)}
    assert scores == {
        "mine": "a accuracy 95.00, b nats undefined ↓",
        SECOND: "broken",
        STOPPED: "broken",
    }


def test_comparison_has_scores_and_differences(runs: Path, tmp_path: Path) -> None:
    first, second, stopped = (run.folder for run in list_runs(runs))
    rows = compare_runs(first, second)
    scores = [("metrics.test/a/accuracy", "95.00", "97.25"), ("metrics.test/a/macro_f1", "2.00", "2.00")]
    assert [row for row in rows if "nats" not in row[0]] == [*scores, ("settings.dim", "8", "16")]
    assert ("status", "finished", "unfinished") in compare_runs(first, stopped)
    long = write_run(tmp_path / "long", math.pi * 1e7, dim=8, text="x" * 99)
    assert {row[0]: len(row[2]) for row in compare_runs(first, long)}["settings.text"] == 40


@pytest.mark.parametrize("arguments", [["missing"], ["."], ["digits", "pair"], ["digits", "digits", "digits"]])
def test_wrong_folder_is_named_in_one_line(
    arguments: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "empty").mkdir()
    monkeypatch.chdir(runs / "empty" if arguments == ["."] else runs)
    assert main(["runs", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_command_prints_a_line_per_run(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    assert main(["runs", "."]) == 0
    assert [FIRST in line for line in capsys.readouterr().out.splitlines()] == [False, True, False, False]
    assert main(["runs", f"digits/{SECOND}", f"digits/{STOPPED}"]) == 0
    assert "settings.dim" in capsys.readouterr().out
    with pytest.raises(InputError, match="no such folder"):
        list_runs(runs / "runs")
