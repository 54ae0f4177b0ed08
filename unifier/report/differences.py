"""Tables of paired differences: each condition minus the first one, over all test examples and over their groups."""

from collections.abc import Sequence
from dataclasses import replace

from unifier.report.conditions import Condition, contrast
from unifier.report.estimates import count_noun, format_number, num_decimals, plus_minus
from unifier.report.example_tests import ExampleTest, compare_groups
from unifier.report.tables import EMPTY_CELL, ReportTable

MAX_LISTED_CONDITIONS = 12
"""Maximum number of conditions of a table, because each row needs a test over test examples."""


def difference_tables(conditions: Sequence[Condition]) -> dict[str, ReportTable]:
    """Return a table for each task with 2 to `MAX_LISTED_CONDITIONS` conditions on the same test data.

    All conditions of a table are solo, or all are joint.

    The baseline of a table is its first condition, which has the first value of each varied setting. A row has the
    score of a condition, and its difference from the baseline. If the targets belong to groups, such as languages,
    further rows have the scores of each group.
    """
    groups: dict[tuple[str, ...], list[Condition]] = {}
    for condition in conditions:
        mode = condition.rows[0]["mode"]
        if mode != "transfer" and condition.has(start=None, trainable="all") and "share" not in condition.varied:
            groups.setdefault((mode, *condition.experiment_task, *condition.test_setup), []).append(condition)
    tables: dict[str, ReportTable] = {}
    for group in groups.values():
        if 2 <= len(group) <= MAX_LISTED_CONDITIONS and (rows := _difference_rows(group[0], group[1:])):
            tables[f"{group[0].task}, {group[0].title}: differences from {group[0].label}"] = rows
    return tables


def _difference_rows(baseline: Condition, others: Sequence[Condition]) -> ReportTable:
    pairs = {condition: pair for condition in others if (pair := contrast(condition, baseline))}
    tests = {condition: compare_groups(pair) for condition, pair in pairs.items()}
    names = dict.fromkeys(name for found in tests.values() for name in found)
    rows: ReportTable = []
    for name in names:
        metric = f"{baseline.metric}_{name}" if name else baseline.metric
        first = replace(baseline, metric=metric)
        cells = {"test examples": name.replace("_", " ") or "all", "condition": first.label}
        empty = dict.fromkeys(("difference", "over test examples", "p over test examples"), EMPTY_CELL)
        rows.append({**cells, "score": plus_minus(first.score), **empty})
        for condition, pair in pairs.items():
            if name in tests[condition]:
                other = replace(condition, metric=metric)
                part = replace(pair, condition=other, baseline=first) if not name else contrast(other, first)
                assert part is not None
                places = max(1, num_decimals(other.score))
                cells = {**cells, "condition": other.label, "score": plus_minus(other.score)}
                difference = {"difference": plus_minus(part.gain, places, signed=True)}
                rows.append({**cells, **difference, **_test_cells(tests[condition][name].test, places)})
    return rows


def _test_cells(test: ExampleTest | None, places: int) -> dict[str, str]:
    """Return the cells of a test over test examples. The cells are empty if a run has no usable predictions."""
    if test is None:
        return {"over test examples": EMPTY_CELL, "p over test examples": EMPTY_CELL}
    difference = plus_minus(test.difference, places, signed=True)
    over = count_noun(test.difference.num_values, test.difference.unit.replace("test ", ""))
    p_value = format_number(test.p_value, 3) if test.p_value >= 0.001 else "< 0.001"
    return {"over test examples": f"{difference} ({over})", "p over test examples": p_value}
