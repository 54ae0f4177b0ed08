"""Numbers of a comparison that varies settings: each value by itself, and with it what has not the setting."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unifier import Comparison, Experiment
from unifier.report.conditions import contrasts, group_conditions
from unifier.report.page import report_on
from unifier.report.summary import joint_effect, summarize
from unifier.report.transfer import retained_scores, transfer_grids
from unifier.trials.plan import plan_trials

Rows = Callable[..., dict[str, Any]]
TRAINED = {"pictures": "digits", "genres": "music"}


def pictures(*, dim: int = 8, patch: int = 2) -> Experiment: ...


def genres(*, dim: int = 8) -> Experiment: ...


def rows_of(row: Rows, score: Callable[[dict[str, Any], str], float], **vary: Any) -> list[dict[str, Any]]:
    """The rows of every kind that a comparison of two experiments leaves, with the scores that `score` gives them."""
    modes = ("solo", "joint", "transfer")
    study = Comparison("study", [pictures, genres], seeds=(0, 1), modes=modes, trainable=("none", "all"), grid=vary)
    rows: list[dict[str, Any]] = []
    for facts in (trial.row() for trial in plan_trials(study)):
        for task in TRAINED.values() if facts["mode"] == "joint" else [TRAINED[facts["experiment"]]]:
            reached = score(facts, task) + facts["seed"]
            rows.append(row(task, reached, **facts))
    return rows


def test_a_setting_that_one_experiment_has_takes_no_baseline_from_the_other(row: Rows) -> None:
    found = contrasts(group_conditions(rows_of(row, lambda *_: 80.0, patch=(2, 4))))
    of_music = {(one.condition.label, one.baseline.label) for one in found if one.condition.task == "music"}
    for patch in (2, 4):
        said = f"patch={patch}"
        assert (f"joint, {said}", "solo") in of_music
        for baseline in ("solo", "random, frozen", f"pictures shuffled, frozen, {said}"):
            assert (f"pictures, frozen, {said}", baseline) in of_music
    assert not [pair for pair in of_music if "patch=2" in pair[0] and "patch=4" in pair[1]]


def test_a_joint_trunk_of_each_setting_is_held_against_solo_of_the_same(row: Rows) -> None:
    def score(facts: dict[str, Any], task: str) -> float:
        return 60 + facts["varied"]["dim"] / 8 * (1 + (facts["mode"] == "joint"))

    found = group_conditions(rows_of(row, score, dim=(8, 16)))
    for one in found:
        one.rows[0]["result"]["data"].clear()
    narrow, wide = joint_effect(found)
    assert narrow.overall is not None
    assert wide.overall is not None
    assert (narrow.settings, narrow.overall.mean) == ("dim=8", pytest.approx(1))
    assert (wide.settings, wide.overall.mean) == ("dim=16", pytest.approx(2))
    said = " ".join(summarize(found))
    assert "With dim=8: one trunk for both tasks" in said
    assert "With dim=16: one trunk for both tasks" in said


def test_a_frozen_trunk_is_a_share_of_the_one_tuned_under_the_same_setting(row: Rows) -> None:
    def score(facts: dict[str, Any], task: str) -> float:
        return {8: 40.0, 16: 80.0}[facts["varied"]["dim"]] * (0.5 if facts["trainable"] == "none" else 1)

    rows = rows_of(row, score, dim=(8, 16))
    for one in rows:
        one["result"]["data"].clear()
        one["result"]["metrics"][f"test/{one['task']}/accuracy"] -= one["seed"]
    assert {one.share.mean for one in retained_scores(group_conditions(rows)) if one.share} == {50}
    said = summarize(group_conditions(rows))
    assert sum(sentence.startswith("With dim=8: on the best of 2 pairs") for sentence in said) == 1
    assert sum(sentence.startswith("With dim=16: on the best of 2 pairs") for sentence in said) == 1


def test_a_grid_holds_one_value_of_what_varies(row: Rows, comparison: Callable[..., Path], tmp_path: Path) -> None:
    def score(facts: dict[str, Any], task: str) -> float:
        return 70.0 + facts["varied"].get("patch", 0)

    rows = rows_of(row, score, patch=(2, 4))
    grids = {grid.title: grid for grid in transfer_grids(group_conditions(rows))}
    titles = [f"trunk {tuned}, patch={patch}" for tuned in ("frozen", "all trained") for patch in (2, 4)]
    assert sorted(grids) == sorted(titles)
    for title, grid in grids.items():
        patch = int(title[-1])
        cells = dict(zip(grid.rows, grid.cells, strict=True))
        assert cells["from genres"][0] == pytest.approx(100 * (60.5 + patch) / 88)
        assert cells["from pictures"][1] == pytest.approx(100 * (50.5 + patch) / 70)
        assert cells["random, all trained (solo)"][1] == pytest.approx(100 * 50.5 / 70)
    folder = comparison(tmp_path, rows)
    report_on(folder)
    for name in ("joint-minus-solo-patch-2", "joint-minus-solo-patch-4", "transfer-trunk-frozen-patch-4"):
        assert (folder / "figures" / f"{name}.svg").exists()
