"""The transfer matrix, and the share of its score that a frozen trunk keeps."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, final

from unifier.report.conditions import TRAINABLE_LABELS, Condition, Runs, by_unit, maximal_settings, settings_text
from unifier.report.estimates import Estimate, estimate, list_names


@final
@dataclass(frozen=True)
class TransferGrid:
    """Numbers in rows and columns; None where nothing was measured."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[float | None]]
    unit: str
    controls: Sequence[str] = ()
    """The rows that the others are to be held against."""


def transfer_grids(found: Sequence[Condition]) -> list[TransferGrid]:
    """A grid for each of what was tuned and varied: where the trunk began, controls below, by the task it went to.

    In normalized scores where every task has one, else in percent of what the task reaches with a trunk of its own, or
    as they are where that is not above 0; each mean over the seeds, or runs of a fold, that all of its column have.
    """
    moved = [condition for condition in found if not condition.has(start=None)]
    reached = {one.end for one in moved}
    ends = list(dict.fromkeys(condition.end for condition in found if condition.end in reached))
    tasks = [task for _, task in ends]
    names = [task if tasks.count(task) == 1 else f"{experiment}, {task}" for experiment, task in ends]
    starts = list(dict.fromkeys(condition.rows[0]["start"] for condition in moved))
    scaled = all(condition.normalized_score for condition in found if condition.end in ends)

    solos = [one for one in found if one.end in ends and one.has(mode="solo", start=None, trainable="all")]
    shares = all(one.score.mean > 0 for one in solos)

    def cell(end: tuple[str, str], varied: Mapping[str, Any], **facts: object) -> float | None:
        mine = [one for one in found if one.end == end and one.under(varied)]
        here = next((condition for condition in mine if condition.has(**facts)), None)
        if here is None:
            return None
        column = [one for one in mine if one.unit == here.unit]
        if scaled and here.normalized_runs:
            return _mean(here.normalized_runs, column)
        if not shares:
            return _mean(here.runs, column)
        solo = next((condition for condition in column if condition.has(start=None, trainable="all")), None)
        whole = _mean(solo.runs, column) if solo else 0.0
        return 100 * _mean(here.runs, column) / whole if whole > 0 else None

    grids: list[TransferGrid] = []
    for (tuned, said), varied in itertools.product(reversed(TRAINABLE_LABELS.items()), maximal_settings(moved)):
        if not any(condition.has(trainable=tuned) for condition in moved if condition.under(varied)):
            continue
        lines = [
            *((f"from {start}", False, {"start": start, "shuffled": False, "trainable": tuned}) for start in starts),
            *((f"{start}, shuffled", True, {"start": start, "shuffled": True, "trainable": tuned}) for start in starts),
            *([(f"random, {said}", True, {"start": None, "trainable": tuned})] if tuned != "all" else []),
            ("random, all trained (solo)", True, {"start": None, "trainable": "all"}),
        ]
        told = [
            (line.replace("_", " "), is_control, [cell(end, varied, **facts) for end in ends])
            for line, is_control, facts in lines
        ]
        told = [line for line in told if any(value is not None for value in line[-1])]
        if not told:
            continue
        unit = "percent of solo's score" if shares else "score, each in its own metric"
        unit = "normalized score" if scaled else unit
        controls = [line for line, is_control, _ in told if is_control]
        title = list_names(f"trunk {said}", settings_text(varied))
        rows, cells = [line for line, *_ in told], [values for *_, values in told]
        grids.append(TransferGrid(title, rows, names, cells, unit, controls))
    return grids


def _mean(scores: Runs, column: Sequence[Condition]) -> float:
    """Over the runs that all of a column have, or over all where there is none such."""
    shared = {run: score for run, score in scores.items() if all(run in one.runs for one in column)}
    return fmean(by_unit(shared or scores).values())


class RetainedScore(NamedTuple):
    """The share, in percent, of a tuned trunk's score that the same trunk keeps when it is frozen."""

    frozen: Condition
    tuned: Condition
    """What it is a share of."""
    share: Estimate | None
    dropped: Sequence[int]
    """Seeds, or folds, of which there is no share: the tuned score is not above 0, or cannot be told from it."""

    @property
    def start(self) -> str:
        """The experiment that trained the trunk."""
        return self.frozen.rows[0]["start"]

    @property
    def task(self) -> str:
        """The task that it was frozen for."""
        return self.frozen.task


def retained_scores(found: Sequence[Condition]) -> list[RetainedScore]:
    """For each start and task with a frozen trunk, best first; of solo's score where that start was never tuned.

    A score near 0 has no shares: whatever is divided by it is large, or small, by chance.
    """
    kept: list[RetainedScore] = []
    for frozen in found:
        if frozen.has(start=None) or not frozen.has(trainable="none", shuffled=False):
            continue
        tuned = next(
            (
                other
                for origin in (frozen.rows[0]["start"], None)
                for other in found
                if other.end == frozen.end and other.under(frozen.varied) and other.unit == frozen.unit
                if other.has(start=origin, trainable="all", shuffled=False)
            ),
            None,
        )
        if tuned is None:
            continue
        ours, theirs = (one.normalized_scores or one.scores for one in (frozen, tuned))
        above = tuned.shown.mean > 0 and not tuned.shown.contains_zero
        paired = [seed for seed in ours if seed in theirs]
        shares = {seed: 100 * ours[seed] / theirs[seed] for seed in paired if above and theirs[seed] > 0}
        dropped = [seed for seed in paired if seed not in shares]
        if shares or dropped:
            share = estimate(shares.values(), frozen.unit) if shares else None
            kept.append(RetainedScore(frozen, tuned, share, dropped))
    return sorted(kept, key=lambda one: -one.share.mean if one.share else math.inf)


def setting_grid(found: Sequence[Condition]) -> TransferGrid | None:
    """Settings by tasks, where several tasks were trained under the same two settings or more."""
    swept = [one for one in found if one.rows[0]["varied"] and "share" not in one.rows[0]["varied"]]
    tasks = list(dict.fromkeys(one.task for one in swept))
    labels = list(dict.fromkeys(one.label for one in swept))
    shared = [said for said in labels if sum(one.label == said for one in swept) > 1]
    if len(shared) < 2:
        return None
    scaled = all(one.normalized_score for one in swept)
    cells = {(one.label, one.task): (one.shown if scaled else one.score).mean for one in swept}
    unit = "normalized score" if scaled else "score, each in its own metric"
    return TransferGrid(
        "settings by task", shared, tasks, [[cells.get((said, task)) for task in tasks] for said in shared], unit
    )
