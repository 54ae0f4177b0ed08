"""How the score grows: power laws with their exponents, errors over shares of the examples, points of a sweep."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from unifier.report.conditions import group_conditions
from unifier.report.scaling_law import efficiencies, fit_law, sweep_points
from unifier.report.summary import summarize

Rows = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("a", "b", "c"), [(20.0, 0.5, 0.0), (3.0, 0.25, 4.0)])
def test_a_power_law_is_found_again(a: float, b: float, c: float) -> None:
    n = np.array([0.01, 0.03, 0.1, 0.3, 1.0])
    law = fit_law(list(n), list(a * n**-b + c))
    assert law is not None
    assert (law.a, law.b, law.c) == (pytest.approx(a, rel=1e-3), pytest.approx(b, rel=1e-3), pytest.approx(c, abs=1e-2))
    assert law.half_of_b < 1e-3
    np.testing.assert_allclose(law.at(n), a * n**-b + c, rtol=1e-3)


@pytest.mark.parametrize("errors", [(50, 10, 10.5, 9.8), (80, 20, 20.2, 19.9, 20.1), (50, 50.1, 49.9, 50)])
def test_points_that_do_not_tell_an_exponent_have_no_law(errors: tuple[float, ...]) -> None:
    assert fit_law((0.05, 0.2, 0.5, 0.7, 1)[-len(errors) :], errors) is None


def test_the_exponents_interval_is_student_s_times_its_spread_over_draws() -> None:
    drawn, n = np.random.default_rng(0), np.array([0.05, 0.1, 0.2, 0.5, 1])
    laws = [fit_law(n.tolist(), (10 * n**-0.5 + 2 + drawn.normal(0, 0.3, 5)).tolist()) for _ in range(200)]
    found = [law for law in laws if law]
    spread, freedom = np.std([law.b for law in found]), len(n) - 3
    half = np.mean([law.half_of_b for law in found])
    assert half == pytest.approx(stats.t.ppf(0.975, freedom) * spread, rel=0.2)
    holding = np.mean([abs(law.b - 0.5) <= law.half_of_b for law in found])
    assert holding > 0.9


def test_a_law_needs_four_shares(row: Rows) -> None:
    rows = [row("digits", 98 - 5 * n**-0.5, varied={"share": n}) for n in (0.03, 0.1, 0.3, 1.0)]
    (found,) = efficiencies(group_conditions(rows))
    assert found.law is not None
    assert found.law.b == pytest.approx(0.5, rel=1e-2)
    assert found.errors[-1].mean == pytest.approx(100 * 5 / 88)
    assert "falls by 29 % each time the examples double (exponent 0.50 ± 0.00)" in summarize(group_conditions(rows))[0]
    (found,) = efficiencies(group_conditions(rows[1:]))
    assert found.law is None
    assert "from 10 % to 100 %" in summarize(group_conditions(rows[1:]))[0]


def test_an_exponent_that_may_be_0_is_not_claimed(row: Rows) -> None:
    shares, scores = (0.1, 0.2, 0.5, 1.0), (60.0, 72.0, 71.0, 79.0)
    rows = [row("digits", score, varied={"share": n}) for n, score in zip(shares, scores, strict=True)]
    (found,) = efficiencies(group_conditions(rows))
    assert found.law is not None
    assert 0 < found.law.b < found.law.half_of_b
    (said,) = summarize(group_conditions(rows))
    assert "from 10 % to 100 % of the examples the error goes from" in said
    assert said.endswith("is not distinguishable from 0.")
    assert "falls" not in said


def test_ways_of_training_have_a_curve_each(row: Rows) -> None:
    shares = (0.1, 1.0)
    solo = [row("digits", 50.0 + 10 * share, varied={"share": share}) for share in shares]
    joint = [row("digits", 80.0 + 10 * share, mode="joint", varied={"share": share}) for share in shares]
    other = [row("digits", 30.0, experiment="other", dim=8, varied={"share": share, "dim": 8}) for share in shares]
    found = efficiencies(group_conditions([*solo, *joint, *other]))
    assert [one.name for one in found] == ["digits", "digits, dim=8", "digits, joint"]
    assert {one.task for one in found} == {"digits"}
    assert [len(one.shares) for one in found] == [2, 2, 2]
    (first, second) = efficiencies(group_conditions([*solo, *(row | {"experiment": "other"} for row in solo)]))
    assert (first.name, second.name) == ("digits, pictures", "digits, other")


def test_a_score_above_the_reference_is_counted_from_a_perfect_one(row: Rows) -> None:
    rows = [row("digits", score, varied={"share": share}) for share, score in ((0.1, 90.0), (1.0, 98.5))]
    (found,) = efficiencies(group_conditions(rows))
    assert [one.mean for one in found.errors] == [10, 1.5]


def test_of_a_metric_that_goes_to_one_that_is_one(row: Rows) -> None:
    rows = [row("digits", score, varied={"share": share}) for share, score in ((0.1, 0.5), (1.0, 0.75))]
    for one in rows:
        one["result"]["data"]["digits"] |= {"score_range": {"metric": "accuracy"}, "max_score": 1.0}
    (found,) = efficiencies(group_conditions(rows))
    assert [one.mean for one in found.errors] == [0.5, 0.25]


def test_a_sweep_stands_over_columns_an_example_and_flops(row: Rows) -> None:
    rows = [
        row(
            "digits",
            90.0 + patch,
            varied={"patch": patch},
            budget={"tokens": 64_000 // patch, "flops": 10**12 // patch},
        )
        for patch in (1, 4)
    ]
    (points,) = sweep_points(group_conditions(rows)).values()
    assert [(one.label, one.columns, one.flops) for one in points] == [("patch=4", 4, 2.5e11), ("patch=1", 16, 1e12)]
