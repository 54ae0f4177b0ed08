"""Which costs of compared rows are equal, and which differ."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unifier.report.numbers.conditions import Condition, budget
from unifier.report.numbers.rows import Row
from unifier.report.numbers.wording import amount, join

TOLERANCE = 0.02
"""Amounts whose spread is at most this share of the largest are equal: a batch more or less."""

MEASURES = {"tokens": "tokens", "flops": "FLOPs", "steps": "steps", "seconds": "seconds", "parameters": "parameters"}


class Unmatched(NamedTuple):
    """A measure in which rows differ, from the least to the most."""

    measure: str
    low: float
    high: float


def unmatched(rows: Iterable[Row]) -> list[Unmatched]:
    """The measures in which rows differ by more than a fiftieth."""
    costs = [budget(row) for row in rows]
    found: list[Unmatched] = []
    for measure in MEASURES:
        values = [cost[measure] for cost in costs if measure in cost]
        if values and max(values) - min(values) > TOLERANCE * max(values):
            found.append(Unmatched(measure, min(values), max(values)))
    return found


def matching(rows: Iterable[Row]) -> str:
    """What is matched and what is not, in a line; empty for a single row."""
    rows = list(rows)
    if len(rows) < 2:
        return ""
    counted = [
        row for row in rows if row["arm"] in row["result"].get("arm_budgets", {}) or len(row["result"]["arms"]) == 1
    ]
    if len(counted) < len(rows):  # a run's whole cost says nothing of what each of its arms had
        return "the cost of each arm in the joint run was not recorded"
    apart = unmatched(rows)
    ranges = [f"{MEASURES[one.measure]} {amount(one.low, one.high)}" for one in apart]
    equal = [said for measure, said in MEASURES.items() if measure not in {one.measure for one in apart}]
    matched = f"equal within 2 %: {join(equal)}" if equal else "no cost is equal within 2 %"
    said = f"{matched}; different: {', '.join(ranges)}" if ranges else matched
    moved = any(row["start"] is not None for row in rows)
    return f"{said}; the pretraining of transferred trunks is not counted" if moved else said


def matching_of(conditions: Sequence[Condition]) -> dict[str, str]:
    """The same as a sentence for each arm of several conditions; arms are not held against each other."""
    arms = [one.arm for one in conditions]
    return {
        arm: f"{said[0].upper()}{said[1:]}"
        for arm in dict.fromkeys(arms)
        if arms.count(arm) > 1
        if (said := matching(row for one in conditions if one.arm == arm for row in one.rows))
    }
