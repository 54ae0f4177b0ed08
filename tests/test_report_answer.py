"""What the answer says, and what it must not: nothing is chosen on a test split."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unifier.report.figures.curves import telling
from unifier.report.numbers.answer import answer
from unifier.report.numbers.conditions import conditions
from unifier.report.page import report_on

Rows = Callable[..., dict[str, Any]]


def widths(row: Rows, tested: dict[int, float], validated: dict[int, float]) -> list[dict[str, Any]]:
    """Three seeds of each width, with its scores on test and on validation."""
    rows = [row("digits", tested[dim] + seed, seed, varied={"dim": dim}) for dim in tested for seed in range(3)]
    for one in rows:
        one["result"]["metrics"]["val/digits/accuracy"] = validated[one["varied"]["dim"]] + one["seed"]
    return rows


def test_a_setting_is_chosen_on_validation(row: Rows, comparison: Callable[..., Path], tmp_path: Path) -> None:
    rows = widths(row, {16: 90.0, 32: 85.0, 64: 93.0}, {16: 88.0, 32: 91.0, 64: 90.0})
    found = conditions(rows)
    assert answer(found) == [
        "For digits, dim=32 is chosen on validation: 86.0 accuracy on the test split, "
        "8.0 below dim=64, the next (95 % interval 8.0 to 8.0)."
    ]
    assert [one.label for one in telling(found, 2)] == ["dim=16", "dim=32"]
    assert "dim=32, seed 0" in report_on(comparison(tmp_path, rows))[0].read_text()


def test_without_validation_scores_nothing_is_chosen(row: Rows) -> None:
    rows = widths(row, {16: 90.0, 32: 85.0}, {16: 88.0, 32: 91.0})
    for one in rows:
        del one["result"]["metrics"]["val/digits/accuracy"]
    (said,) = answer(conditions(rows))
    assert "chosen" not in said
    assert "best" not in said
