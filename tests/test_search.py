"""A search tries as many unlike combinations as it is asked to, and goes where scores are better."""

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from unifier import Comparison, Experiment, Result
from unifier.running.search import searched
from unifier.study.comparison import Trial

GRID = {"dim": (8, 16, 32, 64), "depth": (1, 2, 3), "rate": (0.1, 0.2, 0.3)}
NOTHING = Result(
    name="made",
    arms=["digits"],
    seed=0,
    status="finished",
    metrics={},
    signatures={},
    parameters={},
    budget={},
    arm_budgets={},
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
        return replace(NOTHING, metrics={"val/digits/accuracy": score, "test/digits/accuracy": -score})

    comparison = Comparison("made", [made], seeds=seeds, vary=grid, search=search)
    return list(searched(comparison, result))


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
