"""Grids of transfer scores, and the retained scores of frozen trunks in percent."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, final

from unifier.report.conditions import (
    TRAINABLE_LABELS,
    Condition,
    RunScores,
    maximal_settings,
    mean_by_unit,
    settings_text,
)
from unifier.report.estimates import Estimate, estimate, join_nonempty

RAW_UNIT = "score, each in its own metric"
"""The unit of a grid of tasks without a common scale."""


@final
@dataclass(frozen=True)
class TransferGrid:
    """Grid of numbers, with None in each cell that was not measured."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[float | None]]
    unit: str
    controls: Sequence[str] = ()
    """The names of the rows that are controls."""


class RetainedScore(NamedTuple):
    """The score of a frozen trunk, in percent of the score with all weights trained."""

    frozen: Condition
    reference: Condition
    """The condition with all weights trained, whose score is 100 %."""
    share: Estimate | None
    """The mean percentage over seeds or folds, or None if all seeds or folds are dropped."""
    dropped: Sequence[int]
    """Seeds or folds that are dropped because the reference condition's score is not significantly above 0."""

    @property
    def start(self) -> str:
        """The experiment that trained the trunk."""
        return self.frozen.rows[0]["start"]

    @property
    def task(self) -> str:
        """The task that the frozen trunk was transferred to."""
        return self.frozen.task


def transfer_grids(conditions: Sequence[Condition]) -> list[TransferGrid]:
    """Return one grid for each value of `trainable` and each combination of varied settings.

    Each row is an origin of the trunk, and the last rows are the controls. Each column is a task. Cells are normalized
    scores if every task has a reference score, else percentages of the solo score. If a solo score is not above 0, or
    if the metric is an error rate, cells are raw scores. Each cell is the mean over the folds and seeds common to all
    conditions of the column.
    """
    moved = [condition for condition in conditions if not condition.has(start=None)]
    reached = {condition.experiment_task for condition in moved}
    pairs = list(
        dict.fromkeys(condition.experiment_task for condition in conditions if condition.experiment_task in reached)
    )
    tasks = [task for _, task in pairs]
    columns = [task if tasks.count(task) == 1 else f"{experiment}, {task}" for experiment, task in pairs]
    errors = {condition.experiment_task for condition in conditions if condition.lower_is_better}
    starts = list(dict.fromkeys(condition.rows[0]["start"] for condition in moved))
    relevant = [condition for condition in conditions if condition.experiment_task in reached]
    normalized = all(condition.normalized_score for condition in relevant)
    solos = [condition for condition in relevant if condition.has(mode="solo", start=None, trainable="all")]
    relative = all(solo.score.mean > 0 and not solo.lower_is_better for solo in solos)
    unit = "normalized score" if normalized else "percent of solo's score" if relative else RAW_UNIT
    if unit == RAW_UNIT:
        columns = [_column_title(name, pair in errors) for name, pair in zip(columns, pairs, strict=True)]

    def cell(pair: tuple[str, str], varied: Mapping[str, Any], **facts: object) -> float | None:
        rivals = [rival for rival in relevant if rival.experiment_task == pair and rival.matches_settings(varied)]
        condition = next((rival for rival in rivals if rival.has(**facts)), None)
        if condition is None:
            return None
        column = [rival for rival in rivals if rival.unit == condition.unit]
        if normalized and condition.normalized_run_scores:
            return _mean_of_shared_runs(condition.normalized_run_scores, column)
        if not relative:
            return _mean_of_shared_runs(condition.run_scores, column)
        solo = next((rival for rival in column if rival.has(start=None, trainable="all")), None)
        total = _mean_of_shared_runs(solo.run_scores, column) if solo else 0.0
        return 100 * _mean_of_shared_runs(condition.run_scores, column) / total if total > 0 else None

    grids: list[TransferGrid] = []
    for (trainable, label), varied in itertools.product(reversed(TRAINABLE_LABELS.items()), maximal_settings(moved)):
        if not any(condition.has(trainable=trainable) for condition in moved if condition.matches_settings(varied)):
            continue
        rows = [
            (name.replace("_", " "), is_control, [cell(pair, varied, **facts) for pair in pairs])
            for name, is_control, facts in _grid_rows(starts, trainable, label)
        ]
        rows = [row for row in rows if any(value is not None for value in row[-1])]
        if rows:
            controls = [name for name, is_control, _ in rows if is_control]
            title = join_nonempty(f"trunk {label}", settings_text(varied))
            names, cells = [name for name, *_ in rows], [values for *_, values in rows]
            grids.append(TransferGrid(title, names, columns, cells, unit, controls))
    return grids


def retained_scores(conditions: Sequence[Condition]) -> list[RetainedScore]:
    """Return the shares of the score that frozen trunks of other experiments retain, the largest share first.

    The reference condition is the same trunk with all weights trained, or solo if no such run exists. If the score of
    the reference condition is near 0, the retained score is undefined. An error has a retained score only if the error
    can be normalized.
    """
    retained: list[RetainedScore] = []
    for frozen in conditions:
        if frozen.has(start=None) or not frozen.has(trainable="none", shuffled=False):
            continue
        reference = _reference_of(frozen, conditions)
        if reference is None:
            continue
        if frozen.lower_is_better and frozen.normalized_scores is None:
            continue
        scores, totals = (condition.normalized_scores or condition.scores for condition in (frozen, reference))
        is_positive = reference.display_score.mean > 0 and not reference.display_score.contains_zero
        units = [unit for unit in scores if unit in totals]
        shares = {unit: 100 * scores[unit] / totals[unit] for unit in units if is_positive and totals[unit] > 0}
        dropped = [unit for unit in units if unit not in shares]
        if shares or dropped:
            share = estimate(shares.values(), frozen.unit) if shares else None
            retained.append(RetainedScore(frozen, reference, share, dropped))
    return sorted(retained, key=lambda score: -score.share.mean if score.share else math.inf)


def setting_grid(conditions: Sequence[Condition]) -> TransferGrid | None:
    """Return a grid with a row per setting and a column per task, or None with fewer than two common settings."""
    swept = [condition for condition in conditions if condition.varied and "share" not in condition.varied]
    tasks = list(dict.fromkeys(condition.task for condition in swept))
    labels = list(dict.fromkeys(condition.label for condition in swept))
    rows = [label for label in labels if sum(condition.label == label for condition in swept) > 1]
    if len(rows) < 2:
        return None
    normalized = all(condition.normalized_score for condition in swept)
    cells = {
        (condition.label, condition.task): (condition.display_score if normalized else condition.score).mean
        for condition in swept
    }
    unit = "normalized score" if normalized else RAW_UNIT
    errors = set[str]() if normalized else {condition.task for condition in swept if condition.lower_is_better}
    columns = [_column_title(task, task in errors) for task in tasks]
    return TransferGrid(
        "settings by task", rows, columns, [[cells.get((label, task)) for task in tasks] for label in rows], unit
    )


def _column_title(task: str, is_error: bool) -> str:
    return f"{task} (lower is better)" if is_error else task


def _grid_rows(starts: Sequence[str], trainable: str, label: str) -> Iterator[tuple[str, bool, dict[str, object]]]:
    """Yield (name, is_control, facts) for each grid row. `facts` selects the conditions of the row."""
    for shuffled, name in ((False, "from {}"), (True, "{}, shuffled")):
        for start in starts:
            yield name.format(start), shuffled, {"start": start, "shuffled": shuffled, "trainable": trainable}
    if trainable != "all":
        yield f"random, {label}", True, {"start": None, "trainable": trainable}
    yield "random, all trained (solo)", True, {"start": None, "trainable": "all"}


def _mean_of_shared_runs(scores: RunScores, column: Sequence[Condition]) -> float:
    """Return the mean score over the seeds and folds that are common to the column, or else over all runs."""
    shared = {run: score for run, score in scores.items() if all(run in condition.run_scores for condition in column)}
    return fmean(mean_by_unit(shared or scores).values())


def _reference_of(frozen: Condition, conditions: Sequence[Condition]) -> Condition | None:
    rivals = [
        condition
        for condition in conditions
        if condition.experiment_task == frozen.experiment_task
        if condition.matches_settings(frozen.varied) and condition.unit == frozen.unit
    ]
    for start in (frozen.rows[0]["start"], None):
        for reference in rivals:
            if reference.has(start=start, trainable="all", shuffled=False):
                return reference
    return None
