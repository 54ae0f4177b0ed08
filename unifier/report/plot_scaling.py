"""Figures of error against the share of training examples, and of score against the cost of a setting."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from unifier.report.conditions import Condition
from unifier.report.estimates import display_name, format_number
from unifier.report.plot_scores import bar_lengths, score_limits
from unifier.report.plot_style import (
    MUTED,
    FigureWriter,
    LineEnd,
    SavedFigure,
    axis_label,
    create_panel,
    label_ends,
    plot_intervals,
)
from unifier.report.scaling_law import DataEfficiency, SweepPoint, efficiencies, sweep_points


def draw_efficiency(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw one log-log panel per curve: the error against the share of training examples, with the fitted power law."""
    by_task = {condition.task: condition for condition in conditions}
    curves = writer.limit(efficiencies(conditions), "data efficiency")
    return [_draw_efficiency(curve, by_task[curve.task], writer) for curve in curves]


def _draw_efficiency(efficiency: DataEfficiency, condition: Condition, writer: FigureWriter) -> SavedFigure:
    """Draw one panel. All conditions of the task have the same range of possible scores."""
    law, shares, errors = efficiency.law, efficiency.shares, efficiency.errors
    figure, axes = create_panel()
    color = writer.colors[efficiency.task]
    lowest_score, _ = score_limits(condition, normalized=efficiency.unit != condition.metric)
    # A logarithmic axis has no 0, so the lower ends of intervals are at least a tenth of the error.
    highest_error = math.inf if efficiency.max_score is None else efficiency.max_score - lowest_score
    limits = [(0.1 * error.mean, highest_error) for error in errors]
    lengths = [bar_lengths(error, limit) for error, limit in zip(errors, limits, strict=True)]
    plot_intervals(axes, shares, [error.mean for error in errors], color, yerr=np.transpose(lengths))
    fit = "No power law: too few shares, or no fit"
    if law:
        x = np.geomspace(min(shares), max(shares), 60)
        axes.plot(x, law.predict(x), color=color, alpha=0.6, linewidth=1.4)
        fit = f"Power law a n^-b + c: exponent {format_number(law.b, 2)} ± {format_number(law.b_half_width, 2)}"
    axes.set(xscale="log", yscale="log", title=efficiency.name, xlabel="share of the training examples", ylabel="error")
    axes.set_xticks(shares, [f"{100 * share:g} %" for share in shares])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    exponent = {"b": law.b, "half interval of b": law.b_half_width} if law else {}
    table = [
        {"share": share, "error": error.mean, "half interval": "" if error.half_width is None else error.half_width}
        | ({"law": float(law.predict(np.array(share)))} if law else {})
        | exponent
        for share, error in zip(shares, errors, strict=True)
    ]
    unit = display_name(efficiency.unit)
    note = f"Error: {unit if efficiency.max_score is None else f'{efficiency.max_score:g} minus {unit}'}. {fit}"
    alt = f"error over share of examples, {efficiency.name}"
    return writer.save(figure, f"efficiency-{efficiency.name}", "efficiency", alt, table, note)


def draw_sweeps(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw the scores of a sweep against tokens per example and against FLOPs, if the settings change these costs."""
    figures: list[SavedFigure] = []
    for task, points in sweep_points(conditions).items():
        condition = next(condition for condition in conditions if condition.task == task)
        figures += _draw_sweep(
            condition, points, "tokens per example", [point.tokens_per_example for point in points], writer
        )
        figures += _draw_sweep(condition, points, "FLOPs of training", [point.flops for point in points], writer)
    return figures


def _draw_sweep(
    condition: Condition, points: Sequence[SweepPoint], cost: str, x: Sequence[float], writer: FigureWriter
) -> list[SavedFigure]:
    """Draw the scores of several settings against their costs `x`, or nothing if all costs are equal."""
    if max(x) < 1.02 * min(x):
        return []
    task, metric = condition.task, condition.metric
    y = [point.score.mean for point in points]
    figure, axes = create_panel(4.6)
    lengths = [bar_lengths(point.score, score_limits(condition)) for point in points]
    plot_intervals(axes, x, y, writer.colors[task], yerr=np.transpose(lengths))
    axes.set(xscale="log", title=task, xlabel=cost, ylabel=axis_label(f"test {condition.title}"))
    axes.margins(x=0.2)
    _set_cost_ticks(axes, x)
    label_ends(axes, [LineEnd(score, point.label, MUTED, at) for point, at, score in zip(points, x, y, strict=True)])
    table = [
        {
            "setting": point.label,
            cost: at,
            metric: point.score.mean,
            "half interval": "" if point.score.half_width is None else point.score.half_width,
        }
        for point, at in zip(points, x, strict=True)
    ]
    name = f"sweep-{task}-{cost.split()[0].lower()}"
    return [writer.save(figure, name, "sweeps", f"{metric} over {cost}, {task}", table)]


def _set_cost_ticks(axes: Axes, costs: Sequence[float]) -> None:
    # Within one decade, `LogLocator` labels all ticks, so the tick labels would overlap.
    axes.xaxis.set_major_locator(MaxNLocator(3) if max(costs) < 10 * min(costs) else LogLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_minor_formatter(NullFormatter())
