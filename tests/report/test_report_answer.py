"""What the answer says, and what it must not: nothing is chosen on a test split."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from unifier.report.conditions import group_conditions
from unifier.report.estimates import plain_name
from unifier.report.page import report_on, write_report
from unifier.report.plot_curves import select_conditions
from unifier.report.scaling_law import efficiencies
from unifier.report.summary import joint_effect, summarize
from unifier.report.tables import score_tables
from unifier.report.transfer import retained_scores, transfer_grids

Rows = Callable[..., dict[str, Any]]


def widths(row: Rows, tested: dict[int, float], validated: dict[int, float]) -> list[dict[str, Any]]:
    """Three seeds of each width, with its scores on test and on validation."""
    rows = [row("digits", tested[dim] + seed, seed, varied={"dim": dim}) for dim in tested for seed in range(3)]
    for one in rows:
        one["result"]["metrics"]["val/digits/accuracy"] = validated[one["varied"]["dim"]] + one["seed"]
    return rows


def test_a_setting_is_chosen_on_validation(row: Rows, comparison: Callable[..., Path], tmp_path: Path) -> None:
    rows = widths(row, {16: 90.0, 32: 85.0, 64: 93.0}, {16: 88.0, 32: 91.0, 64: 90.0})
    found = group_conditions(rows)
    assert summarize(found) == [
        "For digits, dim=32 is chosen on validation: 86.0 accuracy on the test split, "
        "8.00 below dim=64, the next (the same in 3 seeds: no interval)."
    ]
    assert [one.label for one in select_conditions(found, 2)] == ["dim=16", "dim=32"]
    assert "dim=32, seed 0" in report_on(comparison(tmp_path, rows))[0].read_text()


def test_without_validation_scores_nothing_is_chosen(row: Rows) -> None:
    rows = widths(row, {16: 90.0, 32: 85.0}, {16: 88.0, 32: 91.0})
    for one in rows:
        del one["result"]["metrics"]["val/digits/accuracy"]
    (said,) = summarize(group_conditions(rows))
    assert "chosen" not in said
    assert "best" not in said


def test_each_score_says_over_what_it_is_a_mean(row: Rows) -> None:
    three = [row("digits", 90.0 + seed, seed) for seed in range(3)]
    (said,) = summarize(
        group_conditions([*three, row("music", 61.0), *(row("en-fr", 40.0 + k, fold=k) for k in range(2))])
    )
    assert re.fullmatch(
        r"digits reaches \S+ ± \S+ accuracy over 3 seeds, music reaches \S+ accuracy with one seed and "
        r"en-fr reaches \S+ ± \S+ BLEU over 2 folds\.",
        said,
    )
    (said,) = summarize(group_conditions([*three, *(row("music", 60.0 + seed, seed) for seed in range(3))]))
    assert said.count("over") == 1
    assert said.endswith(", over 3 seeds.")


def test_an_task_of_a_shared_trunk_without_one_of_its_own_is_named(row: Rows) -> None:
    joint = {"mode": "joint", "experiment": "joint"}
    rows = [row("digits", 90.0), row("digits", 91.0, **joint), row("music", 60.0, **joint)]
    said = "Left out: music, without a solo run on the same data under the same settings and seeds."
    assert summarize(group_conditions(rows))[-1] == said
    assert said not in summarize(group_conditions([*rows, row("music", 61.0)]))


def with_metric(row: dict[str, Any], metric: str, perfect: float | None) -> dict[str, Any]:
    """The row with its score under another metric, of which no scale is known."""
    scores = row["result"]["metrics"]
    row["result"]["metrics"] = {name.replace("accuracy", metric): score for name, score in scores.items()}
    row["result"]["data"][row["task"]] |= {"score_range": None, "max_score": perfect}
    return row


def test_what_was_examined_otherwise_is_no_rival(row: Rows) -> None:
    rows = [row("digits", 90.0 - k, varied={"data": f"folder{k}"}) for k in range(2)]
    rows.append(with_metric(row("digits", 0.5, varied={"data": "folder0", "task": "tags"}), "map", 1.0))
    found = group_conditions(rows)
    (said,) = summarize(found)
    assert "digits (data=folder0) reaches 90.0 accuracy, digits (data=folder1) reaches 89.0 accuracy" in said
    assert "reaches 0.500 map" in said
    (lines,) = score_tables(found).values()
    assert len({tuple(line) for line in lines}) == 1, "a table's lines have the same columns"


def test_a_metric_that_some_seeds_lack_is_a_mean_over_the_others(row: Rows) -> None:
    """As an F1 of each label has no name in the run that predicted none of it."""
    rows = [row("digits", 90.0, seed) for seed in range(3)]
    for label, seeds in {"one": (0, 1), "seven": (2,)}.items():
        for seed in seeds:
            rows[seed]["result"]["metrics"][f"test/digits/f1_{label}"] = 40.0 + 10 * seed
    ((line,),) = score_tables(group_conditions(rows)).values()
    assert re.findall(r"(\S+) (f1 \w+)", line["also"]) == [("45.0", "f1 one"), ("60.0", "f1 seven")]


def test_scores_without_a_scale_in_common_have_no_mean(row: Rows, tmp_path: Path) -> None:
    joint = {"mode": "joint", "experiment": "joint"}
    rows = [row("digits", 90.0 + gain, seed, **more) for gain, more in ((0, {}), (2, joint)) for seed in range(2)]
    rows += [
        with_metric(row("music", 0.5 + gain, seed, **more), "macro_auc", 1.0)
        for gain, more in ((0, {}), (0.25, joint))
        for seed in range(2)
    ]
    (result,) = joint_effect(group_conditions(rows))
    assert result.overall is None
    assert {task: gain.mean for task, gain in result.tasks.items()} == {"digits": 2, "music": 0.25}
    (said,) = summarize(group_conditions(rows))
    assert "digits +2.00 and music +0.250; no mean over tasks" in said
    write_report(tmp_path, {"name": "study", "status": "finished", "rows": rows})
    assert "mean" not in (tmp_path / "figures" / "joint-minus-solo.csv").read_text()


@pytest.mark.parametrize(
    ("metric", "perfect", "scores"),
    [("macro_auc", 1.0, (0.5, 0.75)), ("bleu", 100.0, (0.5, 0.75)), ("negative_mse", 0.0, (-4, -2))],
)
def test_an_error_is_what_the_score_lacks_of_a_perfect_one(
    row: Rows, tmp_path: Path, metric: str, perfect: float, scores: tuple[float, ...]
) -> None:
    rows = [
        with_metric(row("digits", score, varied={"share": share}), metric, perfect)
        for share, score in zip((0.1, 1.0), scores, strict=True)
    ]
    (found,) = efficiencies(group_conditions(rows))
    assert [one.mean for one in found.errors] == [perfect - score for score in scores]
    write_report(tmp_path, {"name": "study", "status": "finished", "rows": rows})
    said = f"Error: {perfect:g} minus {plain_name(metric)}"
    assert said in (tmp_path / "figures" / "efficiency-digits.svg").read_text()
    for one in rows:
        one["result"]["data"]["digits"]["max_score"] = None
    assert efficiencies(group_conditions(rows)) == []


def test_a_perfect_score_that_rounding_puts_above_itself_lacks_nothing(row: Rows) -> None:
    rows = [
        with_metric(row("digits", score, varied={"share": share}), "macro_auc", 1.0)
        for share, score in ((0.1, 0.5), (1.0, 1.0 + 2**-52))
    ]
    (found,) = efficiencies(group_conditions(rows))
    assert [one.mean for one in found.errors] == [0.5, 0.0]


def test_a_grid_of_scores_below_zero_is_of_scores(row: Rows) -> None:
    moved = {"mode": "transfer", "trainable": "none"}
    rows = [row("digits", -2.0), row("digits", -4.0, start="genres", **moved), row("digits", -8.0, **moved)]
    (grid,) = transfer_grids(group_conditions([with_metric(one, "negative_mse", 0.0) for one in rows]))
    assert dict(zip(grid.rows, grid.cells, strict=True)) == {
        "from genres": [-4],
        "random, frozen": [-8],
        "random, all trained (solo)": [-2],
    }
    assert grid.unit == "score, each in its own metric"


@pytest.mark.parametrize("reference", [98.0, None])
def test_a_grid_s_column_is_of_the_seeds_that_all_of_it_have(row: Rows, reference: float | None) -> None:
    """Of three seeds, that on which everything does badly failed where the trunk was moved."""
    facts = {"mode": "transfer", "trainable": "none"}
    hard = (80.0, 80.0, 20.0)
    rows = [row("digits", score, seed) for seed, score in enumerate(hard)]
    rows += [row("digits", score, seed, **facts) for seed, score in enumerate(hard)]
    rows += [row("digits", score, seed, start="genres", **facts) for seed, score in enumerate(hard[:2])]
    for one in rows:
        one["result"]["data"]["digits"]["score_range"]["reference"] = reference
    (grid,) = transfer_grids(group_conditions(rows))
    ((first,), *others) = grid.cells
    assert len(others) == 2
    assert others == [[pytest.approx(first)]] * 2
    rows.append(row("digits", 50.0, 3, start="genres", shuffled=True, **facts))
    (grid,) = transfer_grids(group_conditions(rows))
    assert all(value is not None for (value,) in grid.cells), "with no seed in common, each stands over its own"


def test_and_of_no_score_at_all_there_is_no_share(row: Rows) -> None:
    facts = {"mode": "transfer", "trainable": "none", "start": "genres"}
    rows = [row("digits", score, seed) for seed, score in enumerate((0.0, 0.0, 60.0))]
    rows += [row("digits", 50.0, seed, **facts) for seed in range(2)]
    assert transfer_grids(group_conditions([with_metric(one, "f1", 100.0) for one in rows])) == []


def moved(row: Rows, task: str, start: str, scores: tuple[float, ...], tuned: str) -> list[dict[str, Any]]:
    """A seed for each score of a trunk that was trained elsewhere."""
    facts = {"mode": "transfer", "start": start, "trainable": tuned}
    return [with_metric(row(task, score, seed, **facts), "f1", 100.0) for seed, score in enumerate(scores)]


def test_the_share_of_the_best_pair_has_the_interval_of_a_choice_and_says_of_what_it_is(row: Rows) -> None:
    solo = [with_metric(row(task, 80.0, seed), "f1", 100.0) for task in ("digits", "music") for seed in range(3)]
    frozen = moved(row, "digits", "genres", (60.0, 64.0, 68.0), "none")
    other = moved(row, "music", "pictures", (10.0, 20.0, 30.0), "none")
    low, high = stats.ttest_1samp([75, 80, 85], 0).confidence_interval(1 - 0.05 / 2)
    (said,) = summarize(group_conditions([*solo, *frozen, *other]))
    ends = f"{low:.0f} to {high:.0f}".replace("-", "−")
    assert said == (
        f"On the best of 2 pairs, genres to digits, a frozen trunk keeps 80 % of solo's score "
        f"(95 % interval {ends}, Bonferroni-adjusted for 2 pairs)."
    )
    tuned = moved(row, "digits", "genres", (80.0, 80.0, 80.0), "all")
    assert "80 % of the tuned score" in summarize(group_conditions([*solo, *frozen, *other, *tuned]))[0]
    low, high = stats.ttest_1samp([75, 80, 85], 0).confidence_interval(0.95)
    (said,) = summarize(group_conditions([*solo, *frozen]))
    assert said.startswith("From genres to digits, a frozen trunk keeps 80 % of solo's score (95 % interval ")
    assert said.endswith(f"{low:.0f} to {high:.0f}).")


def test_seeds_without_a_share_are_named(row: Rows) -> None:
    frozen = moved(row, "digits", "genres", (60.0, 64.0, 68.0), "none")
    none = "No share is given where the tuned score is not significantly above 0: genres to digits, seed "
    for scores in ((80.0, 0.0, 80.0), (0.0, 0.0, 0.0), (-80.0, -81.0, -82.0)):
        tuned = moved(row, "digits", "genres", scores, "all")
        assert summarize(group_conditions([*frozen, *tuned])) == [f"{none}0, 1 and 2."]
    assert summarize(group_conditions([frozen[0], *moved(row, "digits", "genres", (-80.0,), "all")])) == [f"{none}0."]
    many = [
        moved(row, "digits", "genres", (60.0, *19 * (score,)), how) for how, score in (("none", 64.0), ("all", 80.0))
    ]
    many[1][0]["result"]["metrics"]["test/digits/f1"] = -1.0
    assert summarize(group_conditions([one for way in many for one in way]))[-1] == f"{none}0."


def test_a_pair_that_learned_nothing_is_not_the_best(row: Rows) -> None:
    solo = [
        with_metric(row(task, score, seed), "f1", 100.0)
        for task, scores in (("digits", (0.05, 0.2, 0.0)), ("music", (80.0, 81.0, 79.0)))
        for seed, score in enumerate(scores)
    ]
    nothing = moved(row, "digits", "genres", (0.3, 0.1, 0.2), "none")
    most = moved(row, "music", "pictures", (76.0, 77.0, 75.0), "none")
    said = summarize(group_conditions([*solo, *nothing, *most]))
    assert said[0].startswith("From pictures to music, a frozen trunk keeps 95 % of solo's score")
    assert said[-1].endswith("genres to digits, seed 0, 1 and 2.")


def test_no_fold_is_a_share_of_a_seed(row: Rows) -> None:
    facts = {"mode": "transfer", "start": "genres"}
    frozen = [row("digits", 60.0, fold=fold, trainable="none", **facts) for fold in range(2)]
    by_seed = [row("digits", 80.0, seed, trainable="all", **facts) for seed in range(2)]
    assert retained_scores(group_conditions([*frozen, *by_seed])) == []
    by_fold = [row("digits", 90.0, fold=fold) for fold in range(2)]
    (kept,) = retained_scores(group_conditions([*frozen, *by_seed, *by_fold]))
    assert (kept.tuned.unit, kept.tuned.score.mean) == ("fold", 90)


def test_a_frozen_trunk_is_held_against_both_of_its_controls(row: Rows) -> None:
    facts = {"mode": "transfer", "trainable": "none"}
    trained, shuffled = (row("digits", score, start="genres", shuffled=score > 60, **facts) for score in (60.0, 70.0))
    said = " ".join(summarize(group_conditions([row("digits", 80.0), trained, shuffled, row("digits", 55.0, **facts)])))
    assert "above a random frozen trunk" in said
    assert "below its own weights shuffled" in said
