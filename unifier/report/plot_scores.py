"""Scores with their intervals, and joint minus solo.

Heat maps with their numbers: the transfer matrix, and settings by tasks.

Confusion matrices as heat maps.

BLEU over the length of the input."""

import textwrap
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from unifier.files import read_json
from unifier.report.conditions import Condition, by_priority
from unifier.report.estimates import Estimate, format_number, list_names, plain_name, plus_minus
from unifier.report.plot_curves import chosen_of, line_styles, select_conditions
from unifier.report.plot_style import INK, SOFT, FigureWriter, LineEnd, SavedFigure, dots, heat_map, label_ends, panel
from unifier.report.summary import JointEffect, joint_effect
from unifier.report.tables import describe_matching
from unifier.report.transfer import TransferGrid, setting_grid, transfer_grids

MAX_CONDITIONS = 18
"""Conditions of an task that are drawn: those of a ladder, or a transfer with all its controls."""


def draw_scores(conditions: Sequence[Condition], sheet: FigureWriter) -> list[SavedFigure]:
    """Every task's conditions, normalized where all can be; the raw score stands beside each."""
    if len(conditions) < 2:
        return []
    scaled = all(one.normalized_score for one in conditions)
    tasks = list(dict.fromkeys(one.task for one in conditions))
    groups = [select_conditions([one for one in conditions if one.task == task], MAX_CONDITIONS) for task in tasks]
    lines = sum(len(group) for group in groups) + (len(tasks) if max(map(len, groups)) > 1 else 0)
    names = [one.label for group in groups if len(group) > 1 for one in group]
    figure, axes = panel(3.6 + 0.07 * max(map(len, [*tasks, *names])), 0.9 + 0.24 * lines)
    height, ticks = 0.0, list[tuple[float, str, str]]()
    for task, group in zip(tasks, groups, strict=True):
        if len(group) > 1:
            ticks.append((height, task, sheet.colors[task]))
            height -= 1
        for one in group:
            shown = one.shown if scaled else one.score
            said = f"{plus_minus(one.score)} {plain_name(one.metric)}"
            _line(axes, shown, height, sheet.colors[task], said)
            ticks.append((height, one.label if len(group) > 1 else task, INK))
            height -= 1
    axes.set(xlabel="normalized score (0 chance, 100 reference)" if scaled else "score, each in its own metric")
    axes.set_yticks([tick for tick, _, _ in ticks], [text for _, text, _ in ticks])
    for text, (_, _, color) in zip(axes.get_yticklabels(), ticks, strict=True):
        text.set_color(color)
        text.set_fontweight("normal" if color == INK else "bold")  # an task's name above its conditions
    axes.set_ylim(height + 0.4, 0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if scaled and axes.get_xlim()[1] > 100:
        axes.axvline(100, color=SOFT, linewidth=1, linestyle=":")
    table = [
        {"task": one.task, "condition": one.label, "metric": one.metric, **_cells(one.score, "raw")}
        | (_cells(one.normalized_score, "normalized") if one.normalized_score else {})
        for one in conditions
    ]
    several = any(one.score.half is not None for one in conditions)
    over = " or ".join(dict.fromkeys(one.unit for one in conditions))
    bar = f"Bar: 95 % interval over {over}s" if several else f"No interval over {over}s"
    shown = [one for group in groups for one in group]
    note = list_names(bar, chosen_of(shown, conditions), _matching(conditions), between=". ")
    many = "every condition" if len(shown) == len(conditions) else f"{len(shown)} of {len(conditions)} conditions"
    alt = f"{'normalized' if scaled else 'raw'} scores of {many} with their intervals"
    return [sheet.save(figure, "scores", "scores", alt, table, note)]


def _matching(conditions: Sequence[Condition]) -> str:
    """`matching_of` as one line: said once if it is the same for all tasks, else per task."""
    said = describe_matching(conditions)
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return ". ".join(f"{task}: {text[0].lower()}{text[1:]}" for task, text in said.items())


def draw_joint(conditions: Sequence[Condition], sheet: FigureWriter) -> list[SavedFigure]:
    """What one trunk for all gains each task over a trunk of its own."""
    held = [one for one in conditions if one.has(start=None, trainable="all")]
    return [_joint(found, _matching(held), sheet) for found in joint_effect(conditions)]


def _joint(found: JointEffect, matched: str, sheet: FigureWriter) -> SavedFigure:
    title = list_names("joint minus solo", found.settings)
    lines = {**found.tasks, **({"mean": found.overall} if found.overall else {})}
    heading = ["joint minus solo", *textwrap.wrap(found.settings, 36)]
    figure, axes = panel(2.6 + 0.07 * max(map(len, lines)), 0.95 + 0.17 * len(heading) + 0.3 * len(lines))
    for k, (task, gain) in enumerate(lines.items()):
        _line(axes, gain, -k, sheet.colors.get(task, INK), plus_minus(gain, signed=True))
    axes.axvline(0, color=SOFT, linewidth=1)
    axes.set_yticks([-k for k in range(len(lines))], list(lines))
    axes.set_ylim(0.6 - len(lines), 0.6)
    axes.set(
        title="\n".join(heading),
        xlabel=found.unit if found.overall else f"{found.unit}, each task in its own metric",
    )
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    table = [{"task": task, **_cells(gain, "joint minus solo")} for task, gain in lines.items()]
    over = next(iter(lines.values())).unit
    several = any(gain.half is not None for gain in lines.values())
    bar = f"Bar: 95 % interval, paired by {over}" if several else f"No interval over {over}s"
    note = list_names(bar, matched, between=". ")
    return sheet.save(figure, title, "answer", f"{title}, task by task", table, note)


def _line(axes: Axes, shown: Estimate, height: float, color: str, said: str) -> None:
    """A dot with its interval, and at the right what is said of it."""
    dots(axes, shown.mean, height, color, xerr=shown.half)
    axes.annotate(said, (1.03, height), xycoords=("axes fraction", "data"), va="center", color=SOFT, fontsize=8)


def _cells(found: Estimate, name: str) -> dict[str, float | int | str]:
    ends = {"low": "" if found.low is None else found.low, "high": "" if found.high is None else found.high}
    return {name: found.mean, f"{name} low": ends["low"], f"{name} high": ends["high"], f"{found.unit}s": found.size}


def draw_grids(conditions: Sequence[Condition], sheet: FigureWriter) -> list[SavedFigure]:
    """One heat map for each of what was tuned and varied, all in one scale; one of the settings that tasks share."""
    moved = transfer_grids(conditions)
    values = [cell for grid in moved for line in grid.cells for cell in line if cell is not None]
    drawn = [_grid_map(grid, f"transfer-{grid.title}", "transfer", values, sheet) for grid in moved]
    if grid := setting_grid(conditions):
        values = [cell for line in grid.cells for cell in line if cell is not None]
        drawn.append(_grid_map(grid, "settings-by-task", "sweeps", values, sheet))
    return drawn


def _grid_map(grid: TransferGrid, file: str, section: str, values: Sequence[float], sheet: FigureWriter) -> SavedFigure:
    wide = max(0.5, 0.085 * max(map(len, grid.columns)))  # so that names stand beside each other
    width = 0.4 + 0.07 * max(map(len, grid.rows)) + wide * len(grid.columns)
    name, _, settings = grid.title.partition(", ")
    heading = [name, *textwrap.wrap(settings, round(13 * width))]
    figure, axes = panel(width, 0.7 + 0.17 * len(heading) + 0.3 * len(grid.rows))
    cells = np.array([[np.nan if cell is None else cell for cell in line] for line in grid.cells])
    said = [["–" if cell is None else format_number(cell) for cell in line] for line in grid.cells]
    heat_map(axes, cells, (min(values), max(values)), said, grid.rows, grid.columns)
    axes.xaxis.tick_top()
    for text, line in zip(axes.get_yticklabels(), grid.rows, strict=True):
        if line in grid.controls:
            text.set_color(SOFT)
    figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=10, fontweight="bold")
    table = [
        {"": line, **{task: "" if cell is None else cell for task, cell in zip(grid.columns, of_line, strict=True)}}
        for line, of_line in zip(grid.rows, grid.cells, strict=True)
    ]
    return sheet.save(figure, file, section, f"{grid.unit}, {grid.title}", table, grid.unit[0].upper() + grid.unit[1:])


NUMBERED = 20
"""Of more classes than that cells are drawn without their numbers."""


MAX_CLASSES = 60
"""Of more classes than that there is no such figure."""


UNEVEN = 1.5
"""Where the commonest class is so many times its even share, what it alone would score is said."""


def draw_confusions(conditions: Sequence[Condition], sheet: FigureWriter) -> list[SavedFigure]:
    """One heat map for each task of one label an example: its foremost condition that tells, all runs together."""
    drawn: list[SavedFigure] = []
    for task in dict.fromkeys(one.task for one in conditions):
        own = by_priority([one for one in conditions if one.task == task])
        told = next(((one, *found) for one in own if (found := _counted(one))), None)
        if told is not None and len(told[1]) <= MAX_CLASSES:
            drawn.append(_confusion_map(*told, sheet))
    return drawn


def _counted(condition: Condition) -> tuple[list[str], NDArray[np.int64]] | None:
    """Labels, and the counts of all runs that tell (true, said); None where none does."""
    files = [row["folder"] / "confusions.json" for row in condition.rows if row["folder"]]
    runs: list[dict[str, Any]] = [
        kept for one in files if one.exists() and (kept := read_json(one).get(condition.task))
    ]
    if not runs:
        return None
    labels = runs[0]["labels"]
    return labels, np.sum([kept["counts"] for kept in runs if kept["labels"] == labels], axis=0)


def _confusion_map(
    condition: Condition, labels: list[str], counts: NDArray[np.int64], sheet: FigureWriter
) -> SavedFigure:
    numbered = len(labels) <= NUMBERED
    side, longest = (0.3 if numbered else 0.15) * len(labels), 0.07 * max(map(len, labels))
    figure, axes = panel(max(side + longest + 0.6, 2.4), side + longest + 0.9)
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    said = [[f"{100 * share:.0f}" if numbered and share else "" for share in line] for line in shares]
    heat_map(axes, shares, (0, 1), said, labels, labels, size=8)
    axes.tick_params(labelsize=8 if numbered else 6)
    axes.tick_params("x", rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set(title=condition.task, xlabel="predicted", ylabel="true")
    table = [
        {"task": condition.task, "condition": condition.label, "true": true, "predicted": said, "count": int(count)}
        for true, line in zip(labels, counts, strict=True)
        for said, count in zip(labels, line, strict=True)
    ]
    note = f"Rows: % of a class's test examples by predicted class; {condition.label}, {counts.sum():,} predictions"
    share = counts.sum(1) / counts.sum()
    if share.max() > UNEVEN / len(labels):
        note += f". Always predicting {labels[share.argmax()]} would score {100 * share.max():.1f} %"
    alt = f"confusion matrix, {condition.task}"
    return sheet.save(figure, f"confusions-{condition.task}", "confusions", alt, table, note)


MAX_LINES = 18
"""Lines that one panel holds."""


def draw_lengths(conditions: Sequence[Condition], sheet: FigureWriter) -> list[SavedFigure]:
    """One panel for each task whose runs tell: a line a condition, the mean over seeds."""
    drawn: list[SavedFigure] = []
    for task in dict.fromkeys(one.task for one in conditions):
        own = [one for one in conditions if one.task == task]
        lines = [(one, points) for one in select_conditions(own, MAX_LINES) if (points := _points(one))]
        if not lines:
            continue
        figure, axes = panel(4.0)
        ends: list[LineEnd] = []
        styles = line_styles(own, sheet)
        for one, points in lines:
            color, dashes = styles[one]
            x, y = [point["words"] for point in points], [point["bleu"] for point in points]
            axes.plot(x, y, dashes, marker="o", markersize=3, color=color)
            ends.append(LineEnd(y[-1], one.label, color))
        axes.set(title=task, xlabel="words of the input", ylabel="test BLEU")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        label_ends(axes, ends)
        table = [{"task": task, "condition": one.label, **point} for one, points in lines for point in points]
        chosen = chosen_of([one for one, _ in lines], own)
        note = list_names("Each point is a group of like length", chosen, between=". ")
        alt = f"BLEU over the length of the input, {task}"
        drawn.append(sheet.save(figure, f"lengths-{task}", "lengths", alt, table, note))
    return drawn


def _points(condition: Condition) -> list[dict[str, float]]:
    """Each group of the test split, with the mean of its scores over seeds."""
    files = [row["folder"] / "lengths.json" for row in condition.rows if row["folder"]]
    runs = [kept for file in files if file.exists() and (kept := read_json(file).get(condition.task))]
    runs = [kept for kept in runs if [one["to"] for one in kept] == [one["to"] for one in runs[0]]]  # not other folds'
    return [{**place[0], "bleu": fmean(one["bleu"] for one in place)} for place in zip(*runs, strict=False)]
