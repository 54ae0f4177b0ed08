"""A report is made of what is whole; each run that is not is named in a line."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unifier.cli import main
from unifier.report.conditions import condition_label, group_conditions
from unifier.report.read_results import read_results
from unifier.training.result import Result
from unifier_tokenizers import InputError

Rows = Callable[..., dict[str, Any]]
Comparison = Callable[..., Path]


@pytest.fixture
def runs(tmp_path: Path, row: Rows, comparison: Comparison) -> Path:
    """Four whole runs, and the comparison they belong to."""
    rows = [row(task, 80.0 + seed, seed) for task in ("digits", "music") for seed in (0, 1)]
    comparison(tmp_path / "runs", rows)
    return tmp_path / "runs"


def folders(runs: Path) -> list[Path]:
    return sorted(path.parent for path in runs.rglob("result.json"))


def test_a_comparison_a_run_and_a_folder_of_runs_are_read(runs: Path) -> None:
    whole = read_results(runs / "study" / "20260101-000000")
    assert (whole.name, len(whole.rows), whole.problems) == ("study", 4, [])
    one = read_results(folders(runs)[0])
    assert (one.name, len(one.rows)) == ("genres", 1)
    every = read_results(runs)
    assert (every.name, len(every.rows), every.problems) == ("runs", 4, [])


def test_runs_that_were_started_one_by_one_are_told_apart_by_their_settings(runs: Path) -> None:
    shutil.rmtree(runs / "study")
    path = folders(runs)[0] / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, "settings": {**result["settings"], "dim": 64}}))
    found = read_results(runs).rows
    assert [row["varied"] for row in found] == [{"dim": 64}, {"dim": 128}, {}, {}]


def test_comparisons_under_other_settings_and_runs_by_themselves_are_no_repetitions(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    for budget, score in ((40_000, 80.0), (400_000, 90.0)):
        solo = [row("digits", score, seed) for seed in range(2)]
        joint = [row("digits", score - 2, seed, mode="joint", experiment="joint") for seed in range(2)]
        settings = {"tokens": budget, "dim": 128, "seeds": [0, 1]}
        folder = comparison(tmp_path / f"{budget}", [*solo, *joint], settings=settings)
        shutil.rmtree(folder.parents[1] / "pictures")  # runs of one id would be one
        shutil.rmtree(folder.parents[1] / "joint")
    shutil.rmtree(comparison(tmp_path / "alone", [row("digits", 99.0)]))
    found = group_conditions(read_results(tmp_path).rows)
    assert {one.label: one.score.mean for one in found} == {
        "tokens=40000, comparison=study": 80,
        "joint, tokens=40000, comparison=study": 78,
        "tokens=400000, comparison=study": 90,
        "joint, tokens=400000, comparison=study": 88,
        "tokens=64000, comparison=none": 99,
    }


@pytest.mark.parametrize("term", [{"budget": 4000}, {"temperature": 1.0}, {"loss_weighting": "uncertainty"}], ids=str)
def test_comparisons_that_hold_their_tasks_to_other_terms_are_no_repetitions(
    term: dict[str, Any], tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    usual = {"budget": 40_000, "temperature": "inf", "loss_weighting": "fixed"}
    for seed, terms in enumerate((usual, usual | term)):
        shutil.move(comparison(tmp_path / "runs", [row("digits", 80.0, seed)], **terms), tmp_path / f"{seed}")
    (name,) = term
    found = group_conditions(read_results(tmp_path).rows)
    assert [one.label for one in found] == [f"{name}={usual[name]}", f"{name}={term[name]}"]


def test_runs_of_a_comparison_that_lies_elsewhere_say_how_they_were_trained(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    facts = {"start": None, "shuffled": False, "trainable": "all", "varied": {}, "mode": "solo"}
    moved = facts | {"mode": "transfer", "start": "genres", "trainable": "none"}
    trials = [facts, moved, moved | {"shuffled": True}, facts]
    rows = [row("digits", 90.0 - k, **trial) for k, trial in enumerate(trials)]
    comparison(tmp_path, rows)
    for run, trial, budget in zip(folders(tmp_path), trials, (8, 8, 8, 16), strict=True):
        path = run / "settings.json"
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"comparison": "study", "trial": trial | {"budget": budget}})
        )
    found = {one.label: one.scores for one in group_conditions(read_results(tmp_path / "pictures").rows)}
    assert found == {
        "budget=8": {0: 90},
        "genres, frozen, budget=8": {0: 89},
        "genres shuffled, frozen, budget=8": {0: 88},
        "budget=16": {0: 87},
    }
    shutil.rmtree(folders(tmp_path)[-1])
    found = {one.label: one.scores for one in group_conditions(read_results(tmp_path / "pictures").rows)}
    assert found == {"solo": {0: 90}, "genres, frozen": {0: 89}, "genres shuffled, frozen": {0: 88}}


def test_and_where_they_do_not_it_is_said_once_where_the_comparison_is(runs: Path) -> None:
    alone, older = [folder for folder in folders(runs) if folder.parent.name == "pictures"]
    for run in (older, shutil.copytree(older, older.with_name("another"))):
        path = run / "settings.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"comparison": "study"}))
    study = read_results(runs / "pictures")
    assert [row["folder"] for row in study.rows] == [alone]
    (problem,) = study.problems
    assert problem.endswith(f"report {runs / 'study'}")
    assert len(read_results(runs / "study").rows) == 4, "which tells how"
    with pytest.raises(InputError, match='runs of the comparison "study" do not all say how they were trained'):
        read_results(older)


def test_a_comparison_s_other_seeds_are_repetitions(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    for seed in range(2):
        comparison(tmp_path / f"{seed}", [row("digits", 80.0 + seed, seed)], settings={"seeds": [seed]})
    (found,) = group_conditions(read_results(tmp_path).rows)
    assert (found.label, found.score.size) == ("solo", 2)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_text('{"name": "genres", '), "broken"),
        (lambda path: path.write_text("[]"), "an object is expected"),
        (lambda path: path.write_text('{"name": "genres"}'), "it lacks tasks, seed"),
        (lambda path: path.write_text(path.read_text().replace('"metrics"', '"scores"')), "it lacks metrics"),
    ],
    ids=["missing", "torn", "no object", "empty", "no scores"],
)
def test_a_missing_or_broken_result_is_named_and_the_rest_reported(
    runs: Path, spoil: Callable[[Path], Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(runs / "study")
    spoiled = folders(runs)[0]
    spoil(spoiled / "result.json")
    assert main(["report", str(runs)]) == 0
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert str(spoiled) in told[0]
    assert said in told[0]
    page = (runs / "report.html").read_text()
    assert spoiled.name in page
    assert len(read_results(runs).rows) == 3


@pytest.mark.parametrize(("kept", "lacking"), [("{", "broken"), ("{}", "it lacks settings, seed")])
def test_settings_of_which_half_is_there_are_named(
    runs: Path, kept: str, lacking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(runs / "study")
    spoiled = folders(runs)[0] / "settings.json"
    spoiled.write_text(kept)
    assert main(["report", str(runs)]) == 0
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert str(spoiled) in told
    assert lacking in told


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", b"{"),
        ("result.json", b'{"rows": []}'),
        ("comparison.json", b'{"name": "one", "status": "finished", "rows": 5}'),
        ("comparison.json", b'{"name": "one", "status": "finished", "rows": ["a"]}'),
        ("metrics.csv", b"step\xff\n"),
    ],
)
def test_a_run_by_itself_that_is_broken_is_an_error(
    runs: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (folders(runs)[0] / name).write_bytes(content)
    assert main(["report", str(folders(runs)[0])]) == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert f"{name}: broken" in told


def test_a_diverged_run_is_named_and_kept_out_of_the_means(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    said = "diverged: train/digits/loss is nan by step 30"
    rows = [row("digits", 80.0, 0), row("digits", 82.0, 1)]
    rows.append(row("digits", 1.0, 2, status="failed", error=said))
    folder = comparison(tmp_path, rows)
    for where in (folder, tmp_path):
        study = read_results(where)
        assert [one["seed"] for one in study.rows] == [0, 1]
        (problem,) = study.problems
        assert said in problem
        assert "seed 2" in problem
    rows[-1] = row("digits", float("nan"), 2)
    (problem,) = read_results(comparison(tmp_path / "again", rows)).problems
    assert "a score is not a number" in problem


def test_a_score_that_is_not_a_number_is_null_in_the_file_and_named(runs: Path) -> None:
    shutil.rmtree(runs / "study")
    folder = folders(runs)[0]
    result = Result.read(folder)
    first = next(iter(result.metrics))
    replace(result, metrics={**result.metrics, first: math.nan}).write()
    written = json.loads((folder / "result.json").read_text(), parse_constant=pytest.fail)
    assert written["metrics"][first] is None
    assert math.isnan(Result.read(folder).metrics[first])
    (problem,) = read_results(runs).problems
    assert "a score is not a number" in problem


def test_a_seed_is_left_out_only_for_the_metric_that_it_is_judged_by(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    """The worst seed's predictions are all the same, so that a correlation is no number, and its score is one."""
    rows = [row("digits", score, seed) for seed, score in enumerate((80.0, -397.0))]
    rows[1]["result"]["metrics"]["test/digits/other"] = None
    folder = comparison(tmp_path, rows)
    study = read_results(folder)
    assert (study.problems, group_conditions(study.rows)[0].scores) == ([], {0: 80.0, 1: -397.0})
    assert main(["report", str(folder)]) == 0
    for split in ("val", "test"):
        rows[0]["result"]["metrics"][f"{split}/digits/accuracy"] = math.nan
        (problem,) = read_results(comparison(tmp_path / split, rows)).problems
        assert "a score is not a number" in problem
        rows[0] = row("digits", 80.0, 0)


def test_a_scale_of_a_metric_that_the_head_has_not_is_named_once(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    rows = [row(task, 80.0, seed) for task in ("digits", "music") for seed in (0, 1)]
    for one in rows[:2]:
        one["result"]["data"]["digits"]["score_range"]["metric"] = "Accuracy"
    (problem,) = read_results(comparison(tmp_path, rows)).problems
    assert problem.startswith("pictures, digits: its score_range is of Accuracy, and it is scored by accuracy, other")


def test_a_set_tested_on_what_it_is_trained_on_is_named_once(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    rows = [row(task, 80.0, seed) for task in ("digits", "music") for seed in (0, 1)]
    for one in rows[:2]:
        one["result"]["data"]["digits"]["copies"] = 1234
    study = read_results(comparison(tmp_path, rows))
    (problem,) = study.problems
    assert problem.startswith("digits: 1,234 examples of val and test are also in train, byte for byte, and flatter")
    assert len(study.rows) == 4


def test_data_that_changed_between_two_seeds_are_named(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    rows = [row(task, 80.0, seed) for task in ("digits", "music") for seed in (0, 1, 2)]
    rows += [row("digits", 80.0, seed, varied={"share": 0.1}) for seed in (0, 1)]  # each seed draws its own
    rows.append(row("digits", 80.0, varied={"data": "others"}))
    for each, one in enumerate(rows):
        one["result"]["data"][one["task"]]["sha256"] = "a" if each in (0, 2, 3, 4, 5) else f"{each}"
    folder = comparison(tmp_path, rows)
    said = "pictures, digits: its runs read different data, so they are not comparable"
    assert read_results(folder).problems == [said]
    assert main(["report", str(folder)]) == 0
    assert said in (folder / "report.html").read_text()


def test_what_a_comparison_named_already_is_not_named_twice(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    rows = [row("digits", 80.0, 0), row("digits", 1.0, 1, status="failed", error="diverged")]
    named = "20260101-000001-seed1-0001: diverged"
    assert read_results(comparison(tmp_path, rows, problems=[named])).problems == [named]


def test_of_two_runs_with_one_id_the_second_is_left_out(runs: Path) -> None:
    first = folders(runs)[-1]
    shutil.copytree(first, runs / "quarantine" / first.name)
    study = read_results(runs)
    assert len(study.rows) == 4
    (problem,) = study.problems
    assert str(runs / "quarantine" / first.name) in problem
    assert "the same run id as" in problem


def test_runs_are_found_when_all_were_moved(runs: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    runs.rename(moved)
    path = moved / "study" / "20260101-000000" / "comparison.json"
    content = json.loads(path.read_text())
    for row in content["rows"]:
        row["folder"] = "runs/" + "/".join(Path(row["folder"]).parts[-2:])
    path.write_text(json.dumps(content))
    study = read_results(path.parent)
    assert study.problems == []
    assert all(row["folder"].is_relative_to(moved) for row in study.rows)


def test_a_comparison_whose_runs_are_gone_is_reported_without_them(runs: Path) -> None:
    for folder in folders(runs):
        shutil.rmtree(folder)
    study = read_results(runs / "study" / "20260101-000000")
    assert len(study.rows) == 4
    assert len(study.problems) == 4
    assert "folder is gone" in study.problems[0]


def test_a_comparison_without_a_whole_row_says_so(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    folder = comparison(tmp_path, [row("digits", 80.0)])
    path = folder / "comparison.json"
    content = json.loads(path.read_text())
    content["rows"][0]["result"] = None
    path.write_text(json.dumps(content))
    shutil.rmtree(tmp_path / "pictures")
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "No run ended with a score" in page
    assert "no whole result" in page


def test_the_trunks_of_a_fold_are_named_as_its_conditions_are(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    own = row("digits", 80.0, varied={"fold": 1})
    pair = {"a": own, "b": {**own, "mode": "joint"}}
    folder = comparison(tmp_path, [own], representation=[pair])
    for study in (read_results(folder), read_results(tmp_path)):
        assert [condition_label(study.representation[0][one]) for one in "ab"] == ["over folds", "joint, over folds"]


@pytest.mark.parametrize("content", ['{"rows": []}', '{"name": "a", "status": "finished", "rows": [{}]}', "{"])
def test_a_broken_comparison_is_named(
    runs: Path, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs / "study" / "20260101-000000" / "comparison.json"
    path.write_text(content)
    if '"rows": []' not in content:
        assert main(["report", str(runs)]) == 0
        assert f"{path}: broken" in capsys.readouterr().err
    assert main(["report", str(path.parent)]) == 2
    assert f"{path}: broken" in capsys.readouterr().err


def test_a_folder_with_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone: no such folder"):
        read_results(tmp_path / "gone")
    with pytest.raises(InputError, match=r"holds no comparison.json and no finished result.json; give a run's folder"):
        read_results(tmp_path)
