"""A search tries as many unlike combinations as it is asked to, and goes where scores are better."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from unifier import Comparison, Experiment, Result
from unifier.trials.plan import Trial, count_trials
from unifier.trials.runner import plan_search, validation_score

GRID = {"dim": (8, 16, 32, 64), "depth": (1, 2, 3), "rate": (0.1, 0.2, 0.3)}
NOTHING = Result(
    name="made",
    tasks=["digits"],
    seed=0,
    status="finished",
    metrics={},
    signatures={},
    parameters={},
    budget={},
    task_budgets={},
    speed={},
    settings={},
    data={},
    versions={},
    commit="",
    machine="",
    error="",
    folder=Path(),
)


def made(*, dim: int = 8, depth: int = 1, rate: float = 0.1) -> Experiment:
    raise NotImplementedError


def tried(search: int, grid: dict[str, Any], seeds: tuple[int, ...] = (0,)) -> list[Trial]:
    """The trials of a search, whose best scores are those of the widest and deepest."""

    def result(trial: Trial) -> Result:
        score = trial.varied["dim"] + 10.0 * trial.varied.get("depth", 0)
        metrics = {"val/digits/accuracy": score, "test/digits/accuracy": -score}
        return replace(NOTHING, metrics=metrics, data={"digits": {"max_score": 100.0}})

    comparison = Comparison("made", [made], seeds=seeds, grid=grid, search=search)
    trials = list(plan_search(comparison, result))
    assert count_trials(comparison) == len(trials)
    return trials


def test_tasks_count_by_what_is_perfect_in_each_and_not_where_there_is_no_number() -> None:
    perfect = {"digits": {"max_score": 100.0}, "moods": {"max_score": 1.0}}
    both = replace(NOTHING, tasks=["digits", "moods"], data=perfect)
    metrics = {
        "test/digits/accuracy": 0.0,
        "val/digits/accuracy": 60.0,
        "val/moods/macro_auc": 0.8,
        "val/moods/map": 0.1,
    }
    assert validation_score(replace(both, metrics=metrics)) == pytest.approx(70)
    assert validation_score(replace(both, metrics={**metrics, "val/moods/macro_auc": math.nan})) == 60


@pytest.mark.parametrize("search", [1, 12, 30, 36])
def test_as_many_unlike_combinations_are_tried_as_asked_for(search: int) -> None:
    assert len({tuple(trial.varied.values()) for trial in tried(search, GRID)}) == search


def test_no_more_are_tried_than_there_are_each_with_every_seed() -> None:
    trials = tried(20, {"dim": (8, 16, 32)}, seeds=(0, 1))
    assert sorted((trial.varied["dim"], trial.seed) for trial in trials) == [
        (dim, seed) for dim in (8, 16, 32) for seed in (0, 1)
    ]


def test_the_same_scores_make_the_same_search_and_better_ones_are_sought() -> None:
    wide = {"dim": tuple(range(100)), "depth": tuple(range(10))}
    trials = tried(60, wide)
    assert trials == tried(60, wide)
    scores = [trial.varied["dim"] + 10 * trial.varied["depth"] for trial in trials]
    assert mean(scores[-20:]) > mean(scores[:10]) + 10


def test_a_combination_that_at_times_fails_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float | None] = []
    monkeypatch.setattr("optuna.study.Study.tell", lambda _, asked, value=None, **__: told.append(value))

    def result(trial: Trial) -> Result:
        failed = trial.varied["dim"] == 32 and trial.seed == 1
        metrics = {"val/digits/accuracy": float(trial.varied["dim"])}
        status = "failed" if failed else "finished"
        return replace(NOTHING, status=status, metrics=metrics, data={"digits": {"max_score": 100.0}})

    list(plan_search(Comparison("made", [made], seeds=(0, 1), grid={"dim": (8, 32)}, search=2), result))
    assert sorted(told, key=str) == [8.0, None]
