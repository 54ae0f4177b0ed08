"""Accuracy over the distance to the word on which the target depends, with a fitted exponential decay."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import NullFormatter
from scipy.optimize import curve_fit

from unifier.report.conditions import Condition, row_score_range
from unifier.report.estimates import Estimate, estimate, format_number, join_nonempty, plus_minus
from unifier.report.plot_curves import describe_selection, line_styles, select_conditions
from unifier.report.plot_scores import MAX_CONDITIONS, bar_lengths, read_artifacts, score_limits
from unifier.report.plot_style import FigureWriter, LineEnd, SavedFigure, create_panel, label_ends, plot_intervals
from unifier.report.schema import DistancesEntry

MIN_DISTANCES = 3
"""Minimum number of distances for a fit: two parameters and one degree of freedom."""

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
    """The decay that is fitted to the mean scores, or None with too few distances or without a fit."""
    rate: Estimate | None
    """The rate r of decay per `RATE_WORDS` words, fitted to each run, averaged over seeds."""


def fit_decay(distances: Sequence[float], scores: Sequence[float], chance: float) -> Decay | None:
    """Fit chance + a exp(-r n) with a, r >= 0 by least squares. Return None with too few distances or without a fit.

    Args:
        distances: The distances n in words.
        scores: The score at each distance.
        chance: The score of a guess.
    """
    if len(set(distances)) < MIN_DISTANCES:
        return None
    n, advantages = np.asarray(distances, float), np.asarray(scores, float) - chance
    start = (max(float(advantages.max()), 1e-3), 1 / float(n.mean()))
    try:
        a, r = curve_fit(_advantage, n, advantages, p0=start, bounds=(0, np.inf), max_nfev=20_000)[0].tolist()
    except (RuntimeError, ValueError):
        return None
    return Decay(chance, a, r)


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
    runs: list[list[Any]] = read_artifacts(condition, "distances.json", DistancesEntry)
    runs = [run for run in runs if [point["distance"] for point in run] == [point["distance"] for point in runs[0]]]
    if not runs:
        return None
    distances = [point["distance"] for point in runs[0]]
    by_run = [[point["score"] for point in run] for run in runs]
    scores = [estimate(values) for values in zip(*by_run, strict=True)]
    chance = row_score_range(condition.rows[0]).get("chance", 0.0)
    fits = [fit for run in by_run if (fit := fit_decay(distances, run, chance))]
    rate = estimate(RATE_WORDS * fit.r for fit in fits) if len(fits) == len(by_run) else None
    return DistanceCurve(distances, scores, fit_decay(distances, [score.mean for score in scores], chance), rate)


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
    axes.set(xscale="log", title=task, xlabel="words from the noun to the pronoun", ylabel=f"test {metric}")
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
    note = join_nonempty(
        "Lines: chance + a exp(-r n), fitted to the means, where a is the advantage over chance"
        if fits
        else "No fit: too few distances",
        *fits,
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
    """Return the fitted decay of a condition as text."""
    assert curve.decay
    half = curve.decay.half_distance
    words = f"halved in {format_number(half, 0)} words" if half < 1e4 else "no decay"
    rate = f", r = {plus_minus(curve.rate, 2)} per {RATE_WORDS} words" if curve.rate else ""
    return f"{condition.label}: {words}{rate}"


def _advantage(n: np.ndarray, a: float, r: float) -> np.ndarray:
    return a * np.exp(-r * n)
