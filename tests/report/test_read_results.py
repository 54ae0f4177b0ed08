"""Reports are made of whole runs, and each run that is left out is named in one line."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import JOINT, Row, make_comparison, make_row, make_seeds
from unifier.cli import main
from unifier.report.conditions import condition_label, contrasts, group_conditions
from unifier.report.read_results import read_results
from unifier.report.summary import joint_effect
from unifier.training.result import Result
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return the folder of four whole runs and of the comparison that they belong to."""
    make_comparison(tmp_path / "runs", [*make_seeds("digits", 80.0, 81.0), *make_seeds("music", 80.0, 81.0)])
    return tmp_path / "runs"


@pytest.fixture
def alone(runs: Path) -> Path:
    """Return the folder of four whole runs without their comparison."""
    for path in runs.rglob("comparison.json"):
        path.unlink()
    return runs


def run_folders(runs: Path) -> list[Path]:
    return sorted(path.parent for path in runs.rglob("result.json"))


def update_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def labels_of(folder: Path) -> dict[str, float]:
    return {condition.label: condition.score.mean for condition in group_conditions(read_results(folder).rows)}


def error_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.strip().splitlines()


def test_comparison_run_and_folder_are_read(runs: Path) -> None:
    comparison = read_results(runs / "study" / "20260101-000000")
    assert (comparison.name, len(comparison.rows), comparison.problems) == ("study", 4, [])
    run = read_results(run_folders(runs)[0])
    assert (run.name, len(run.rows)) == ("genres", 1)
    every = read_results(runs)
    assert (every.name, len(every.rows), every.problems) == ("runs", 4, [])
    copy = shutil.copytree(run_folders(runs)[-1], runs / "quarantine" / run_folders(runs)[-1].name)
    every = read_results(runs)
    (problem,) = every.problems
    assert (len(every.rows), str(copy) in problem) == (4, True)


def test_separate_runs_get_settings_that_differ(alone: Path) -> None:
    path = run_folders(alone)[0] / "result.json"
    settings = json.loads(path.read_text())["settings"]
    update_json(path, settings={**settings, "dim": 64})
    assert [row["varied"] for row in read_results(alone).rows] == [{"dim": 64}, {"dim": 128}, {}, {}]


def test_comparisons_of_other_settings_are_apart(tmp_path: Path) -> None:
    for budget, score in ((40_000, 80.0), (400_000, 90.0)):
        rows = [*make_seeds("digits", score, score), *make_seeds("digits", score - 2, score - 2, **JOINT)]
        settings = {"tokens": budget, "dim": 128, "seeds": [0, 1]}
        folder = make_comparison(tmp_path / f"{budget}", rows, settings=settings)
        for name in ("pictures", "joint"):  # The runs of both comparisons have the same ids.
            shutil.rmtree(folder / name)
    (make_comparison(tmp_path / "alone", [make_row("digits", 99.0)]) / "comparison.json").unlink()
    assert labels_of(tmp_path) == {
        "tokens=40000, comparison=study": 80,
        "joint, tokens=40000, comparison=study": 78,
        "tokens=400000, comparison=study": 90,
        "joint, tokens=400000, comparison=study": 88,
        "tokens=64000, comparison=none": 99,
    }


@pytest.mark.parametrize("term", [{"budget": 4000}, {"sampling_temperature": 1.0}, {"loss_weighting": "mean"}], ids=str)
def test_comparisons_of_other_terms_are_apart(term: dict[str, Any], tmp_path: Path) -> None:
    usual = {"budget": 40_000, "sampling_temperature": "inf", "loss_weighting": "fixed"}
    for seed, terms in enumerate((usual, usual | term)):
        shutil.move(make_comparison(tmp_path / "runs", [make_row(seed=seed)], **terms), tmp_path / f"{seed}")
    (name,) = term
    assert list(labels_of(tmp_path)) == [f"{name}={usual[name]}", f"{name}={term[name]}"]


@pytest.mark.parametrize("budget", [1000.0, 9000.0])
def test_joint_pairs_with_solo_of_the_same_budget(budget: float, tmp_path: Path) -> None:
    make_comparison(tmp_path / "solo", make_seeds("digits", 80.0, 80.0), budget=1000.0)
    joint = [make_row("digits", 90.0, seed, **JOINT) for seed in (1, 0)]  # In this order, no two runs share an id.
    for row in joint:
        row["result"]["settings"] = {"pictures": {}, "music": {}}
    make_comparison(tmp_path / "joint", joint, budget=budget)
    results = read_results(tmp_path)
    assert len(results.rows) == 4
    assert bool(joint_effect(group_conditions(results.rows))) == (budget == 1000.0)


def test_seeds_of_two_comparisons_are_pooled(tmp_path: Path) -> None:
    for seed in range(2):
        make_comparison(tmp_path / f"{seed}", [make_row(seed=seed)], settings={"seeds": [seed]})
    (condition,) = group_conditions(read_results(tmp_path).rows)
    assert (condition.label, condition.score.num_values) == ("solo", 2)


def test_runs_without_comparison_keep_their_facts(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"start": None, "shuffled": False, "trainable": "all", "varied": {}, "mode": "solo"}
    moved: dict[str, Any] = facts | {"mode": "transfer", "start": "genres", "trainable": "none"}
    trials = [facts, moved, moved | {"shuffled": True}, facts]
    folder = make_comparison(tmp_path, [make_row("digits", 90.0 - k, **trial) for k, trial in enumerate(trials)])
    for run, trial, budget in zip(run_folders(tmp_path), trials, (8, 8, 8, 16), strict=True):
        update_json(run / "settings.json", comparison="study", trial=trial | {"budget": budget})
    assert labels_of(folder / "pictures") == {
        "budget=8": 90,
        "genres, frozen, budget=8": 89,
        "genres shuffled, frozen, budget=8": 88,
        "budget=16": 87,
    }
    shutil.rmtree(run_folders(tmp_path)[-1])
    assert labels_of(folder / "pictures") == {"solo": 90, "genres, frozen": 89, "genres shuffled, frozen": 88}


def test_runs_without_their_trial_are_named_once(runs: Path) -> None:
    usable, older = [folder for folder in run_folders(runs) if folder.parent.name == "pictures"]
    for run in (older, shutil.copytree(older, older.with_name("another"))):
        update_json(run / "settings.json", comparison="study")
    results = read_results(older.parent)
    assert [row["folder"] for row in results.rows] == [usable]
    (problem,) = results.problems
    assert f"report {older.parents[1] / 'study'}" in problem
    assert len(read_results(runs / "study").rows) == 4, "comparison.json has the trials"
    with pytest.raises(InputError, match='"study" lacks their "trial"'):
        read_results(older)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("result.json", lambda path: path.unlink(), "no such file"),
        ("result.json", lambda path: path.write_text('{"name": "genres", '), "broken"),
        ("result.json", lambda path: path.write_text("[]"), "object"),
        ("result.json", lambda path: path.write_text('{"name": "genres"}'), "lacks tasks, seed"),
        ("result.json", lambda path: path.write_text(path.read_text().replace("metrics", "scores")), "lacks metrics"),
        ("settings.json", lambda path: path.write_text("{"), "broken"),
        ("settings.json", lambda path: path.write_text("{}"), "lacks settings, seed"),
    ],
    ids=["missing", "torn", "list", "empty", "no scores", "torn settings", "empty settings"],
)
def test_broken_run_is_named_and_the_rest_read(
    alone: Path, name: str, spoil: Callable[[Path], Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = run_folders(alone)[0]
    spoil(broken / name)
    assert main(["report", str(alone)]) == 0
    (line,) = error_lines(capsys)
    assert str(broken / name) in line
    assert reason in line
    assert broken.name in (alone / "report.html").read_text()
    assert len(read_results(alone).rows) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", b"{"),
        ("result.json", b'{"rows": []}'),
        ("comparison.json", b'{"name": "one", "status": "finished", "rows": 5}'),
        ("comparison.json", b'{"name": "one", "status": "finished", "rows": ["a"]}'),
    ],
)
def test_report_of_one_broken_run_fails(
    runs: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folders(runs)[0] / name).write_bytes(content)
    assert main(["report", str(run_folders(runs)[0])]) == 2
    (line,) = error_lines(capsys)
    assert f"{name}: broken" in line


@pytest.mark.slow
@pytest.mark.parametrize("content", ['{"rows": []}', '{"name": "a", "status": "finished", "rows": [{}]}', "{"])
def test_broken_comparison_is_named(runs: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs / "study" / "20260101-000000" / "comparison.json"
    path.write_text(content)
    if '"rows": []' not in content:
        assert main(["report", str(runs)]) == 0
        assert f"{path}: broken" in capsys.readouterr().err
    assert main(["report", str(path.parent)]) == 2
    assert f"{path}: broken" in capsys.readouterr().err


def test_diverged_run_is_named_and_left_out(tmp_path: Path) -> None:
    error = "diverged: train/digits/loss is nan by step 30"
    rows = [*make_seeds("digits", 80.0, 82.0), make_row("digits", 1.0, 2, status="failed", error=error)]
    folder = make_comparison(tmp_path, rows)
    for path in (folder, tmp_path):
        results = read_results(path)
        assert [row["seed"] for row in results.rows] == [0, 1]
        (problem,) = results.problems
        assert error in problem
        assert "seed 2" in problem


def test_nan_score_is_null_in_the_file_and_named(alone: Path) -> None:
    folder = run_folders(alone)[0]
    result = Result.read(folder)
    first = next(iter(result.metrics))
    replace(result, metrics={**result.metrics, first: math.nan}).write()
    written = json.loads((folder / "result.json").read_text(), parse_constant=pytest.fail)
    assert written["metrics"][first] is None
    assert math.isnan(Result.read(folder).metrics[first])
    assert "not a number" in read_results(alone).problems[0]


def test_only_a_deciding_nan_leaves_a_run_out(tmp_path: Path) -> None:
    """Constant predictions have a score, but no correlation."""
    rows = make_seeds("digits", 80.0, -397.0)
    rows[1]["result"]["metrics"]["test/digits/other"] = None
    results = read_results(make_comparison(tmp_path, rows))
    assert (results.problems, group_conditions(results.rows)[0].scores) == ([], {0: 80.0, 1: -397.0})
    for split in ("val", "test"):
        rows[0]["result"]["metrics"][f"{split}/digits/accuracy"] = math.nan
        (problem,) = read_results(make_comparison(tmp_path / split, rows)).problems
        assert "not a number" in problem
        rows[0] = make_row("digits", 80.0, 0)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data["score_range"].update(metric="Acc"), ("pictures, digits", "Acc", "accuracy, other")),
        (lambda data: data.update(copies=1234), ("digits", "1,234 examples")),
    ],
    ids=["score range of another metric", "test examples in train"],
)
def test_caveat_is_named_once(spoil: Callable[[Row], Any], words: tuple[str, ...], tmp_path: Path) -> None:
    rows = [*make_seeds("digits", 80.0, 80.0), *make_seeds("music", 80.0, 80.0)]
    for row in rows[:2]:
        spoil(row["result"]["data"]["digits"])
    results = read_results(make_comparison(tmp_path, rows))
    (problem,) = results.problems
    assert all(word in problem for word in words)
    assert len(results.rows) == 4


def test_changed_data_between_seeds_are_named(tmp_path: Path) -> None:
    rows = [*make_seeds("digits", *[80.0] * 3), *make_seeds("music", *[80.0] * 3)]
    rows += make_seeds("digits", 80.0, 80.0, varied={"share": 0.1})  # Each seed draws its own share.
    rows.append(make_row("digits", 80.0, varied={"data": "others"}))
    for k, row in enumerate(rows):
        row["result"]["data"][row["task"]]["sha256"] = "a" if k in (0, 2, 3, 4, 5) else f"{k}"
    (problem,) = read_results(make_comparison(tmp_path, rows)).problems
    assert problem.startswith("pictures, digits: its runs read different data")


def test_joint_and_solo_on_other_data_are_no_pair(tmp_path: Path) -> None:
    rows = [make_row("digits", 80.0), make_row("digits", 90.0, **JOINT)]
    rows[1]["result"]["settings"] = {"pictures": {}, "music": {}}
    results = read_results(make_comparison(tmp_path / "same", rows))
    assert not results.problems
    assert contrasts(group_conditions(results.rows))
    rows[1]["result"]["data"]["digits"]["sha256"] = "changed"
    results = read_results(make_comparison(tmp_path / "changed", rows))
    (problem,) = results.problems
    assert problem.startswith("pictures, digits: its runs read different data")
    assert not contrasts(group_conditions(results.rows))


def test_problem_of_a_comparison_is_not_repeated(tmp_path: Path) -> None:
    rows = [make_row("digits", 80.0, 0), make_row("digits", 1.0, 1, status="failed", error="diverged")]
    named = "20260101-000001-seed1-0001: diverged"
    assert read_results(make_comparison(tmp_path, rows, problems=[named])).problems == [named]


def test_runs_are_found_after_a_move(runs: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    runs.rename(moved)
    path = moved / "study" / "20260101-000000" / "comparison.json"
    rows = json.loads(path.read_text())["rows"]
    for row in rows:
        row["folder"] = "runs/" + "/".join(Path(row["folder"]).parts[-2:])
    update_json(path, rows=rows)
    results = read_results(path.parent)
    assert results.problems == []
    assert all(row["folder"].is_relative_to(moved) for row in results.rows)


def test_comparison_without_runs_is_reported(runs: Path) -> None:
    for folder in run_folders(runs):
        shutil.rmtree(folder)
    folder = runs / "study" / "20260101-000000"
    results = read_results(folder)
    assert (len(results.rows), len(results.problems)) == (4, 4)
    assert "folder is gone" in results.problems[0]
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    update_json(folder / "comparison.json", rows=[{**rows[0], "result": None}])
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "No run ended with a score" in page
    assert "no whole result" in page


def test_trunk_pairs_are_labeled_like_conditions(tmp_path: Path) -> None:
    solo = make_row("digits", 80.0, varied={"fold": 1})
    pair = {"task": "digits", "layer": "blocks.0", "a": solo, "b": {**solo, "mode": "joint"}}
    folder = make_comparison(tmp_path, [solo], representation=[pair])
    for results in (read_results(folder), read_results(tmp_path)):
        labels = [condition_label(results.representation[0][side]) for side in "ab"]
        assert labels == ["over folds", "joint, over folds"]


def test_trunk_pairs_of_comparisons_are_apart(tmp_path: Path) -> None:
    for dim, cka in ((32, 0.1), (64, 0.9)):
        solo, joint = make_row("digits", 90.0), make_row("digits", 91.0, **JOINT)
        pair = {"task": "digits", "seed": 0, "layer": "blocks.0", "a": solo, "b": joint, "cka": cka}
        folder = make_comparison(tmp_path / f"{dim}", [solo, joint], settings={"dim": dim}, representation=[pair])
        for name in ("pictures", "joint"):  # The runs of both comparisons have the same ids.
            shutil.rmtree(folder / name)
    pairs = read_results(tmp_path).representation
    assert [(pair["a"]["varied"], pair["cka"]) for pair in pairs] == [({"dim": 32}, 0.1), ({"dim": 64}, 0.9)]


def test_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone: no such folder"):
        read_results(tmp_path / "gone")
    with pytest.raises(InputError, match=r"no comparison\.json"):
        read_results(tmp_path)
