"""Rows are grouped into conditions, and conditions are paired with the baselines that they belong to."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from tests.report.conftest import FROZEN, JOINT, SCORE_RANGES, Row, make_row, make_seeds
from unifier import Comparison, Experiment
from unifier.report.conditions import by_priority, contrast, contrasts, group_conditions, row_budget
from unifier.report.estimates import estimate
from unifier.report.read_results import read_results
from unifier.report.tables import score_tables
from unifier.trials.plan import plan_trials


def pictures(*, dim: int = 8, patch: int = 2) -> Experiment: ...


def genres(*, dim: int = 8) -> Experiment: ...


def test_conditions_are_rows_of_several_seeds() -> None:
    tasks, ways = ("digits", "music"), ({}, JOINT)
    conditions = group_conditions(
        [row for t in tasks for way in ways for row in make_seeds(t, 90.0, 91.0, 92.0, **way)]
    )
    found = [(condition.task, condition.label, len(condition.rows)) for condition in conditions]
    assert found == [(task, label, 3) for task in tasks for label in ("solo", "joint")]
    assert conditions[0].score.mean == 91
    assert conditions[0].normalized_scores == {seed: 100 * (80 + seed) / 88 for seed in range(3)}
    # A repeated seed counts once.
    (condition,) = group_conditions([make_row(score=90.0), make_row(score=90.0), make_row(score=96.0, seed=1)])
    assert condition.score == estimate([90.0, 96.0])


def test_budget_has_only_numbers() -> None:
    row = make_row("digits", 90.0)
    budget = row_budget(row)
    row["result"]["budget"]["cost of another version"] = ["2 dollars"]
    assert row_budget(row) == budget
    assert budget["tokens"] > 0


def test_score_range_is_needed_to_normalize() -> None:
    row = make_row("digits", 90.0)
    data = row["result"]["data"]["digits"]
    data["score_range"]["reference"] = None
    assert group_conditions([row])[0].normalized_score is None
    data["score_range"] |= {"reference": 98.0, "metric": "macro_f1"}  # The head has no such metric.
    (condition,) = group_conditions([row])
    assert (condition.metric, condition.normalized_score) == ("accuracy", None)
    del data["score_range"]
    (condition,) = group_conditions([row])
    assert (condition.metric, condition.normalized_score) == ("accuracy", None)


def test_normalized_scores_of_the_full_study(full: Path) -> None:
    for condition in group_conditions(read_results(full).rows):
        assert math.isfinite(condition.score.mean)
        chance, reference = (float(SCORE_RANGES[condition.task][name]) for name in ("chance", "reference"))
        assert condition.normalized_score is not None
        expected = 100 * (condition.score.mean - chance) / (reference - chance)
        assert condition.normalized_score.mean == pytest.approx(expected)


def test_priority_is_by_validation_score() -> None:
    rows = [make_row("digits", score, varied={"dim": dim}) for dim, score in ((16, 90.0), (32, 85.0), (64, 93.0))]
    for row, score in zip(rows, (88.0, 91.0, 90.0), strict=True):
        row["result"]["metrics"]["val/digits/accuracy"] = score
    moved = make_row("digits", 99.0, start="genres", **FROZEN)
    ranked = by_priority(group_conditions([moved, *rows]))
    assert [condition.label for condition in ranked] == ["dim=32", "dim=64", "dim=16", "genres, frozen"]


def test_differences_are_paired_by_seed() -> None:
    first, second = {0: 1.0, 1: 12.0, 2: 23.0, 7: 99.0}, {0: 0.0, 1: 10.0, 2: 20.0, 8: -5.0}
    low, high = stats.ttest_rel([1, 12, 23], [0, 10, 20]).confidence_interval(0.95)
    joint = [make_row("digits", score, seed, mode="joint") for seed, score in first.items()]
    solo = [make_row("digits", score, seed) for seed, score in second.items()]
    pair = contrast(*group_conditions([*joint, *solo])[::-1])
    assert pair is not None
    assert (pair.gain.low, pair.gain.high, pair.gain.num_values) == (pytest.approx(low), pytest.approx(high), 3)
    without_shared_seed = group_conditions([make_row("digits", mode="joint"), make_row("digits", seed=1)])
    assert contrast(*without_shared_seed) is None


def test_differences_of_a_fold_are_paired_by_seed() -> None:
    """Joint lacks the run of the better seed in one fold, which must not count against it."""
    runs = [(fold, seed) for fold in range(3) for seed in range(2)]
    solo = [make_row("digits", 60.0 + 10 * seed, seed, fold=fold) for fold, seed in runs]
    joint = [make_row("digits", 60.0 + 10 * seed, seed, fold=fold, mode="joint") for fold, seed in runs[:-1]]
    pair = contrast(*group_conditions([*joint, *solo])[::-1])
    assert pair is not None
    assert pair.gains == {0: 0, 1: 0, 2: 0}


def test_trained_trunk_has_solo_and_two_controls() -> None:
    rows = [
        make_row("digits", 95.0),
        make_row("digits", 85.0, start="genres", **FROZEN),
        make_row("digits", 55.0, start="genres", shuffled=True, **FROZEN),
        make_row("digits", 60.0, **FROZEN),
    ]
    gains = {(pair.condition.label, pair.baseline.label): pair.gain.mean for pair in contrasts(group_conditions(rows))}
    assert gains == {
        ("genres, frozen", "solo"): -10,
        ("genres, frozen", "random, frozen"): 25,
        ("genres, frozen", "genres shuffled, frozen"): 30,
        ("genres shuffled, frozen", "solo"): -40,
        ("random, frozen", "solo"): -35,
    }


def test_baseline_is_of_the_same_experiment() -> None:
    rows: list[Row] = []
    for experiment, other, solo in (("easy", "hard", 90.0), ("hard", "easy", 50.0)):
        rows.append(make_row("digits", solo, experiment=experiment))
        rows.append(make_row("digits", solo + 1, experiment=experiment, mode="transfer", start=other))
    assert [condition.label for condition in group_conditions(rows[::2])] == ["easy", "hard"]
    pairs = contrasts(group_conditions(rows))
    found = [(pair.condition.experiment_task, pair.baseline.experiment_task, pair.gain.mean) for pair in pairs]
    assert found == [((name, "digits"), (name, "digits"), 1) for name in ("easy", "hard")]


def test_joint_baseline_is_of_its_own_experiments() -> None:
    joint = make_row("digits", 91.0, **JOINT)
    joint["result"]["settings"] = {"easy": {"dim": 32}, "genres": {"dim": 32}}
    easy, hard = (make_row("digits", score, experiment=name) for name, score in (("easy", 90.0), ("hard", 50.0)))
    for rows in ([joint, easy, hard], [joint, hard, easy]):
        (pair,) = contrasts(group_conditions(rows))
        assert (pair.baseline.experiment_task, pair.gain.mean) == (("easy", "digits"), 1)
        cells = [row["minus solo, normalized"] for row in score_tables(group_conditions(rows))["digits"]]
        assert sorted(cells) == ["+1.1", "–", "–"]
    assert contrasts(group_conditions([joint, hard])) == []


def test_baseline_shares_the_most_settings() -> None:
    joint = make_row("digits", 91.0, mode="joint", experiment="both")
    joint["result"]["settings"] |= {"depth": 2, "tokens": 128_000}
    near, far = (make_row("digits", score, experiment=name) for name, score in (("near", 90.0), ("far", 50.0)))
    near["result"]["settings"] |= {"depth": 2}
    far["result"]["settings"] |= {"depth": 6, "dim": 64}
    for rows in ([joint, near, far], [joint, far, near]):
        (pair,) = contrasts(group_conditions(rows))
        assert pair.baseline.experiment_task == ("near", "digits")


def test_baseline_may_lack_a_varied_setting() -> None:
    # The experiment `genres` has no setting `patch`, so its solo run is the baseline for each patch.
    options: dict[str, Any] = {"modes": ("solo", "joint", "transfer"), "trainable": ("none", "all")}
    study = Comparison("study", [pictures, genres], seeds=(0,), grid={"patch": (2, 4)}, **options)
    rows: list[Row] = []
    for facts in (trial.row() for trial in plan_trials(study)):
        tasks = {"pictures": ["digits"], "genres": ["music"]}.get(facts["experiment"], ["digits", "music"])
        rows += [make_row(task, 80.0, **facts) for task in tasks]
    pairs = contrasts([condition for condition in group_conditions(rows) if condition.task == "music"])
    labels = {(pair.condition.label, pair.baseline.label) for pair in pairs}
    for patch in (2, 4):
        assert (f"joint, patch={patch}", "solo") in labels
        for baseline in ("solo", "random, frozen", f"pictures shuffled, frozen, patch={patch}"):
            assert (f"pictures, frozen, patch={patch}", baseline) in labels
    assert not [pair for pair in labels if "patch=2" in pair[0] and "patch=4" in pair[1]]
