"""Accuracy over the distance to the word on which the target depends, with a fitted exponential decay."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import NullFormatter
from scipy import stats
from scipy.optimize import curve_fit

from unifier.report.conditions import Condition, row_score_range
from unifier.report.estimates import Estimate, estimate, format_number, join_nonempty, plus_minus
from unifier.report.plot_curves import describe_selection, line_styles, select_conditions
from unifier.report.plot_scores import MAX_CONDITIONS, bar_lengths, score_limits
from unifier.report.plot_style import (
    FigureWriter,
    LineEnd,
    SavedFigure,
    axis_label,
    create_panel,
    label_ends,
    plot_intervals,
)
from unifier.report.schema import DistancesEntry, add_problem, read_entry

MIN_DISTANCES = 3
"""Minimum number of distances for a fit: two parameters and one degree of freedom."""

CHANCE_LEVEL = 0.05
"""The probability that a guess is called better than chance at one or more distances."""

RATE_WORDS = 100
"""The number of words for which a rate of decay is printed."""


class Decay(NamedTuple):
    """The score chance + a exp(-r n) at a distance of n words."""

    chance: float
    a: float
    r: float

    @property
    def half_distance(self) -> float:
        """The number of words over which the advantage over chance is halved, or infinity without a decay."""
        return math.log(2) / self.r if self.r > 0 else math.inf

    def predict(self, n: np.ndarray) -> np.ndarray:
        """Return the predicted scores at the distances n."""
        return self.chance + _advantage(n, self.a, self.r)


class DistanceCurve(NamedTuple):
    """The scores of one condition at each distance."""

    distances: list[int]
    scores: list[Estimate]
    decay: Decay | None
    """The decay that is fitted to the mean scores, or None with too few distances, at chance, or without a fit."""
    rate: Estimate | None
    """The rate r of decay per `RATE_WORDS` words, fitted to each run, averaged over seeds."""
    at_chance: bool = False
    """True if the mean scores are not better than a guess at any distance."""


def fit_decay(
    distances: Sequence[float], scores: Sequence[float], chance: float, best: float | None = None
) -> Decay | None:
    """Fit chance + a exp(-r n) with r >= 0 and 0 <= a <= best - chance by least squares.

    Args:
        distances: The distances n in words.
        scores: The score at each distance.
        chance: The score of a guess.
        best: The highest possible score, or None if it is unknown.

    Returns:
        The decay, or None with too few distances, without room above chance, or without a fit.
    """
    largest = math.inf if best is None else best - chance
    if len(set(distances)) < MIN_DISTANCES or largest <= 0:
        return None
    n, advantages = np.asarray(distances, float), np.asarray(scores, float) - chance
    start = (min(max(float(advantages.max()), 1e-3), largest), 1 / float(n.mean()))
    limits = ((0.0, 0.0), (largest, math.inf))
    try:
        a, r = curve_fit(_advantage, n, advantages, p0=start, bounds=limits, max_nfev=20_000)[0].tolist()
    except (RuntimeError, ValueError):
        return None
    return Decay(chance, a, r)


def is_above_chance(scores: Sequence[float], examples: Sequence[int], chance: float, best: float) -> bool:
    """Return True if a guess would not reach one of the scores, by one-sided normal tests with Bonferroni's correction.

    The score of one example is 0 or `best`, so the variance of a guess is chance (best - chance).

    Args:
        scores: The score at each distance.
        examples: The number of test examples at each distance.
        chance: The score of a guess.
        best: The highest possible score.
    """
    limit = float(stats.norm.isf(CHANCE_LEVEL / len(scores)))
    errors = [math.sqrt(max(chance * (best - chance), 0) / count) for count in examples]
    return any(score - chance > limit * error for score, error in zip(scores, errors, strict=True))


def draw_distances(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw the score over the distance, with one panel per task and one curve per condition."""
    figures: list[SavedFigure] = []
    for task in dict.fromkeys(condition.task for condition in conditions):
        of_task = [condition for condition in conditions if condition.task == task]
        selected = select_conditions(of_task, MAX_CONDITIONS)
        if curves := {condition: curve for condition in selected if (curve := _read_curve(condition))}:
            figures.append(_draw_distances(of_task, curves, writer))
    return figures


def _read_curve(condition: Condition) -> DistanceCurve | None:
    """Return the curve of a condition from the files of its runs, or None without files."""
    runs = _read_runs(condition)
    if not runs:
        return None
    distances = [point["distance"] for point in runs[0]]
    by_run = [[point["score"] for point in run] for run in runs]
    scores = [estimate(values) for values in zip(*by_run, strict=True)]
    means = [score.mean for score in scores]
    chance, best = row_score_range(condition.rows[0]).get("chance", 0.0), condition.max_score
    # The runs have the same test examples, so the number of independent examples is that of one run.
    examples: list[int] = [count for point in runs[0] if (count := point.get("examples"))]
    if best is not None and len(examples) == len(means) and not is_above_chance(means, examples, chance, best):
        return DistanceCurve(distances, scores, None, None, at_chance=True)
    if condition.lower_is_better:
        return DistanceCurve(distances, scores, None, None)
    fits = [fit for run in by_run if (fit := fit_decay(distances, run, chance, best))]
    rate = estimate(RATE_WORDS * fit.r for fit in fits) if len(fits) == len(by_run) else None
    return DistanceCurve(distances, scores, fit_decay(distances, means, chance, best), rate)


def _read_runs(condition: Condition) -> list[list[dict[str, Any]]]:
    """Return the points of each run's distances.json. A fault of a file is added to the problems of the page."""
    runs: list[list[dict[str, Any]]] = []
    for path in (row["folder"] / "distances.json" for row in condition.rows if row["folder"]):
        points = read_entry(path, condition.task, DistancesEntry)
        if points is None:
            continue
        distances = [point["distance"] for point in points]
        if distances[0] < 1 or any(before >= after for before, after in pairwise(distances)):
            add_problem(path, f"{condition.task}: the distances do not increase from 1 or more")
        elif condition.max_score is not None and max(point["score"] for point in points) > condition.max_score + 1e-6:
            add_problem(path, f"{condition.task}: a score is higher than the best possible score")
        elif runs and distances != [point["distance"] for point in runs[0]]:
            add_problem(path, f"{condition.task}: the distances differ from those of another run")
        else:
            runs.append(points)
    return runs


def _draw_distances(
    conditions: Sequence[Condition], curves: dict[Condition, DistanceCurve], writer: FigureWriter
) -> SavedFigure:
    """Draw the panel of one task: dots with intervals, and a line for each fitted decay."""
    task, metric = conditions[0].task, conditions[0].title
    figure, axes = create_panel(6.0, 3.6)
    styles, ends = line_styles(conditions, writer), list[LineEnd]()
    for condition, curve in curves.items():
        color, style = styles[condition]
        means = [score.mean for score in curve.scores]
        lengths = [bar_lengths(score, score_limits(condition)) for score in curve.scores]
        plot_intervals(axes, curve.distances, means, color, yerr=np.transpose(lengths))
        if curve.decay:
            n = np.geomspace(min(curve.distances), max(curve.distances), 60)
            axes.plot(n, curve.decay.predict(n), style, color=color, alpha=0.6, linewidth=1.4)
        ends.append(LineEnd(means[-1], condition.label, color))
    ticks = sorted({distance for curve in curves.values() for distance in curve.distances})
    axes.set(xscale="log", title=task, xlabel="words from the noun to the pronoun", ylabel=axis_label(f"test {metric}"))
    axes.set_xticks(ticks, [f"{distance:g}" for distance in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    label_ends(axes, ends)
    table = [
        {"task": task, "condition": condition.label, "distance": distance, "score": score.mean}
        | {"half interval": "" if score.half_width is None else score.half_width, "seeds": score.num_values}
        | _decay_cells(curve, distance)
        for condition, curve in curves.items()
        for distance, score in zip(curve.distances, curve.scores, strict=True)
    ]
    fits = [_describe_decay(condition, curve) for condition, curve in curves.items() if curve.decay]
    guesses = [condition.label for condition, curve in curves.items() if curve.at_chance]
    note = join_nonempty(
        "Lines: chance + a exp(-r n), fitted to the means, where a is the advantage over chance" if fits else "No fit",
        *fits,
        f"Not better than chance at any distance, so without a fit: {', '.join(guesses)}" if guesses else "",
        describe_selection(list(curves), conditions),
        between=". ",
    )
    return writer.save(figure, f"distances-{task}", "distances", f"{metric} over distance, {task}", table, note)


def _decay_cells(curve: DistanceCurve, distance: int) -> dict[str, float | str]:
    if not curve.decay:
        return {}
    cells: dict[str, float | str] = {"fit": float(curve.decay.predict(np.array(distance)))}
    cells["half distance"] = curve.decay.half_distance
    if curve.rate:
        half = curve.rate.half_width
        cells |= {f"r per {RATE_WORDS} words": curve.rate.mean, "half interval of r": "" if half is None else half}
    return cells


def _describe_decay(condition: Condition, curve: DistanceCurve) -> str:
    """Return the fitted decay of a condition as text. A half distance beyond the longest distance is not printed."""
    assert curve.decay
    half, longest = curve.decay.half_distance, max(curve.distances)
    words = f"halved in {format_number(half)} words" if half <= longest else f"not halved in {longest} words"
    rate = f", r = {plus_minus(curve.rate, 2)} per {RATE_WORDS} words" if curve.rate else ""
    return f"{condition.label}: {words}{rate}"


def _advantage(n: np.ndarray, a: float, r: float) -> np.ndarray:
    return a * np.exp(-r * n)
