"""From rows to numbers: means and intervals, pairs, what is matched, the answer."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from unifier.report.conditions import Condition, contrast, contrasts, group_conditions
from unifier.report.estimates import decimals, estimate, format_number
from unifier.report.read_results import read_results
from unifier.report.summary import joint_effect, summarize
from unifier.report.tables import matching_sentence, unmatched
from unifier.report.transfer import retained_scores, transfer_grids

Rows = Callable[..., dict[str, Any]]
FULL_SCALE = {"digits": (10, 98), "en-fr": (0, 96), "music": (20, 90)}
"""Chance and reference of the rows that conftest makes."""


def find(found: list[Condition], task: str, label: str) -> Condition:
    (one,) = (condition for condition in found if (condition.task, condition.label) == (task, label))
    return one


@pytest.fixture
def two_ways(row: Rows) -> list[dict[str, Any]]:
    """Solo and joint over three seeds; joint is 1 above on digits and 2 below on music, give or take."""
    jitter = (-0.1, 0.0, 0.1)
    return [
        *(row("digits", 90 + seed, seed) for seed in range(3)),
        *(row("digits", 91 + seed + jitter[seed], seed, mode="joint", experiment="joint") for seed in range(3)),
        *(row("music", 70 - seed, seed) for seed in range(3)),
        *(row("music", 68 - seed + jitter[seed], seed, mode="joint", experiment="joint") for seed in range(3)),
    ]


def test_the_interval_is_student_s() -> None:
    values = np.random.default_rng(0).normal(3, 2, 5)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = estimate(values)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.sign == int(low > 0) - int(high < 0)


def test_one_seed_has_no_interval() -> None:
    found = estimate([4.0])
    assert (found.mean, found.half, found.low, found.sign) == (4.0, None, None, 0)


def test_differences_are_paired_by_seed(row: Rows) -> None:
    first, second = {0: 1.0, 1: 12.0, 2: 23.0, 7: 99.0}, {0: 0.0, 1: 10.0, 2: 20.0, 8: -5.0}
    low, high = stats.ttest_rel([1, 12, 23], [0, 10, 20]).confidence_interval(0.95)
    joint, solo = group_conditions(
        [
            *(row("digits", score, seed, mode="joint") for seed, score in first.items()),
            *(row("digits", score, seed) for seed, score in second.items()),
        ]
    )[::-1]
    found = contrast(joint, solo)
    assert found is not None
    assert (found.gain.low, found.gain.high, found.gain.size) == (pytest.approx(low), pytest.approx(high), 3)
    alone = group_conditions([row("digits", 1.0, 0, mode="joint"), row("digits", 1.0, 1)])
    assert contrast(*alone) is None


def test_and_within_a_fold_by_its_seeds(row: Rows) -> None:
    """One run of six failed, of the seed that does better: what is left is the same for both."""
    runs = [(fold, seed) for fold in range(3) for seed in range(2)]
    solo = [row("digits", 60.0 + 10 * seed, seed, fold=fold) for fold, seed in runs]
    joint = [row("digits", 60.0 + 10 * seed, seed, fold=fold, mode="joint") for fold, seed in runs[:-1]]
    found = contrast(*group_conditions([*joint, *solo])[::-1])
    assert found is not None
    assert found.gains == {0: 0, 1: 0, 2: 0}
    (said,) = joint_effect(group_conditions([*joint, *solo]))
    assert said.overall is not None
    assert (said.overall.mean, said.overall.half) == (0, None)


def test_conditions_are_rows_but_for_the_seed(two_ways: list[dict[str, Any]]) -> None:
    found = group_conditions(two_ways)
    assert [(one.task, one.label, len(one.rows)) for one in found] == [
        ("digits", "solo", 3),
        ("digits", "joint", 3),
        ("music", "solo", 3),
        ("music", "joint", 3),
    ]
    assert found[0].score.mean == 91
    assert found[0].normalized_scores == {seed: 100 * (80 + seed) / 88 for seed in range(3)}


def test_a_seed_that_was_run_twice_counts_once(row: Rows) -> None:
    (found,) = group_conditions([row("digits", 90.0, 0), row("digits", 90.0, 0), row("digits", 96.0, 1)])
    assert found.score == estimate([90.0, 96.0])


def test_without_a_reference_there_is_no_normalized_score_and_the_first_metric_is_taken(row: Rows) -> None:
    bare = row("digits", 90.0)
    bare["result"]["data"]["digits"]["score_range"]["reference"] = None
    assert group_conditions([bare])[0].normalized_score is None
    del bare["result"]["data"]["digits"]["score_range"]
    (found,) = group_conditions([bare])
    assert (found.metric, found.normalized_score) == ("accuracy", None)


def test_a_trained_trunk_is_held_against_solo_and_both_controls(row: Rows) -> None:
    moved = {"mode": "transfer", "trainable": "none"}
    rows = [
        row("digits", 95.0),
        row("digits", 85.0, start="genres", **moved),
        row("digits", 55.0, start="genres", shuffled=True, **moved),
        row("digits", 60.0, **moved),
    ]
    found = {(one.condition.label, one.baseline.label): one.gain.mean for one in contrasts(group_conditions(rows))}
    assert found == {
        ("genres, frozen", "solo"): -10,
        ("genres, frozen", "random, frozen"): 25,
        ("genres, frozen", "genres shuffled, frozen"): 30,
        ("genres shuffled, frozen", "solo"): -40,
        ("random, frozen", "solo"): -35,
    }


def test_experiments_that_differ_in_no_fact_are_told_apart_by_name(row: Rows) -> None:
    found = group_conditions([row("digits", 90.0, experiment="rotary"), row("digits", 91.0, experiment="learned")])
    assert [one.label for one in found] == ["rotary", "learned"]


def test_a_scale_of_another_metric_is_none(row: Rows) -> None:
    one = row("digits", 90.0)
    one["result"]["data"]["digits"]["score_range"]["metric"] = "macro_f1"
    (found,) = group_conditions([one])
    assert (found.metric, found.normalized_score) == ("accuracy", None)


def test_what_is_not_matched_is_flagged_with_its_range(row: Rows) -> None:
    rows = [row(budget={"flops": flops, "seconds": seconds}) for flops, seconds in ((8e11, 10.0), (1.3e12, 31.0))]
    assert (
        matching_sentence(rows)
        == "equal within 2 %: tokens, steps and parameters; different: FLOPs 0.8–1.3 T, seconds 10–31"
    )
    assert unmatched([row(budget={"tokens": tokens}) for tokens in (1000, 1020)]) == []
    assert [one.measure for one in unmatched([row(budget={"tokens": tokens}) for tokens in (1000, 1021)])] == ["tokens"]
    assert matching_sentence([row()]) == ""


def test_what_a_trunk_had_read_before_it_was_transferred_is_said_not_to_count(row: Rows) -> None:
    own, moved = row(), {"mode": "transfer", "trainable": "none"}
    said = "the pretraining of transferred trunks is not counted"
    assert matching_sentence([own, row(start="genres", **moved)]) == f"{matching_sentence([own, own])}; {said}"
    assert said not in matching_sentence([own, row(**moved)]), "a random trunk has read nothing"


def test_an_task_s_own_budget_counts_not_its_run_s(row: Rows) -> None:
    joint = row(mode="joint")
    joint["result"]["budget"] = {**joint["result"]["budget"], "tokens": 3 * 64_000}
    assert unmatched([row(), joint]) == []


def test_tasks_of_a_run_whose_costs_are_not_told_apart_are_not_called_matched(row: Rows) -> None:
    rows = [row(task, 80.0, mode="joint") for task in ("digits", "music")]
    for one in rows:
        del one["result"]["task_budgets"]
    assert matching_sentence(rows) == "the cost of each task in the joint run was not recorded"


def test_the_answer_is_the_mean_paired_difference(two_ways: list[dict[str, Any]]) -> None:
    found = group_conditions(two_ways)
    (result,) = joint_effect(found)
    jitter = np.array([-0.1, 0.0, 0.1])
    expected = estimate(100 * ((1 + jitter) / 88 + (jitter - 2) / 70) / 2)
    assert result.overall == pytest.approx(expected)
    said = " ".join(summarize(found))
    assert f"costs {format_number(-expected.mean, decimals(expected))} points of normalized score" in said
    assert "digits fares best" in said
    assert "music worst" in said


def test_the_answer_is_honest_where_the_interval_holds_nothing(two_ways: list[dict[str, Any]]) -> None:
    for row, shift in zip(two_ways[9:], (-4.0, 0.0, 4.0), strict=True):
        row["result"]["metrics"]["test/music/accuracy"] += 1.2 + shift
    assert "cannot be told apart over 3 seeds" in summarize(group_conditions(two_ways))[0]


def test_the_answer_says_when_there_is_one_seed(two_ways: list[dict[str, Any]]) -> None:
    said = " ".join(summarize(group_conditions([row for row in two_ways if row["seed"] == 0])))
    assert "one seed: no interval" in said
    assert "±" not in said


def test_the_answer_of_one_run_is_its_score_and_of_none_that_there_is_none(row: Rows) -> None:
    assert summarize(group_conditions([row("digits", 91.25)])) == ["digits reaches 91.2 accuracy, with one seed."]
    assert summarize([])[0].startswith("No run ended")


def test_the_answer_of_a_sweep_is_its_best_setting(row: Rows) -> None:
    scores = {2: (97.0, 97.4, 97.1), 4: (93.0, 93.2, 93.3), 8: (80.0, 80.1, 80.2)}
    rows = [
        row("digits", score, seed, varied={"patch": patch})
        for patch, of_seeds in scores.items()
        for seed, score in enumerate(of_seeds)
    ]
    (said,) = summarize(group_conditions(rows))
    assert said.startswith(
        "For digits, patch=2 is chosen on validation: 97.2 accuracy on the test split, 4.00 above patch=4"
    )
    close = [row("digits", score, seed, varied={"patch": p}) for p in (1, 2) for seed, score in ((0, 90), (1, 90 + p))]
    assert "cannot be told apart" in summarize(group_conditions(close))[0]


def test_the_share_that_a_frozen_trunk_keeps(row: Rows) -> None:
    def moved(score: float, start: str, tuned: str) -> dict[str, Any]:
        return row("music", score, mode="transfer", start=start, trainable=tuned)

    rows = [moved(62.0, "pictures", "none"), moved(80.0, "pictures", "all"), moved(55.0, "translation", "none")]
    best, other = retained_scores(group_conditions([row("music", 76.0), *rows]))
    assert best.share is not None
    assert other.share is not None
    assert (best.start, best.share.mean) == ("pictures", pytest.approx(100 * 42 / 60))
    assert (other.start, other.share.mean, other.tuned.label) == ("translation", pytest.approx(100 * 35 / 56), "solo")


def test_the_matrix_holds_every_pair_and_its_controls(row: Rows) -> None:
    moved = {"mode": "transfer", "trainable": "none"}
    rows = [
        row("digits", 95.0),
        row("music", 80.0),
        row("digits", 85.0, start="genres", **moved),
        row("music", 70.0, start="pictures", **moved),
        row("digits", 55.0, start="genres", shuffled=True, **moved),
        row("digits", 60.0, **moved),
    ]
    (grid,) = transfer_grids(group_conditions(rows))
    cells = {
        line: dict(zip(grid.columns, values, strict=True)) for line, values in zip(grid.rows, grid.cells, strict=True)
    }
    assert cells["from genres"] == {"digits": pytest.approx(100 * 75 / 88), "music": None}
    assert cells["from pictures"] == {"digits": None, "music": pytest.approx(100 * 50 / 70)}
    assert cells["genres, shuffled"]["digits"] == pytest.approx(100 * 45 / 88)
    assert cells["random, frozen"]["digits"] == pytest.approx(100 * 50 / 88)
    assert cells["random, all trained (solo)"]["music"] == pytest.approx(100 * 60 / 70)
    for one in rows:
        one["result"]["data"][one["task"]]["score_range"] = {"metric": "accuracy", "chance": 0, "reference": None}
    (grid,) = transfer_grids(group_conditions(rows))
    assert grid.cells[0][0] == pytest.approx(100 * 85 / 95)
    assert "solo" in grid.unit


def test_a_control_is_one_whatever_the_experiments_are_called(row: Rows) -> None:
    moved = {"mode": "transfer", "start": "from_shuffled", "trainable": "none"}
    rows = [row("digits", 95.0), *(row("digits", 80.0, shuffled=one, **moved) for one in (False, True))]
    (grid,) = transfer_grids(group_conditions(rows))
    assert grid.rows == ["from from shuffled", "from shuffled, shuffled", "random, all trained (solo)"]
    assert grid.controls == grid.rows[1:]


def test_every_number_of_the_full_study_is_one(full: Path) -> None:
    found = group_conditions(read_results(full).rows)
    assert all(math.isfinite(one.score.mean) for one in found)
    for one in found:
        chance, reference = FULL_SCALE[one.task]
        assert one.normalized_score is not None
        assert one.normalized_score.mean == pytest.approx(100 * (one.score.mean - chance) / (reference - chance))
