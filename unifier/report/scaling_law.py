"""Power laws of the error as a function of the share of training examples, and cost and score of each sweep setting."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from scipy import stats
from scipy.optimize import OptimizeWarning, curve_fit

from unifier.report.conditions import Condition, condition_label
from unifier.report.estimates import Estimate, estimate, join_nonempty

MIN_POINTS = 4
"""Minimum number of points for a fit: three parameters and one degree of freedom."""


class ScalingLaw(NamedTuple):
    """The power law error = a n^-b + c, where n is the share of training examples."""

    a: float
    b: float
    c: float
    b_half_width: float
    """Half the width of the 95 % confidence interval of b, by Student's t."""

    @property
    def is_significant(self) -> bool:
        """True if the interval of b excludes 0."""
        return self.b > self.b_half_width

    def predict(self, n: np.ndarray) -> np.ndarray:
        """Return the predicted error for the shares n."""
        return _power_law(n, self.a, self.b, self.c)


@final
@dataclass(frozen=True)
class DataEfficiency:
    """Errors of one task for several shares of the training examples, with the fitted power law."""

    task: str
    name: str
    """The name of the task, with the label of the condition if the task was not trained solo."""
    unit: str
    """The metric of the errors."""
    max_score: float | None
    """The score for which the error is 0, or None if the metric itself is an error."""
    shares: Sequence[float]
    """The shares of training examples in ascending order, from 0 to 1."""
    errors: Sequence[Estimate]
    """The error at each share."""
    law: ScalingLaw | None
    """The fitted power law, or None if the exponent cannot be determined, for example with too few shares."""


class SweepPoint(NamedTuple):
    """Cost and score of one setting of a sweep."""

    label: str
    tokens_per_example: float
    flops: float
    score: Estimate


def efficiencies(conditions: Sequence[Condition]) -> list[DataEfficiency]:
    """Return one error curve for each task and type of training with several shares of the training examples.

    A task with neither a reference score nor a maximum score has no error curve, because the error is undefined. If the
    metric is an error, the curve consists of the metric's values.
    """
    groups: dict[tuple[str, str, str], list[tuple[float, Condition]]] = {}
    for condition in conditions:
        row = condition.rows[0]
        varied = dict(row["varied"])
        if (share := varied.pop("share", None)) is not None:
            label = condition_label({**row, "varied": varied})
            groups.setdefault((condition.task, row["experiment"], label), []).append((float(share), condition))
    labels = [(task, label) for task, _, label in groups]
    curves: list[DataEfficiency | None] = []
    for (task, experiment, label), points in groups.items():
        if len({share for share, _ in points}) > 1:
            prefix = experiment if labels.count((task, label)) > 1 else ""
            curves.append(_efficiency(task, join_nonempty(task, prefix, "" if label == "solo" else label), points))
    return [curve for curve in curves if curve]


def fit_law(n: Sequence[float], errors: Sequence[float]) -> ScalingLaw | None:
    """Fit the power law a n^-b + c with a, b, c >= 0 by least squares. Return None if b cannot be determined.

    The interval of b is computed from the model linearized at the best fit (Seber and Wild 1989, Nonlinear Regression,
    section 5.1). The columns of the Jacobian are scaled to unit length, because rounding errors would otherwise make
    the interval of a steep power law undefined.

    Args:
        n: Shares of the training examples.
        errors: The error at each share.
    """
    x, y = np.asarray(n, float), np.asarray(errors, float)
    start = (max(y[-1], 1e-3), 0.5, 0.0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", OptimizeWarning)  # curve_fit warns if the covariance is undefined.
            a, b, c = curve_fit(_power_law, x, y, p0=start, bounds=(0, np.inf), max_nfev=20_000)[0].tolist()
    except (RuntimeError, ValueError, OptimizeWarning):
        return None
    jacobian = np.stack([x**-b, a * x**-b * np.log(x), np.ones_like(x)], axis=1)
    lengths = np.linalg.norm(jacobian, axis=0)
    if not lengths.all() or np.linalg.matrix_rank(jacobian / lengths, tol=1e-5) < 3:
        return None
    inverse = np.linalg.pinv(jacobian / lengths)[1] / lengths[1]
    degrees_of_freedom = len(x) - 3
    variance = ((y - _power_law(x, a, b, c)) ** 2).sum() / degrees_of_freedom
    quantile = stats.t.ppf(0.975, degrees_of_freedom)
    return ScalingLaw(a, b, c, float(quantile * np.sqrt(variance * inverse @ inverse)))


def sweep_points(conditions: Sequence[Condition]) -> dict[str, list[SweepPoint]]:
    """Return the sweep points of each task, sorted by tokens per example. Tasks with a single point are excluded.

    Conditions with a varied share of training examples are excluded, because `efficiencies` returns their curves.
    """
    groups: dict[str, list[SweepPoint]] = {}
    for condition in conditions:
        if condition.varied and "share" not in condition.varied and condition.cost("examples"):
            tokens = condition.cost("tokens") / condition.cost("examples")
            point = SweepPoint(condition.label, tokens, condition.cost("flops"), condition.score)
            groups.setdefault(condition.task, []).append(point)
    return {
        task: sorted(points, key=lambda point: point.tokens_per_example)
        for task, points in groups.items()
        if len(points) > 1
    }


def _efficiency(task: str, name: str, points: Sequence[tuple[float, Condition]]) -> DataEfficiency | None:
    points = sorted(points, key=lambda point: point[0])
    shares = [share for share, _ in points]
    normalized = [condition.normalized_scores for _, condition in points]
    if points[0][1].lower_is_better:
        errors = [estimate(condition.scores.values()) for _, condition in points]
        law = fit_law(shares, [error.mean for error in errors]) if len(set(shares)) >= MIN_POINTS else None
        return DataEfficiency(task, name, points[0][1].metric, None, shares, errors, law)
    # The error is the distance to the reference score if all scores are lower, else the distance to the maximum score.
    if all(scores is not None and max(scores.values()) < 100 for scores in normalized):
        unit, max_score = "the normalized score", 100.0
        scores = [list(each.values()) for each in normalized if each is not None]
    else:
        unit, max_score = points[0][1].metric, points[0][1].max_score
        scores = [list(condition.scores.values()) for _, condition in points]
    if max_score is None:
        return None
    # A rounding error may increase a score above the maximum score, so errors are clipped at 0.
    errors = [estimate(max(max_score - score, 0.0) for score in of_share) for of_share in scores]
    law = fit_law(shares, [error.mean for error in errors]) if len(set(shares)) >= MIN_POINTS else None
    return DataEfficiency(task, name, unit, max_score, shares, errors, law)


def _power_law(n: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
    return a * n**-b + c
