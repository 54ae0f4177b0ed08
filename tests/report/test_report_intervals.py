"""What is claimed of a difference, and what its interval does not allow."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from unifier.files import read_csv
from unifier.report.conditions import group_conditions
from unifier.report.estimates import Estimate, estimate, interval, plus_minus
from unifier.report.page import report_on
from unifier.report.summary import summarize
from unifier.report.tables import score_tables

Rows = Callable[..., dict[str, Any]]
JOINT = {"mode": "joint", "experiment": "joint"}


def gaining(row: Rows, task: str, *gains: float) -> list[dict[str, Any]]:
    """An task on its own trunk and on a shared one, which is so much better, seed by seed."""
    ways = [(0.0, {}), (1.0, JOINT)]
    return [row(task, 60.0 + seed + k * gain, seed, **way) for k, way in ways for seed, gain in enumerate(gains)]


@pytest.mark.parametrize("value", [1.2, -55.1, 1e-4, 0.0])
def test_equal_values_say_nothing_of_the_spread(value: float) -> None:
    found = estimate([value, value + value * 1e-13, value])
    assert (found.half, found.low, found.sign, found.size) == (None, None, 0, 3)
    assert interval(found) == "(the same in 3 seeds: no interval)"
    assert "±" not in plus_minus(found)
    assert estimate([value, value + 1e-3]).half is not None


def test_equal_gains_are_told_but_not_claimed(row: Rows, comparison: Callable[..., Path], tmp_path: Path) -> None:
    rows = gaining(row, "digits", 2.0, 2.0)
    said = summarize(group_conditions(rows))[0]
    assert said.endswith("above separate trunks (the same in 2 seeds: no interval).")
    assert "gains" not in said
    (solo, joint) = score_tables(group_conditions(rows))["digits"]
    assert sum("±" in text for text in joint.values()) == sum("±" in text for text in solo.values())
    report_on(folder := comparison(tmp_path, rows))
    (line,) = read_csv(folder / "figures" / "joint-minus-solo.csv")[:1]
    assert (line["joint minus solo low"], line["joint minus solo high"]) == ("", "")
    assert "No interval over seeds" in (folder / "figures" / "joint-minus-solo.svg").read_text()


def test_nor_has_a_sweep_s_point_an_interval_of_no_width(
    row: Rows, comparison: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [
        row("digits", 80.0, seed, varied={"patch": patch}, budget={"tokens": 64_000 // patch})
        for seed in (0, 1)
        for patch in (2, 4)
    ]
    report_on(folder := comparison(tmp_path, rows))
    lines = read_csv(folder / "figures" / "sweep-digits-columns.csv")
    assert [line["half interval"] for line in lines] == ["", ""]


def test_a_tie_cannot_be_told_apart(row: Rows) -> None:
    assert "cannot be told apart over 2 seeds" in summarize(group_conditions(gaining(row, "digits", 0.0, 0.0)))[0]


@pytest.mark.parametrize("mean", [2.0, -2.0])
def test_an_interval_that_ends_at_0_holds_it(mean: float) -> None:
    assert Estimate(mean, 2.0, 3).sign == 0
    assert Estimate(mean, 1.99, 3).sign == mean / 2


def bests(rows: list[dict[str, Any]]) -> list[str]:
    return [said for said in summarize(group_conditions(rows)) if "fares best" in said]


def test_tasks_are_ranked_where_their_difference_has_a_sign(row: Rows) -> None:
    """Paired by seed: what two tasks have in common widens each one's interval, and not their difference's."""
    first, second = gaining(row, "digits", 1.0, 8.0, 15.0), gaining(row, "music", -3.0, 2.0, 8.0)
    (said,) = bests([*first, *second])
    assert "digits fares best" in said
    assert "music worst" in said
    unpaired = gaining(row, "music", 8.0, 2.0, -3.0)
    assert bests([*first, *unpaired]) == []
    assert summarize(group_conditions([*first, *unpaired]))[1].startswith("By task: digits +")


def test_but_not_by_equal_means_nor_by_one_seed(row: Rows) -> None:
    alike = [one for task in ("digits", "music") for one in gaining(row, task, 1.0, 8.0)]
    for one in alike:
        one["result"]["data"][one["task"]]["score_range"] = None
    assert bests(alike) == []
    assert bests([one for task, gain in (("digits", 9.0), ("music", 2.0)) for one in gaining(row, task, gain)]) == []


def test_the_best_of_more_tasks_has_the_interval_of_a_choice(row: Rows) -> None:
    """Seeds whose difference has a sign between two tasks alone, and none once a third lies between them."""
    tasks = {"digits": (6.0, 8.0, 9.0), "music": (1.0, 5.0, 5.0), "en-fr": (4.0, 6.0, 7.0)}
    rows = {task: gaining(row, task, *gains) for task, gains in tasks.items()}
    for one in (one for of_task in rows.values() for one in of_task):
        one["result"]["metrics"] = {
            name.replace("bleu", "accuracy"): score for name, score in one["result"]["metrics"].items()
        }
        one["result"]["data"][one["task"]]["score_range"] = None
    gaps = [most - least for most, least in zip(tasks["digits"], tasks["music"], strict=True)]
    lows = [stats.ttest_1samp(gaps, 0).confidence_interval(1 - 0.05 / choices)[0] for choices in (1, 3)]
    assert lows[1] < 0 < lows[0]
    assert len(bests([*rows["digits"], *rows["music"]])) == 1
    assert bests([one for of_task in rows.values() for one in of_task]) == []


@pytest.mark.parametrize(("mean", "half"), [(12.4, 12.1), (-12.4, 12.1), (12.1, 12.4), (3.0, 2.996), (40.0, 12.0)])
def test_an_interval_holds_0_where_it_says_so(mean: float, half: float) -> None:
    found = Estimate(mean, half, 3)
    ends = re.findall(r"[−\d.]+", interval(found).partition("interval")[2])
    low, high = (float(end.replace("−", "-")) for end in ends)
    assert (low <= 0 <= high) == (found.sign == 0)


def test_and_an_end_that_is_0_ends_there() -> None:
    assert interval(Estimate(12.0, 12.0, 3)) == "(95 % interval 0 to 24)"
