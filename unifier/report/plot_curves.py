"""Learning curves: validation scores as a function of tokens, FLOPs and seconds."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from unifier.report.conditions import Condition, row_pretraining, row_score_range, trained_budget
from unifier.report.estimates import join_words
from unifier.report.plot_style import (
    COLORS,
    FigureWriter,
    LineEnd,
    SavedFigure,
    axis_label,
    create_panel,
    fade,
    label_ends,
    point_marker,
)
from unifier.report.schema import add_problem, read_rows

COST_AXES = {"tokens": "tokens read", "flops": "FLOPs", "seconds": "seconds of training"}
"""The label of the horizontal axis for each cost."""

MAX_CURVES = 4
"""Maximum number of curves in a panel."""

LINE_STYLES = ("-", ":", "-.")
"""The line styles of a task's conditions. Dashed lines are reserved for joint training."""

Logs = Mapping[Path, Sequence[Mapping[str, str]]]
"""A mapping from the folder of a run to the rows of its metrics.csv."""


class Curve(NamedTuple):
    """A metric as a function of the cost `x`: the mean, minimum and maximum over runs."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def draw_curves(conditions: Sequence[Condition], writer: FigureWriter, logs: Logs | None = None) -> list[SavedFigure]:
    """Draw validation scores, one panel per task and cost.

    If every task has a single condition, one panel shows all tasks, and another panel shows the training losses.

    Args:
        conditions: The conditions.
        writer: The writer that saves the figures.
        logs: The result of `read_logs`. None means that the logs are read.
    """
    tasks = list(dict.fromkeys(condition.task for condition in conditions))
    single = len(tasks) == len(conditions)
    logs = read_logs(conditions) if logs is None else logs
    figures = _draw_loss(conditions, logs, writer) if single else []
    if single and len(tasks) > 1:
        return [
            *figures,
            *(figure for axis in COST_AXES for figure in _draw_scores("", conditions, logs, axis, writer)),
        ]
    for task in tasks:
        of_task = [condition for condition in conditions if condition.task == task]
        for axis in ("tokens",) if single else COST_AXES:
            figures += _draw_scores(task, of_task, logs, axis, writer)
    return figures


def read_logs(conditions: Sequence[Condition]) -> Logs:
    """Return the rows of metrics.csv of each run of the conditions."""
    folders = {row["folder"] for condition in conditions for row in condition.rows if row["folder"]}
    return {folder: _read_log(folder / "metrics.csv") for folder in sorted(folders)}


def _read_log(path: Path) -> list[dict[str, str]]:
    """Return the rows of a metrics.csv, or no rows if the costs do not increase from row to row."""
    rows = read_rows(path, numeric=("budget/", "train/", "val/"))
    for axis in COST_AXES:
        costs = [float(cell) for row in rows if (cell := row.get(f"budget/{axis}"))]
        if not all(before <= after for before, after in pairwise(costs)):
            add_problem(path, f"budget/{axis} does not increase")
            return []
    return rows


def select_conditions(conditions: Sequence[Condition], limit: int) -> list[Condition]:
    """Select at most `limit` conditions to draw: first solo and joint, then the best validation scores."""
    ranked = sorted(conditions, key=lambda condition: -condition.validation_score)
    selected = list(dict.fromkeys([*_references(conditions), *ranked]))[:limit]
    return [condition for condition in conditions if condition in selected]


def describe_selection(drawn: Sequence[Condition], conditions: Sequence[Condition]) -> str:
    """Describe the conditions in a figure, or return "" if the figure contains all conditions."""
    if len(drawn) == len(conditions):
        return ""
    tasks = dict.fromkeys(condition.task for condition in conditions)
    references = {
        reference
        for task in tasks
        for reference in _references([condition for condition in conditions if condition.task == task])
    }
    names = [
        "joint" if condition.has(mode="joint") else condition.label for condition in drawn if condition in references
    ]
    parts = ["the best on validation"] if any(condition not in references for condition in drawn) else []
    parts += [join_words(list(dict.fromkeys(names)))] if names else []
    return f"{len(drawn)} of {len(conditions)} conditions drawn, {' beside '.join(parts)}"


def line_styles(conditions: Sequence[Condition], writer: FigureWriter) -> dict[Condition, tuple[str, str]]:
    """Return the color and line style of each condition of a task, for all figures.

    With several tasks, each condition has a shade of its task's color. With a single task, each condition has its own
    color.
    """
    joint = [condition for condition in conditions if condition.has(mode="joint")]
    separate = [condition for condition in conditions if not condition.has(mode="joint")]
    styles: dict[Condition, tuple[str, str]] = {}
    for group in (joint, separate):
        for k, condition in enumerate(group):
            if len(writer.colors) == 1:
                color, turn = COLORS[k % len(COLORS)], k // len(COLORS)
            else:
                color, turn = fade(writer.colors[condition.task], k / max(len(group) - 1, 1)), k
            styles[condition] = color, "--" if group is joint else LINE_STYLES[turn % len(LINE_STYLES)]
    return styles


def read_curve(
    condition: Condition, logs: Logs, axis: str, *, column: str = "", normalized: bool = False
) -> Curve | None:
    """Return a condition's learning curve up to the cost that all logged runs reached.

    A joint run logs only the total cost of all tasks. The task's share of the total cost is assumed to be constant. The
    curve of a run that starts from a trained model begins at the cost of the model, if this cost is counted.

    Args:
        condition: The condition whose runs are averaged.
        logs: A mapping from the folder of a run to the rows of its metrics.csv.
        axis: A key of `COST_AXES`.
        column: The column of metrics.csv. The default is the condition's validation metric.
        normalized: If True, scale the values to 0 at chance and 100 at the reference score.

    Returns:
        The curve, or None if no run logged the column or no cost is common to all runs.
    """
    names = f"budget/{axis}", column or f"val/{condition.task}/{condition.metric}"
    lines: list[NDArray[np.float64]] = []
    for row in condition.rows:
        logged = [line for line in logs.get(row["folder"], ()) if all(line.get(name) for name in names)]
        if logged:
            points = np.array([[float(line[name]) for line in logged] for name in names])
            points[0] *= trained_budget(row)[axis] / (row["result"]["budget"].get(axis) or 1)
            points[0] += row_pretraining(row).get(axis, 0)
            if normalized:
                limits = row_score_range(row)
                points[1] = 100 * (points[1] - limits["chance"]) / (limits["reference"] - limits["chance"])
            lines.append(points)
    if not lines:
        return None
    start, end = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
    x = np.unique(np.concatenate([line[0] for line in lines]))
    x = x[(start <= x) & (x <= end)]
    if not len(x):
        return None
    values = np.stack([np.interp(x, *line) for line in lines])
    return Curve(x, values.mean(0), values.min(0), values.max(0))


def _references(conditions: Sequence[Condition]) -> list[Condition]:
    """Return the first condition of a task, usually solo, and the joint conditions of the task."""
    return [*conditions[:1], *(condition for condition in conditions[1:] if condition.has(mode="joint"))]


def _draw_scores(
    task: str, conditions: Sequence[Condition], logs: Logs, axis: str, writer: FigureWriter
) -> list[SavedFigure]:
    """Draw one panel of scores, if scores were logged. If `task` is empty, the panel shows all tasks."""
    selected = select_conditions(conditions, MAX_CURVES) if task else conditions
    normalized = not task and all(condition.normalized_score for condition in conditions)
    curves = {
        condition: curve
        for condition in selected
        if (curve := read_curve(condition, logs, axis, normalized=normalized))
    }
    if not curves:
        return []
    figure, axes = create_panel()
    ends: list[LineEnd] = []
    styles = line_styles(conditions, writer) if task else {}
    for k, (condition, curve) in enumerate(curves.items()):
        color, style = styles.get(condition, (writer.colors[condition.task], "-"))
        axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        axes.plot(curve.x, curve.mean, style, marker=point_marker(curve.x), color=color, zorder=3 - k / 100)
        ends.append(LineEnd(curve.mean[-1], condition.label if task else condition.task, color))
    metric = "normalized score" if normalized else conditions[0].title if task else "score"
    axes.set(title=task or "all tasks", xlabel=COST_AXES[axis], ylabel=axis_label(f"validation {metric}"))
    _set_cost_ticks(axes, axis)
    if len(curves) > 1:
        label_ends(axes, ends)
    table = [
        {"task": condition.task, "condition": condition.label, axis: x, "mean": mean, "minimum": low, "maximum": high}
        for condition, curve in curves.items()
        for x, mean, low, high in zip(*curve, strict=True)
    ]
    notes = {
        "Each task in its own metric": not task and not normalized,
        "Band: minimum to maximum over runs": any(len(condition.scores) > 1 for condition in curves),
        describe_selection(list(curves), conditions): len(curves) < len(conditions),
    }
    note = ". ".join(text for text, applies in notes.items() if applies)
    alt = f"validation {metric} over {COST_AXES[axis]}, {task or 'all tasks'}"
    return [writer.save(figure, f"curves-{task + '-' if task else ''}{axis}", "curves", alt, table, note)]


def _draw_loss(conditions: Sequence[Condition], logs: Logs, writer: FigureWriter) -> list[SavedFigure]:
    """Draw one panel of training losses, if losses were logged."""
    curves = {
        condition.task: curve
        for condition in conditions
        if (curve := read_curve(condition, logs, "tokens", column=f"train/{condition.task}/loss"))
    }
    if not curves:
        return []
    figure, axes = create_panel()
    for task, curve in curves.items():
        axes.plot(curve.x, curve.mean, marker=point_marker(curve.x), color=writer.colors[task])
    title = "all tasks" if len(conditions) > 1 else conditions[0].task
    axes.set(title=title, xlabel=COST_AXES["tokens"], ylabel="training loss")
    _set_cost_ticks(axes, "tokens")
    if len(curves) > 1:
        label_ends(axes, [LineEnd(curve.mean[-1], task, writer.colors[task]) for task, curve in curves.items()])
    table = [
        {"task": task, "tokens": x, "loss": loss}
        for task, curve in curves.items()
        for x, loss in zip(curve.x, curve.mean, strict=True)
    ]
    return [writer.save(figure, "loss", "curves", "training loss over tokens read", table)]


def _set_cost_ticks(axes: Axes, axis: str) -> None:
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}") if axis == "seconds" else EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(3))
