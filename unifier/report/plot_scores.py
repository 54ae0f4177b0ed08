"""Figures of test scores: intervals, joint minus solo, transfer, confusion matrices, and BLEU by length."""

import math
import textwrap
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from unifier.report.conditions import Condition, by_priority, row_score_range
from unifier.report.estimates import Estimate, format_number, join_nonempty, join_words, plus_minus
from unifier.report.plot_curves import describe_selection, line_styles, select_conditions
from unifier.report.plot_style import (
    INK,
    LABEL_SIZE,
    MUTED,
    FigureWriter,
    LineEnd,
    SavedFigure,
    create_panel,
    label_ends,
    plot_heat_map,
    plot_intervals,
)
from unifier.report.schema import Confusion, LengthsEntry, read_entry
from unifier.report.summary import NORMALIZED_POINTS, JointEffect, joint_effect
from unifier.report.tables import describe_matching
from unifier.report.transfer import TransferGrid, setting_grid, transfer_grids

MAX_CONDITIONS = 18
"""Maximum number of conditions per task in a figure."""

MAX_NUMBERED_CLASSES = 20
"""Maximum number of classes for which the cells of a confusion matrix contain numbers."""

MAX_CLASSES = 60
"""Maximum number of classes for which a confusion matrix is drawn."""

MAX_LABEL = 40
"""Maximum length of the label of a class in a figure, in characters."""

MAJORITY_FACTOR = 1.5
"""Minimum ratio of the largest class to the mean class size for a note on the largest class."""

LETTER_WIDTH = 0.075
"""Mean width of a letter, in inches."""


def score_limits(condition: Condition, *, normalized: bool = False) -> tuple[float, float]:
    """Return the lowest and the highest possible score of a condition's metric.

    Both limits are infinite if the highest possible score is unknown. The lowest possible score is -inf if the
    condition has scores below 0. An error has no highest possible value.
    """
    highest = math.inf if condition.lower_is_better else condition.max_score
    if highest is None:
        return -math.inf, math.inf
    lowest = 0.0 if min(condition.scores.values()) >= 0 else -math.inf
    if normalized:
        limits = row_score_range(condition.rows[0])
        lowest, highest = sorted(
            100 * (score - limits["chance"]) / (limits["reference"] - limits["chance"]) for score in (lowest, highest)
        )
    return lowest, highest


def bar_lengths(estimate: Estimate, limits: tuple[float, float]) -> tuple[float, float]:
    """Return the lengths of an interval bar below and above the mean, clipped to the possible scores."""
    half = estimate.half_width or 0.0
    low, high = limits
    return min(half, max(estimate.mean - low, 0.0)), min(half, max(high - estimate.mean, 0.0))


def draw_scores(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw the score and interval of each condition, normalized if every task has a reference score."""
    if len(conditions) < 2:
        return []
    normalized = all(condition.normalized_score for condition in conditions)
    tasks = list(dict.fromkeys(condition.task for condition in conditions))
    groups = [
        select_conditions([condition for condition in conditions if condition.task == task], MAX_CONDITIONS)
        for task in tasks
    ]
    num_lines = sum(map(len, groups)) + (len(tasks) if max(map(len, groups)) > 1 else 0)
    names = [condition.label for group in groups if len(group) > 1 for condition in group]
    figure, axes = create_panel(3.5 + LETTER_WIDTH * max(map(len, [*tasks, *names])), 0.7 + 0.25 * num_lines)
    height, ticks = 0.0, list[tuple[float, str, str]]()
    for task, group in zip(tasks, groups, strict=True):
        if len(group) > 1:
            ticks.append((height, task, writer.colors[task]))
            height -= 1
        for condition in group:
            estimate = condition.display_score if normalized else condition.score
            text = f"{plus_minus(condition.score)} {condition.title}"
            limits = score_limits(condition, normalized=normalized)
            _draw_interval(axes, estimate, limits, height, writer.colors[task], text)
            ticks.append((height, condition.label if len(group) > 1 else task, INK))
            height -= 1
    axes.set(xlabel="normalized score (0 chance, 100 reference)" if normalized else "score, each in its own metric")
    _set_names(axes, ticks)
    if normalized and axes.get_xlim()[1] > 100:
        axes.axvline(100, color=MUTED, linewidth=1, linestyle=":")
    table = [
        {"task": condition.task, "condition": condition.label, "metric": condition.metric}
        | _interval_cells(condition.score, "raw")
        | (_interval_cells(condition.normalized_score, "normalized") if condition.normalized_score else {})
        for condition in conditions
    ]
    drawn = [condition for group in groups for condition in group]
    unit = " or ".join(dict.fromkeys(f"{condition.unit}s" for condition in conditions))
    several = any(condition.score.half_width is not None for condition in conditions)
    bar = f"Bar: 95 % interval over {unit}, cut at the possible scores" if several else f"No interval over {unit}"
    note = join_nonempty(bar, describe_selection(drawn, conditions), _matching_note(conditions), between=". ")
    every = "every condition" if len(drawn) == len(conditions) else f"{len(drawn)} of {len(conditions)} conditions"
    alt = f"{'normalized' if normalized else 'raw'} scores of {every} with their intervals"
    return [writer.save(figure, "scores", "scores", alt, table, note)]


def draw_joint(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw the score difference between joint and solo for each task, in one figure per joint trunk."""
    compared = [condition for condition in conditions if condition.has(start=None, trainable="all")]
    effects = writer.limit(joint_effect(conditions), "joint minus solo")
    return [_draw_joint(effect, _matching_note(compared), writer) for effect in effects]


def _draw_joint(effect: JointEffect, matching: str, writer: FigureWriter) -> SavedFigure:
    gains = {**effect.task_gains, **({"mean": effect.mean_gain} if effect.mean_gain else {})}
    width = 3.4 + LETTER_WIDTH * max(map(len, gains))
    figure, axes = create_panel(width, (1.14 if effect.settings else 0.97) + 0.32 * len(gains))
    for k, (task, gain) in enumerate(gains.items()):
        text = plus_minus(gain, signed=True)
        _draw_interval(axes, gain, (-math.inf, math.inf), -k, writer.colors.get(task, INK), text)
    axes.axvline(0, color=MUTED, linewidth=1)
    xlabel = effect.unit if effect.mean_gain else f"{effect.unit}, each task in its own metric"
    is_normalized = effect.unit == NORMALIZED_POINTS
    errors = [] if is_normalized else [task for task, pair in effect.pairs.items() if pair.condition.lower_is_better]
    axes.set(title=join_nonempty("joint minus solo", effect.settings, between="\n"), xlabel=xlabel)
    _set_names(axes, [(-k, task, INK) for k, task in enumerate(gains)])
    table = [{"task": task, **_interval_cells(gain, "joint minus solo")} for task, gain in gains.items()]
    unit = next(iter(gains.values())).unit
    several = any(gain.half_width is not None for gain in gains.values())
    bar = f"Bar: 95 % interval, paired by {unit}" if several else f"No interval over {unit}s"
    bar = join_nonempty(bar, f"Lower is better for {join_words(errors)}" if errors else "", between=". ")
    name = join_nonempty("joint minus solo", effect.settings)
    note = join_nonempty(bar, matching, between=". ")
    return writer.save(figure, name, "joint", f"{name}, task by task", table, note)


def draw_grids(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw all transfer grids with the same color scale, and the grid with a row per setting and a column per task."""
    grids = writer.limit(transfer_grids(conditions), "transfer")
    limits = _limits(grids)
    figures = [_draw_grid(grid, f"transfer-{grid.title}", "transfer", limits, writer) for grid in grids]
    if settings := setting_grid(conditions):
        figures.append(_draw_grid(settings, "settings-by-task", "sweeps", _limits([settings]), writer))
    return figures


def _limits(grids: Sequence[TransferGrid]) -> tuple[float, float]:
    """Return the lowest and the highest value of all grids."""
    values = [cell for grid in grids for row in grid.cells for cell in row if cell is not None]
    return min(values, default=0.0), max(values, default=0.0)


def _draw_grid(
    grid: TransferGrid, name: str, section: str, limits: tuple[float, float], writer: FigureWriter
) -> SavedFigure:
    # The column width depends on the longest column name, because column names must not overlap.
    column_width = max(0.65, 0.09 * max(map(len, grid.columns)))
    width = 0.4 + LETTER_WIDTH * max(map(len, grid.rows)) + column_width * len(grid.columns)
    title, _, settings = grid.title.partition(", ")
    heading = [title, *textwrap.wrap(settings, round(12 * width))]
    figure, axes = create_panel(width, 0.7 + 0.19 * len(heading) + 0.32 * len(grid.rows))
    cells = np.array([[np.nan if cell is None else cell for cell in row] for row in grid.cells])
    texts = [["–" if cell is None else format_number(cell) for cell in row] for row in grid.cells]
    plot_heat_map(axes, cells, limits, texts, grid.rows, grid.columns)
    axes.xaxis.tick_top()
    for label, row in zip(axes.get_yticklabels(), grid.rows, strict=True):
        if row in grid.controls:
            label.set_color(MUTED)
    figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=11, fontweight="bold")
    table = [
        {"": name} | {task: "" if cell is None else cell for task, cell in zip(grid.columns, row, strict=True)}
        for name, row in zip(grid.rows, grid.cells, strict=True)
    ]
    note = grid.unit[0].upper() + grid.unit[1:]
    return writer.save(figure, name, section, f"{grid.unit}, {grid.title}", table, note)


def draw_confusions(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw a confusion matrix per classification task, summed over the runs of one condition.

    The first condition of `by_priority` with a confusion matrix is used.
    """
    figures: list[SavedFigure] = []
    for task in dict.fromkeys(condition.task for condition in conditions):
        ranked = by_priority([condition for condition in conditions if condition.task == task])
        for condition in ranked:
            if confusion := _read_confusions(condition):
                labels, counts = confusion
                if len(labels) <= MAX_CLASSES:
                    figures.append(_draw_confusion(condition, labels, counts, writer))
                break
    return figures


def _read_confusions(condition: Condition) -> tuple[list[str], NDArray[np.int64]] | None:
    """Return the labels and the counts (true, predicted) summed over runs, or None if no run has counts."""
    runs = [run for run in read_artifacts(condition, "confusions.json", Confusion) if "counts" in run]
    if not runs:
        return None
    labels = runs[0]["labels"]
    return labels, np.sum([run["counts"] for run in runs if run["labels"] == labels], axis=0)


def _draw_confusion(
    condition: Condition, labels: list[str], counts: NDArray[np.int64], writer: FigureWriter
) -> SavedFigure:
    figure = plot_confusion(condition.task, labels, counts)
    table = [
        {"task": condition.task, "condition": condition.label, "true": true, "predicted": label, "count": int(count)}
        for true, row in zip(labels, counts, strict=True)
        for label, count in zip(labels, row, strict=True)
    ]
    note = f"Rows: % of a class's test examples by predicted class; {condition.label}, {counts.sum():,} predictions"
    class_shares = counts.sum(1) / max(counts.sum(), 1)
    if class_shares.max() > MAJORITY_FACTOR / len(labels):
        largest = _short_label(labels[class_shares.argmax()])
        note += f". Always predicting {largest} would score {100 * class_shares.max():.1f} %"
    name, alt = f"confusions-{condition.task}", f"confusion matrix, {condition.task}"
    return writer.save(figure, name, "confusions", alt, table, note)


def plot_confusion(title: str, labels: Sequence[str], counts: NDArray[np.int64]) -> Figure:
    """Draw a confusion matrix as shares of each true class.

    Args:
        title: The title of the figure.
        labels: The names of the C classes.
        counts: The number of examples (C, C) of each true class (row) and predicted class (column).
    """
    numbered = len(labels) <= MAX_NUMBERED_CLASSES
    shown = [*map(_short_label, labels)]
    longest = max(map(len, shown))
    side = (0.32 if numbered else 0.15) * len(labels) + LETTER_WIDTH * longest
    figure, axes = create_panel(max(side + 0.7, 2.6), side + 0.95)
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    texts = [[f"{100 * share:.0f}" if numbered and share else "" for share in row] for row in shares]
    plot_heat_map(axes, shares, (0, 1), texts, shown, shown, size=8.5)
    axes.tick_params(labelsize=9 if numbered else 6)
    axes.tick_params("x", rotation=90 if longest > 2 else 0)
    axes.set(title=title, xlabel="predicted", ylabel="true")
    return figure


def _short_label(label: str) -> str:
    return textwrap.shorten(label, MAX_LABEL, placeholder="…")


def draw_lengths(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw BLEU against input length, with one panel per text task and one line per condition."""
    figures: list[SavedFigure] = []
    for task in dict.fromkeys(condition.task for condition in conditions):
        of_task = [condition for condition in conditions if condition.task == task]
        selected = select_conditions(of_task, MAX_CONDITIONS)
        if buckets := {condition: means for condition in selected if (means := _mean_buckets(condition))}:
            figures.append(_draw_lengths(of_task, buckets, writer))
    return figures


def _draw_lengths(
    conditions: Sequence[Condition], buckets: dict[Condition, list[dict[str, float]]], writer: FigureWriter
) -> SavedFigure:
    """Draw the panel of one task from the length buckets of each condition."""
    task = conditions[0].task
    figure, axes = create_panel(4.6)
    ends: list[LineEnd] = []
    styles = line_styles(conditions, writer)
    for condition, points in buckets.items():
        color, style = styles[condition]
        x, y = [point["words"] for point in points], [point["bleu"] for point in points]
        axes.plot(x, y, style, marker="o", markersize=3, color=color)
        ends.append(LineEnd(y[-1], condition.label, color))
    axes.set(title=task, xlabel="words of the input", ylabel="test BLEU")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_ends(axes, ends)
    table = [
        {"task": task, "condition": condition.label, **point}
        for condition, points in buckets.items()
        for point in points
    ]
    selection = describe_selection(list(buckets), conditions)
    note = join_nonempty("Each point is a group of similar length", selection, between=". ")
    return writer.save(figure, f"lengths-{task}", "lengths", f"BLEU over input length, {task}", table, note)


def _mean_buckets(condition: Condition) -> list[dict[str, float]]:
    """Return the length buckets of the test split with BLEU averaged over runs."""
    runs = read_artifacts(condition, "lengths.json", LengthsEntry)
    # Only runs of one fold are used, because length buckets differ between folds.
    runs = [run for run in runs if [bucket["to"] for bucket in run] == [bucket["to"] for bucket in runs[0]]]
    return [{**group[0], "bleu": fmean(bucket["bleu"] for bucket in group)} for group in zip(*runs, strict=False)]


def read_artifacts(condition: Condition, name: str, kind: Any) -> list[Any]:
    """Read a JSON file from each run's folder, if the file exists, and return the entries of the condition's task."""
    paths = [row["folder"] / name for row in condition.rows if row["folder"]]
    return [content for path in paths if (content := read_entry(path, condition.task, kind))]


def _matching_note(conditions: Sequence[Condition]) -> str:
    """Describe the matched costs in one line, or separately for each task if the matched costs differ between tasks."""
    by_task = describe_matching(conditions)
    if len(set(by_task.values())) == 1:
        return next(iter(by_task.values()))
    return ". ".join(f"{task}: {text[0].lower()}{text[1:]}" for task, text in by_task.items())


def _draw_interval(
    axes: Axes, estimate: Estimate, limits: tuple[float, float], height: float, color: str, text: str
) -> None:
    """Draw an estimate as a dot with an interval bar, and write a text to the right of the panel."""
    plot_intervals(axes, estimate.mean, height, color, xerr=np.transpose([bar_lengths(estimate, limits)]))
    axes.annotate(
        text, (1.03, height), xycoords=("axes fraction", "data"), va="center", color=MUTED, fontsize=LABEL_SIZE
    )


def _set_names(axes: Axes, ticks: Sequence[tuple[float, str, str]]) -> None:
    """Write a name at each height of a panel, and hide the vertical axis. Colored names are headings.

    Args:
        axes: The panel.
        ticks: The height, name and color of each line.
    """
    axes.set_yticks([height for height, _, _ in ticks], [text for _, text, _ in ticks])
    for label, (_, _, color) in zip(axes.get_yticklabels(), ticks, strict=True):
        label.set_color(color)
        label.set_fontweight("normal" if color == INK else "bold")
    axes.set_ylim(ticks[-1][0] - 0.6, 0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _interval_cells(estimate: Estimate, name: str) -> dict[str, float | int | str]:
    """Return the table cells of an estimate: mean, both ends of the interval, and number of seeds or folds."""
    low, high = ("" if end is None else end for end in (estimate.low, estimate.high))
    return {name: estimate.mean, f"{name} low": low, f"{name} high": high, f"{estimate.unit}s": estimate.num_values}
