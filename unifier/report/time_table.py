"""Seconds of training until a common validation score, and seconds of the test, for each condition."""

from collections.abc import Sequence

from unifier.report.conditions import Condition, ResultRow, row_pretraining, trained_budget
from unifier.report.estimates import display_name, estimate, format_value, plus_minus
from unifier.report.plot_curves import Logs, read_logs
from unifier.report.tables import EMPTY_CELL, ReportTable


def time_tables(conditions: Sequence[Condition], logs: Logs | None = None) -> dict[str, ReportTable]:
    """Return a table for each task with several conditions, with one row per condition.

    The common score of a task is the lowest of the best validation scores of all runs, so every run reached it. A time
    is the time of the first validation with at least this score.

    Args:
        conditions: The conditions.
        logs: The result of `read_logs`. None means that the logs of conditions with a table are read.
    """
    tables = dict[str, ReportTable]()
    for task in dict.fromkeys(condition.task for condition in conditions):
        group = [condition for condition in conditions if condition.task == task]
        if len(group) < 2 or len({condition.test_setup for condition in group}) > 1:
            continue
        known = read_logs(group) if logs is None else logs
        curves = {
            condition: [curve for row in condition.rows if (curve := _score_curve(row, condition, known))]
            for condition in group
        }
        if not all(curves.values()):
            continue
        common = min(max(score for _, score in curve) for lines in curves.values() for curve in lines)
        title = f"{display_name(group[0].metric)} {format_value(abs(common))}"
        tables[task] = [
            {
                "condition": condition.label,
                f"seconds to {title} (validation)": plus_minus(
                    estimate([_time_of(curve, common) for curve in lines], condition.unit), 1
                ),
                "seconds of training": _mean([trained_budget(row)["seconds"] for row in condition.rows], condition),
                "seconds of the test": _mean([_test_seconds(row) for row in condition.rows], condition),
            }
            for condition, lines in curves.items()
        ]
    return tables


def _score_curve(row: ResultRow, condition: Condition, logs: Logs) -> list[tuple[float, float]]:
    """Return the seconds and the score of each validation. Errors are negated, so a higher score is better."""
    column, sign = f"val/{condition.task}/{condition.metric}", -1 if condition.lower_is_better else 1
    total = row["result"]["budget"].get("seconds") or 1
    share, start = trained_budget(row)["seconds"] / total, row_pretraining(row).get("seconds", 0)
    return [
        (start + share * float(line["budget/seconds"]), sign * float(line[column]))
        for line in logs.get(row["folder"], ())
        if line.get(column) and line.get("budget/seconds")
    ]


def _time_of(curve: Sequence[tuple[float, float]], score: float) -> float:
    return next(seconds for seconds, reached in curve if reached >= score)


def _test_seconds(row: ResultRow) -> float | None:
    """Return the seconds of the test, or None for a run with several tasks and for a run that was not timed."""
    speed = row["result"].get("speed") or {}
    return speed.get("test_seconds") if len(row["result"]["tasks"]) == 1 else None


def _mean(values: Sequence[float | None], condition: Condition) -> str:
    known = [value for value in values if value is not None]
    return plus_minus(estimate(known, condition.unit), 1) if known and len(known) == len(condition.rows) else EMPTY_CELL
