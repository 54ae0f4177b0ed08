"""Seconds until a common validation score, against times that the logs contain."""

from pathlib import Path
from typing import Any

from tests.report.conftest import JOINT, as_errors, make_comparison, make_row
from unifier.files import write_csv
from unifier.report.conditions import group_conditions
from unifier.report.read_results import read_results
from unifier.report.time_table import time_tables


def tables_of(tmp_path: Path, rows: list[dict[str, Any]], curves: list[list[float]], metric: str = "accuracy") -> Any:
    """Return the tables of runs with one validation per second."""
    results: Any = read_results(make_comparison(tmp_path, rows)).rows
    results = as_errors(results) if metric == "error" else results
    for row, curve in zip(results, curves, strict=True):
        lines = [
            {"budget/tokens": k, "budget/flops": k, "budget/seconds": k, f"val/digits/{metric}": score}
            for k, score in enumerate(curve, 1)
        ]
        write_csv(row["folder"] / "metrics.csv", lines)
    return time_tables(group_conditions(results))


def test_time_is_that_of_the_first_validation_with_the_common_score(tmp_path: Path) -> None:
    fast, slow = make_row(), make_row(varied={"rung": "lstm"})
    for row, seconds in ((fast, 1.5), (slow, 4.0)):
        row["result"]["speed"] = {"test_seconds": seconds}
    table = tables_of(tmp_path, [fast, slow], [[50, 80, 90, 88], [20, 30, 40, 75]])["digits"]
    assert [[*line.values()][1] for line in table] == ["2.0", "4.0"]
    assert [line["seconds of the test"] for line in table] == ["1.5", "4.0"]


def test_errors_are_reached_from_above(tmp_path: Path) -> None:
    rows = [make_row(), make_row(varied={"rung": "lstm"})]
    table = tables_of(tmp_path, rows, [[50, 20, 10, 12], [80, 70, 60, 25]], "error")["digits"]
    assert [[*line.values()][1] for line in table] == ["2.0", "4.0"]


def test_one_condition_has_no_table(tmp_path: Path) -> None:
    assert tables_of(tmp_path, [make_row()], [[50, 60]]) == {}


def test_seconds_of_a_joint_run_are_the_share_of_the_task(tmp_path: Path) -> None:
    rows = [make_row(), make_row(**JOINT)]
    rows[1]["result"]["budget"] = {**rows[1]["result"]["budget"], "seconds": 40.0}
    table = tables_of(tmp_path, rows, [[50, 80], [*[20.0] * 7, 80]])["digits"]
    assert [[*line.values()][1] for line in table] == ["2.0", "2.0"]
    assert table[1]["seconds of the test"] == "–"
