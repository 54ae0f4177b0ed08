"""Power laws of the error over shares of the examples, and the points of a sweep."""

import numpy as np
import pytest
from scipy import stats

from tests.report.conftest import make_row, with_metric
from unifier.report.conditions import group_conditions
from unifier.report.scaling_law import DataEfficiency, efficiencies, fit_law, sweep_points
from unifier.report.summary import summarize


def make_shares(scores: dict[float, float], metric: str = "accuracy", max_score: float | None = None):
    rows = [make_row("digits", score, varied={"share": share}) for share, score in scores.items()]
    return rows if metric == "accuracy" else [with_metric(row, metric, max_score) for row in rows]


def only_curve(rows: list[dict[str, object]]) -> DataEfficiency:
    (curve,) = efficiencies(group_conditions(rows))
    return curve


@pytest.mark.parametrize(("a", "b", "c"), [(20.0, 0.5, 0.0), (3.0, 0.25, 4.0)])
def test_power_law_is_recovered(a: float, b: float, c: float) -> None:
    n = np.array([0.01, 0.03, 0.1, 0.3, 1.0])
    law = fit_law(list(n), list(a * n**-b + c))
    assert law is not None
    assert (law.a, law.b, law.c) == (pytest.approx(a, rel=1e-3), pytest.approx(b, rel=1e-3), pytest.approx(c, abs=1e-2))
    assert law.b_half_width < 1e-3
    np.testing.assert_allclose(law.predict(n), a * n**-b + c, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("errors", [(50, 10, 10.5, 9.8), (80, 20, 20.2, 19.9, 20.1), (50, 50.1, 49.9, 50)])
def test_undetermined_exponent_has_no_law(errors: tuple[float, ...]) -> None:
    assert fit_law((0.05, 0.2, 0.5, 0.7, 1)[-len(errors) :], errors) is None


@pytest.mark.slow
def test_interval_of_the_exponent_is_calibrated() -> None:
    generator, n = np.random.default_rng(0), np.array([0.05, 0.1, 0.2, 0.5, 1])
    fits = [fit_law(n.tolist(), (10 * n**-0.5 + 2 + generator.normal(0, 0.3, 5)).tolist()) for _ in range(200)]
    laws = [law for law in fits if law]
    spread, degrees_of_freedom = np.std([law.b for law in laws]), len(n) - 3
    half_width = np.mean([law.b_half_width for law in laws])
    assert half_width == pytest.approx(stats.t.ppf(0.975, degrees_of_freedom) * spread, rel=0.2)
    assert np.mean([abs(law.b - 0.5) <= law.b_half_width for law in laws]) > 0.9


def test_law_needs_four_shares() -> None:
    rows = make_shares({n: 98 - 5 * n**-0.5 for n in (0.03, 0.1, 0.3, 1.0)})
    curve = only_curve(rows)
    assert curve.law is not None
    assert curve.law.b == pytest.approx(0.5, rel=1e-2)
    assert curve.errors[-1].mean == pytest.approx(100 * 5 / 88)
    answers = [summarize(group_conditions(each)).sentences[0] for each in (rows, rows[1:])]
    assert "falls by 29 % each time the examples double (exponent 0.50 ± 0.00)" in answers[0]
    assert only_curve(rows[1:]).law is None
    assert "from 10 % to 100 %" in answers[1]


def test_exponent_that_may_be_0_is_not_claimed() -> None:
    rows = make_shares({0.1: 60.0, 0.2: 72.0, 0.5: 71.0, 1.0: 79.0})
    law = only_curve(rows).law
    assert law is not None
    assert 0 < law.b < law.b_half_width
    (sentence,) = summarize(group_conditions(rows)).sentences
    assert "not distinguishable from 0" in sentence
    assert "falls" not in sentence


def test_each_way_of_training_has_a_curve() -> None:
    solo = make_shares({0.1: 51.0, 1.0: 60.0})
    joint = [make_row("digits", 80.0 + 10 * share, mode="joint", varied={"share": share}) for share in (0.1, 1.0)]
    other = [make_row("digits", 30.0, experiment="other", varied={"share": n, "dim": 8}) for n in (0.1, 1.0)]
    curves = efficiencies(group_conditions([*solo, *joint, *other]))
    names = ("digits", "digits, dim=8", "digits, joint")
    assert [(curve.task, curve.name, len(curve.shares)) for curve in curves] == [("digits", name, 2) for name in names]
    curves = efficiencies(group_conditions([*solo, *(row | {"experiment": "other"} for row in solo)]))
    assert [curve.name for curve in curves] == ["digits, pictures", "digits, other"]


@pytest.mark.parametrize(
    ("metric", "max_score", "scores", "errors"),
    [
        ("macro_auc", 1.0, (0.5, 0.75), [0.5, 0.25]),
        ("bleu", 100.0, (0.5, 0.75), [99.5, 99.25]),
        ("negative_mse", 0.0, (-4, -2), [4, 2]),
        ("macro_auc", 1.0, (0.5, 1.0 + 2**-52), [0.5, 0.0]),  # Rounding puts the score above the highest one.
    ],
)
def test_error_without_a_range_is_from_max_score(
    metric: str, max_score: float, scores: tuple[float, float], errors: list[float]
) -> None:
    rows = make_shares(dict(zip((0.1, 1.0), scores, strict=True)), metric, max_score)
    curve = only_curve(rows)
    assert [error.mean for error in curve.errors] == errors
    assert (curve.unit, curve.max_score) == (metric, max_score)
    for row in rows:
        row["result"]["data"]["digits"]["max_score"] = None
    assert efficiencies(group_conditions(rows)) == []


def test_range_without_reference_or_passed_is_ignored() -> None:
    curve = only_curve(make_shares({0.1: 90.0, 1.0: 98.5}))
    assert [error.mean for error in curve.errors] == [10, 1.5], "the score is beyond the reference"
    rows = make_shares({0.1: 0.5, 1.0: 0.75})
    for row in rows:
        row["result"]["data"]["digits"] |= {"score_range": {"metric": "accuracy"}, "max_score": 1.0}
    assert [error.mean for error in only_curve(rows).errors] == [0.5, 0.25]


def test_sweep_points_have_tokens_per_example() -> None:
    costs = {patch: {"tokens": 64_000 // patch, "flops": 10**12 // patch} for patch in (1, 4)}
    rows = [make_row("digits", 90.0, seed, varied={"patch": p}, budget=costs[p]) for p in costs for seed in (0, 1)]
    (points,) = sweep_points(group_conditions(rows)).values()
    found = [(point.label, point.tokens_per_example, point.flops) for point in points]
    assert found == [("patch=4", 4, 2.5e11), ("patch=1", 16, 1e12)]
    assert [point.score.half_width for point in points] == [None, None], "equal scores have no interval"
