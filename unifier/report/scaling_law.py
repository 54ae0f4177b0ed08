"""The power law of scores over the share of training examples, and sweeps over settings."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from scipy import stats
from scipy.optimize import OptimizeWarning, curve_fit

from unifier.report.conditions import Condition, condition_label
from unifier.report.estimates import Estimate, estimate, list_names

MIN_POINTS = 4
"""Points that a curve of three parameters needs, with one to spare."""


class ScalingLaw(NamedTuple):
    """error = a n^-b + c, with half the width of b's 95 % interval, by Student's t."""

    a: float
    b: float
    c: float
    half_of_b: float

    @property
    def describe(self) -> bool:
        """Whether b can be told from 0, by its interval."""
        return self.b > self.half_of_b

    def at(self, n: np.ndarray) -> np.ndarray:
        """The error that it foretells."""
        return _law(n, self.a, self.b, self.c)


@final
@dataclass(frozen=True)
class Efficiency:
    """An task's error over the share of its training examples, and the law that it follows."""

    task: str
    name: str
    """The task, and what tells it from others of its task."""
    unit: str
    perfect: float
    """The score, in that unit, that leaves no error."""
    shares: Sequence[float]
    """Of the training split, rising, from 0 to 1."""
    errors: Sequence[Estimate]
    law: ScalingLaw | None
    """None with fewer than four shares, or where no such curve fits."""


def efficiencies(found: Sequence[Condition]) -> list[Efficiency]:
    """For each task and way of training it, whose conditions differ in the share of examples alone.

    An task of which it is not known what leaves no error has none.
    """
    groups: dict[tuple[str, str, str], list[tuple[float, Condition]]] = {}
    for condition in found:
        row = condition.rows[0]
        varied = dict(row["varied"])
        if (share := varied.pop("share", None)) is not None:
            said = condition_label({**row, "varied": varied})
            groups.setdefault((condition.task, row["experiment"], said), []).append((float(share), condition))
    ways = [(task, said) for task, _, said in groups]
    each: list[Efficiency | None] = []
    for (task, experiment, said), points in groups.items():
        if len({share for share, _ in points}) > 1:
            own = experiment if ways.count((task, said)) > 1 else ""
            each.append(_efficiency(task, list_names(task, own, "" if said == "solo" else said), points))
    return [one for one in each if one]


def _efficiency(task: str, name: str, points: Sequence[tuple[float, Condition]]) -> Efficiency | None:
    points = sorted(points, key=lambda point: point[0])
    shares = [share for share, _ in points]
    scaled = [condition.normalized_scores for _, condition in points]
    # Above the reference there is no error left of that kind: count from a perfect score instead.
    if all(scores is not None and max(scores.values()) < 100 for scores in scaled):
        unit, perfect = "the normalized score", 100.0
        scores = [list(one.values()) for one in scaled if one is not None]
    else:
        unit, perfect = points[0][1].metric, points[0][1].perfect
        scores = [list(condition.scores.values()) for _, condition in points]
    if perfect is None:
        return None
    # A perfect score may come out above itself, by a rounding error.
    errors = [estimate(max(perfect - score, 0.0) for score in of_share) for of_share in scores]
    law = fit_law(shares, [one.mean for one in errors]) if len(set(shares)) >= MIN_POINTS else None
    return Efficiency(task, name, unit, perfect, shares, errors, law)


def fit_law(n: Sequence[float], errors: Sequence[float]) -> ScalingLaw | None:
    """Fit a n^-b + c by least squares, all of them at least 0; None where the points do not tell b.

    The interval of b is that of the model made linear about the best fit (Seber and Wild 1989, Nonlinear Regression,
    section 5.1), its columns scaled alike: unscaled, a steep law's would be lost to rounding, and its b reported as
    certain.
    """
    x, y = np.asarray(n, float), np.asarray(errors, float)
    start = (max(y[-1], 1e-3), 0.5, 0.0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", OptimizeWarning)  # the covariance cannot be found
            a, b, c = curve_fit(_law, x, y, p0=start, bounds=(0, np.inf), max_nfev=20_000)[0].tolist()
    except (RuntimeError, ValueError, OptimizeWarning):
        return None
    columns = np.stack([x**-b, a * x**-b * np.log(x), np.ones_like(x)], axis=1)
    lengths = np.linalg.norm(columns, axis=0)
    if not lengths.all() or np.linalg.matrix_rank(columns / lengths, tol=1e-5) < 3:
        return None
    inverse = np.linalg.pinv(columns / lengths)[1] / lengths[1]
    freedom = len(x) - 3
    noise = ((y - _law(x, a, b, c)) ** 2).sum() / freedom
    return ScalingLaw(a, b, c, float(stats.t.ppf(0.975, freedom) * np.sqrt(noise * inverse @ inverse)))


def _law(n: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
    return a * n**-b + c


class Point(NamedTuple):
    """One setting of a sweep: what it cost, and what it reached."""

    label: str
    columns: float
    """Mean columns an example."""
    flops: float
    score: Estimate


def sweep_points(found: Sequence[Condition]) -> dict[str, list[Point]]:
    """For each task with several settings but for the share of examples: its points, by columns an example."""
    groups: dict[str, list[Point]] = {}
    for condition in found:
        varied = condition.rows[0]["varied"]
        if varied and "share" not in varied and condition.cost("examples"):
            columns = condition.cost("tokens") / condition.cost("examples")
            point = Point(condition.label, columns, condition.cost("flops"), condition.score)
            groups.setdefault(condition.task, []).append(point)
    return {task: sorted(points, key=lambda one: one.columns) for task, points in groups.items() if len(points) > 1}
