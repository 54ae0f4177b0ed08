"""Learning curves: validation scores over tokens, FLOPs and seconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from unifier.files import read_csv
from unifier.report.conditions import Condition, budget, row_score_range
from unifier.report.estimates import join, plain_name
from unifier.report.plot_style import COLORS, FigureWriter, LineEnd, SavedFigure, dot, faded, label_ends, panel

AXES = {"tokens": "tokens read", "flops": "FLOPs", "seconds": "seconds of training"}


MAX_CURVES = 4
"""Lines that one panel holds."""


DASHES = ("-", ":", "-.")
"""Of an task's lines in turn, but for those of joint trunks, which alone are "--"."""


Logs = Mapping[Path, Sequence[Mapping[str, str]]]
"""The rows of each run's metrics.csv, by the run's folder."""


class Curve(NamedTuple):
    """A figure over its cost: the mean over seeds, and the least and the most of them."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def select_conditions(conditions: Sequence[Condition], most: int) -> list[Condition]:
    """Of an task's conditions those that others are held against, and the best on validation, `most` in all."""
    best = sorted(conditions, key=lambda one: -one.validation)
    chosen = list(dict.fromkeys([*_standing(conditions), *best]))[:most]
    return [one for one in conditions if one in chosen]


def _standing(conditions: Sequence[Condition]) -> list[Condition]:
    """Of an task's conditions the first, usually solo, and the joint one."""
    return [*conditions[:1], *(one for one in conditions[1:] if one.has(mode="joint"))]


def chosen_of(drawn: Sequence[Condition], conditions: Sequence[Condition]) -> str:
    """What a figure says that draws some of its tasks' conditions alone."""
    if len(drawn) == len(conditions):
        return ""
    tasks = dict.fromkeys(one.task for one in conditions)
    standing = {one for task in tasks for one in _standing([own for own in conditions if own.task == task])}
    beside = ["joint" if one.has(mode="joint") else one.label for one in drawn if one in standing]
    said = ["the best on validation"] if any(one not in standing for one in drawn) else []
    said += [join(list(dict.fromkeys(beside)))] if beside else []
    return f"{len(drawn)} of {len(conditions)} conditions drawn, {' beside '.join(said)}"


def line_styles(conditions: Sequence[Condition], sheet: FigureWriter) -> dict[Condition, tuple[str, str]]:
    """The color and the dashes of each of an task's conditions: the same in every figure.

    The color is the task's, the later the fainter; all colors are free to tell conditions where there is one task.
    """
    joint = [one for one in conditions if one.has(mode="joint")]
    others = [one for one in conditions if not one.has(mode="joint")]
    found: dict[Condition, tuple[str, str]] = {}
    for kin in (joint, others):
        for k, one in enumerate(kin):
            if len(sheet.colors) == 1:
                color, turn = COLORS[k % len(COLORS)], k // len(COLORS)
            else:
                color, turn = faded(sheet.colors[one.task], k / max(len(kin) - 1, 1)), k
            found[one] = color, "--" if kin is joint else DASHES[turn % len(DASHES)]
    return found


def draw_curves(conditions: Sequence[Condition], sheet: FigureWriter) -> list[SavedFigure]:
    """One panel an task and an axis; where every task has one condition, they share a panel, and losses have one too."""
    tasks = list(dict.fromkeys(one.task for one in conditions))
    single = len(tasks) == len(conditions)
    folders = {row["folder"] for one in conditions for row in one.rows if row["folder"]}
    logs = {folder: read_csv(path) for folder in folders if (path := folder / "metrics.csv").exists()}
    drawn = _loss(conditions, logs, sheet) if single else []
    if single and len(tasks) > 1:
        return [*drawn, *(one for axis in AXES for one in _panel("", conditions, logs, axis, sheet))]
    for task in tasks:
        for axis in ("tokens",) if single else AXES:
            drawn += _panel(task, [one for one in conditions if one.task == task], logs, axis, sheet)
    return drawn


def _panel(task: str, conditions: Sequence[Condition], logs: Logs, axis: str, sheet: FigureWriter) -> list[SavedFigure]:
    shown = select_conditions(conditions, MAX_CURVES) if task else conditions
    scaled = not task and all(one.normalized_score for one in conditions)
    curves = [(one, found) for one in shown if (found := curve(one, logs, axis, scaled=scaled))]
    if not curves:
        return []
    figure, axes = panel()
    ends: list[LineEnd] = []
    styles = line_styles(conditions, sheet) if task else {}
    for k, (one, found) in enumerate(curves):
        color, dashes = styles.get(one, (sheet.colors[one.task], "-"))
        axes.fill_between(found.x, found.low, found.high, color=color, alpha=0.15, linewidth=0)
        axes.plot(found.x, found.mean, dashes, marker=dot(found.x), color=color, zorder=3 - k / 100)
        ends.append(LineEnd(found.mean[-1], one.label if task else one.task, color))
    metric = "normalized score" if scaled else plain_name(conditions[0].metric) if task else "score"
    axes.set(title=task or "all tasks", xlabel=AXES[axis], ylabel=f"validation {metric}")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}") if axis == "seconds" else EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if len(curves) > 1:
        label_ends(axes, ends)
    table = [
        {"task": one.task, "condition": one.label, axis: x, "mean": mean, "least": low, "most": high}
        for one, found in curves
        for x, mean, low, high in zip(*found, strict=True)
    ]
    several = any(len(one.scores) > 1 for one, _ in curves)
    notes = {
        "Each task in its own metric": not task and not scaled,
        "Band: minimum to maximum over its runs": several,
        chosen_of([one for one, _ in curves], conditions): len(curves) < len(conditions),
    }
    note = ". ".join(text for text, holds in notes.items() if holds)
    alt = f"validation {metric} over {AXES[axis]}, {task or 'all tasks'}"
    return [sheet.save(figure, f"curves-{task + '-' if task else ''}{axis}", "curves", alt, table, note)]


def _loss(conditions: Sequence[Condition], logs: Logs, sheet: FigureWriter) -> list[SavedFigure]:
    curves = [(one, curve(one, logs, "tokens", column=f"train/{one.task}/loss")) for one in conditions]
    lines = {one.task: found for one, found in curves if found}
    if not lines:
        return []
    figure, axes = panel()
    for task, found in lines.items():
        axes.plot(found.x, found.mean, marker=dot(found.x), color=sheet.colors[task], label=task)
    axes.set(
        title="all tasks" if len(conditions) > 1 else conditions[0].task, xlabel=AXES["tokens"], ylabel="training loss"
    )
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if len(lines) > 1:
        axes.legend(loc="best", labelcolor="linecolor", frameon=False, handlelength=1.4, fontsize=8)
    table = [
        {"task": task, "tokens": x, "loss": loss}
        for task, found in lines.items()
        for x, loss in zip(found.x, found.mean, strict=True)
    ]
    return [sheet.save(figure, "loss", "curves", "training loss over tokens read", table)]


def curve(condition: Condition, logs: Logs, axis: str, *, column: str = "", scaled: bool = False) -> Curve | None:
    """A condition's curve, of its validation metric if no other column of metrics.csv is named; None without any.

    A joint run counts all tasks' cost in one; its task's share of that is taken to grow evenly.
    """
    lines: list[NDArray[np.float64]] = []
    both = f"budget/{axis}", column or f"val/{condition.task}/{condition.metric}"
    for row in condition.rows:
        logged = [line for line in logs.get(row["folder"], ()) if all(line.get(name) for name in both)]
        if logged:
            points = np.array([[float(line[name]) for line in logged] for name in both])
            whole = row["result"]["budget"].get(axis) or 1
            points[0] *= budget(row)[axis] / whole
            if scaled:
                scale = row_score_range(row)
                points[1] = 100 * (points[1] - scale["chance"]) / (scale["reference"] - scale["chance"])
            lines.append(points)
    if not lines:
        return None
    low, high = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
    x = np.unique(np.concatenate([line[0] for line in lines]))
    x = x[(low <= x) & (x <= high)]
    if not len(x):
        return None
    values = np.stack([np.interp(x, *line) for line in lines])
    return Curve(x, values.mean(0), values.min(0), values.max(0))
