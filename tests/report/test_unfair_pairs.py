"""What the answer leaves out: runs on other data, under other settings, and choices among what has often diverged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unifier.report.conditions import group_conditions
from unifier.report.plot_style import FigureWriter, panel
from unifier.report.read_results import read_results
from unifier.report.summary import joint_effect, summarize

Rows = Callable[..., dict[str, Any]]
JOINT: dict[str, Any] = {"mode": "joint", "experiment": "joint"}


def of_both(one: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A joint row that tells the settings of each of its experiments."""
    one["result"]["settings"] = {"pictures": settings, "music": settings}
    return one


def test_a_joint_run_on_other_data_is_not_held_against_solo(
    tmp_path: Path, row: Rows, comparison: Callable[..., Path]
) -> None:
    rows = [row("digits", 80.0, 0), of_both(row("digits", 90.0, 0, **JOINT))]
    assert not read_results(comparison(tmp_path / "alike", rows)).problems
    rows[1]["result"]["data"]["digits"]["sha256"] = "changed"
    study = read_results(comparison(tmp_path / "changed", rows))
    assert study.problems == ["pictures, digits: its runs read different data, so they are not comparable"]
    assert not joint_effect(group_conditions(study.rows))


@pytest.mark.parametrize("budget", [1000.0, 9000.0])
def test_solo_and_joint_of_two_comparisons_are_a_pair_under_the_same_budget_alone(
    budget: float, tmp_path: Path, row: Rows, comparison: Callable[..., Path]
) -> None:
    comparison(tmp_path / "solo", [row("digits", 80.0, seed) for seed in (0, 1)], budget=1000.0)
    joint = [of_both(row("digits", 90.0, seed, **JOINT)) for seed in (1, 0)]  # in this order no two share an id
    comparison(tmp_path / "joint", joint, budget=budget)
    study = read_results(tmp_path)
    assert len(study.rows) == 4
    assert bool(joint_effect(group_conditions(study.rows))) == (budget == 1000.0)


def test_a_setting_that_has_often_diverged_is_not_chosen(row: Rows) -> None:
    rows = [row("digits", 80.0 + seed + step, seed, varied={"rate": step}) for step in (0, 1) for seed in range(3)]
    rows.append(row("digits", 99.0, varied={"rate": 2}))
    assert summarize(group_conditions(rows)) == [
        "For digits, rate=1 is chosen on validation: 82.0 accuracy on the test split, "
        "1.00 above rate=0, the next (the same in 3 seeds: no interval).",
        "Not in that choice: rate=2, with fewer scores.",
    ]


def test_seeds_that_some_run_lacks_are_named_and_tasks_ranked_on_the_others(row: Rows) -> None:
    gains = {"digits": [1.0, 1.1, 0.9, 9.0, 9.1], "music": [2.0, 2.2, 1.8]}
    rows = [row(task, 50.0 + seed, seed) for task in gains for seed in range(len(gains[task]))]
    rows += [row(task, 50.0 + k + gain, k, **JOINT) for task, own in gains.items() for k, gain in enumerate(own)]
    for one in rows:
        one["result"]["data"][one["task"]]["score_range"] = {"metric": "accuracy", "chance": 0.0, "reference": 100.0}
    (result,) = joint_effect(group_conditions(rows))
    assert {task: gain.mean for task, gain in result.tasks.items()} == pytest.approx({"digits": 1.0, "music": 2.0})
    _, fares, left_out = summarize(group_conditions(rows))
    assert fares.startswith("By task, music fares best")
    assert left_out == "Left out: seeds 3 and 4, where not every joint and solo run has a score."


def test_a_frozen_trunk_below_chance_keeps_nothing(row: Rows) -> None:
    way = {"mode": "transfer", "start": "pictures", "trainable": "none"}
    rows = [row("music", score + seed, seed, **own) for score, own in ((76.0, {}), (10.0, way)) for seed in range(3)]
    assert "a frozen trunk keeps nothing of solo's score" in " ".join(summarize(group_conditions(rows)))


def test_figures_of_one_name_are_written_side_by_side(tmp_path: Path) -> None:
    sheet = FigureWriter(tmp_path, {})
    names = [sheet.save(panel()[0], f"gain={gain}", "scores", "", []).path.name for gain in (1, -1, "+1")]
    assert names == ["gain-1.svg", "gain-1-2.svg", "gain-1-3.svg"]
