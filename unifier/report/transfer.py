"""The transfer matrix, and the share of its score that a frozen trunk keeps."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, final

from unifier.report.conditions import TUNED, Condition, Runs, by_unit, fullest, settings_of
from unifier.report.estimates import Estimate, estimate, listed


@final
@dataclass(frozen=True)
class Grid:
    """Numbers in rows and columns; None where nothing was measured."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[float | None]]
    unit: str
    controls: Sequence[str] = ()
    """The rows that the others are to be held against."""


def transfer_grids(found: Sequence[Condition]) -> list[Grid]:
    """A grid for each of what was tuned and varied: where the trunk began, controls below, by the arm it went to.

    In normalised scores where every arm has one, else in per cent of what the arm reaches with a trunk of its own, or
    as they are where that is not above 0; each mean over the seeds, or runs of a fold, that all of its column have.
    """
    moved = [condition for condition in found if not condition.has(start=None)]
    reached = {one.end for one in moved}
    ends = list(dict.fromkeys(condition.end for condition in found if condition.end in reached))
    arms = [arm for _, arm in ends]
    names = [arm if arms.count(arm) == 1 else f"{experiment}, {arm}" for experiment, arm in ends]
    starts = list(dict.fromkeys(condition.rows[0]["start"] for condition in moved))
    scaled = all(condition.normalised_score for condition in found if condition.end in ends)

    solos = [one for one in found if one.end in ends and one.has(mode="solo", start=None, tuned="all")]
    shares = all(one.score.mean > 0 for one in solos)

    def cell(end: tuple[str, str], varied: Mapping[str, Any], **facts: object) -> float | None:
        mine = [one for one in found if one.end == end and one.under(varied)]
        here = next((condition for condition in mine if condition.has(**facts)), None)
        if here is None:
            return None
        column = [one for one in mine if one.unit == here.unit]
        if scaled and here.normalised_runs:
            return _mean(here.normalised_runs, column)
        if not shares:
            return _mean(here.runs, column)
        solo = next((condition for condition in column if condition.has(start=None, tuned="all")), None)
        whole = _mean(solo.runs, column) if solo else 0.0
        return 100 * _mean(here.runs, column) / whole if whole > 0 else None

    grids: list[Grid] = []
    for (tuned, said), varied in itertools.product(reversed(TUNED.items()), fullest(moved)):
        if not any(condition.has(tuned=tuned) for condition in moved if condition.under(varied)):
            continue
        lines = [
            *((f"from {start}", False, {"start": start, "shuffled": False, "tuned": tuned}) for start in starts),
            *((f"{start}, shuffled", True, {"start": start, "shuffled": True, "tuned": tuned}) for start in starts),
            *([(f"random, {said}", True, {"start": None, "tuned": tuned})] if tuned != "all" else []),
            ("random, all trained (solo)", True, {"start": None, "tuned": "all"}),
        ]
        told = [
            (line.replace("_", " "), is_control, [cell(end, varied, **facts) for end in ends])
            for line, is_control, facts in lines
        ]
        told = [line for line in told if any(value is not None for value in line[-1])]
        if not told:
            continue
        unit = "per cent of solo's score" if shares else "score, each in its own metric"
        unit = "normalised score" if scaled else unit
        controls = [line for line, is_control, _ in told if is_control]
        title = listed(f"trunk {said}", settings_of(varied))
        rows, cells = [line for line, *_ in told], [values for *_, values in told]
        grids.append(Grid(title, rows, names, cells, unit, controls))
    return grids


def _mean(scores: Runs, column: Sequence[Condition]) -> float:
    """Over the runs that all of a column have, or over all where there is none such."""
    shared = {run: score for run, score in scores.items() if all(run in one.runs for one in column)}
    return fmean(by_unit(shared or scores).values())


class Kept(NamedTuple):
    """The share, in per cent, of a tuned trunk's score that the same trunk keeps when it is frozen."""

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
    def arm(self) -> str:
        """The arm that it was frozen for."""
        return self.frozen.arm


def shares_kept(found: Sequence[Condition]) -> list[Kept]:
    """For each start and arm with a frozen trunk, best first; of solo's score where that start was never tuned.

    A score near 0 has no shares: whatever is divided by it is large, or small, by chance.
    """
    kept: list[Kept] = []
    for frozen in found:
        if frozen.has(start=None) or not frozen.has(tuned="none", shuffled=False):
            continue
        tuned = next(
            (
                other
                for origin in (frozen.rows[0]["start"], None)
                for other in found
                if other.end == frozen.end and other.under(frozen.varied) and other.unit == frozen.unit
                if other.has(start=origin, tuned="all", shuffled=False)
            ),
            None,
        )
        if tuned is None:
            continue
        ours, theirs = (one.normalised_scores or one.scores for one in (frozen, tuned))
        above = tuned.shown.mean > 0 and not tuned.shown.holds_zero
        paired = [seed for seed in ours if seed in theirs]
        shares = {seed: 100 * ours[seed] / theirs[seed] for seed in paired if above and theirs[seed] > 0}
        dropped = [seed for seed in paired if seed not in shares]
        if shares or dropped:
            share = estimate(shares.values(), frozen.unit) if shares else None
            kept.append(Kept(frozen, tuned, share, dropped))
    return sorted(kept, key=lambda one: -one.share.mean if one.share else math.inf)


def setting_grid(found: Sequence[Condition]) -> Grid | None:
    """Settings by arms, where several arms were trained under the same two settings or more."""
    swept = [one for one in found if one.rows[0]["varied"] and "share" not in one.rows[0]["varied"]]
    arms = list(dict.fromkeys(one.arm for one in swept))
    labels = list(dict.fromkeys(one.label for one in swept))
    shared = [said for said in labels if sum(one.label == said for one in swept) > 1]
    if len(shared) < 2:
        return None
    scaled = all(one.normalised_score for one in swept)
    cells = {(one.label, one.arm): (one.shown if scaled else one.score).mean for one in swept}
    unit = "normalised score" if scaled else "score, each in its own metric"
    return Grid("settings by arm", shared, arms, [[cells.get((said, arm)) for arm in arms] for said in shared], unit)
