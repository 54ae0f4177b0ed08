"""Scores of a cross-validation: folds are the units of the mean and of its interval."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from unifier.report.conditions import group_conditions
from unifier.report.read_results import read_results
from unifier.report.summary import summarize
from unifier.report.tables import run_table

Rows = Callable[..., dict[str, Any]]


def test_mean_over_folds_counts_folds_not_seeds(row: Rows, comparison: Callable[..., Path], tmp_path: Path) -> None:
    scores = np.random.default_rng(0).normal(80, 5, (2, 4, 3))  # Axes: patch, fold, seed.
    rows = [
        row("digits", scores[patch, fold, seed], seed, varied={"fold": fold, "patch": patch})
        for patch in range(2)
        for fold in range(4)
        for seed in range(3)
    ]
    rows.append(row("digits", 10.0, 0, varied={"fold": None, "patch": 0}))  # This one was tested on no fold.
    study = read_results(comparison(tmp_path / "runs", rows))
    first, second, apart = group_conditions(study.rows)
    assert [each.label for each in (first, second)] == ["patch=0, over folds", "patch=1, over folds"]
    low, high = stats.ttest_1samp(scores[0].mean(1), 0).confidence_interval(0.95)
    assert (first.score.low, first.score.high) == (pytest.approx(low), pytest.approx(high))
    assert (first.score.num_values, first.score.unit) == (4, "fold")
    assert (apart.score.mean, apart.score.unit) == (10.0, "seed")
    assert "seed" not in summarize([first, second])[0]
    table = run_table(study.rows, {id(each): "" for each in study.rows})
    assert [line["fold"] for line in table[:-1]] == [str(fold) for _ in range(2) for fold in range(4) for _ in range(3)]
    assert table[-1]["fold"] == "–"
