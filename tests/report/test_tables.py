"""Tables of scores, gains and runs, and the statement of which costs are matched."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.report import conftest
from tests.report.conftest import FROZEN, JOINT, make_gains, make_row, make_seeds, svg_text, with_metric, without_ranges
from unifier.report.conditions import group_conditions
from unifier.report.page import report_on
from unifier.report.read_results import read_results
from unifier.report.summary import summarize
from unifier.report.tables import control_table, matching_sentence, run_table, score_tables, unmatched


def test_unmatched_costs_have_their_range() -> None:
    rows = [make_row(budget={"flops": flops, "seconds": seconds}) for flops, seconds in ((8e11, 10.0), (1.3e12, 31.0))]
    equal, different = matching_sentence(rows).split("; ")
    assert equal.endswith(": tokens, steps and parameters")
    assert different.endswith(": FLOPs 0.8–1.3 T, seconds 10–31")
    assert matching_sentence([make_row()]) == ""
    for tokens, measures in ((1020, []), (1021, ["tokens"])):
        rows = [make_row(budget={"tokens": 1000}), make_row(budget={"tokens": tokens})]
        assert [cost.measure for cost in unmatched(rows)] == measures, "costs match up to the tolerance"


def test_pretraining_of_moved_trunks_is_noted() -> None:
    note = "; the pretraining of transferred trunks is not counted"
    same = matching_sentence([make_row(), make_row()])
    assert matching_sentence([make_row(), make_row(start="genres", **FROZEN)]) == same + note
    assert matching_sentence([make_row(), make_row(**FROZEN)]) == same, "a random trunk was not pretrained"


@pytest.mark.slow
@pytest.mark.parametrize("counted", [True, False])
def test_pretraining_is_counted_or_marked(counted: bool, tmp_path: Path) -> None:
    lineage = {"start": "pretrain", "tokenizers": ["digits"], "pretraining": {"tokens": 10_000}, "counted": counted}
    lineage |= {"teachers": ["large"]}
    rows = [make_row(), make_row(score=95.0, varied={"start": "pretrain"})]
    rows[1]["result"]["lineage"] = lineage
    assert [cost.measure for cost in unmatched(rows)] == (["tokens"] if counted else [])
    page, _ = report_on(conftest.make_comparison(tmp_path, rows))
    html, caveat = page.read_text(), "Pretraining is not counted"
    assert "trunk and tokenizer (pretrain to digits)" in html
    assert "teachers: large to digits" in html
    tables = re.findall(r"<table>\s*(<caption>.*</caption>)?", html)
    assert tables
    assert all((caveat in caption) != counted for caption in tables)
    figures = list((page.parent / "figures").glob("*.svg"))
    assert figures
    assert all((caveat in svg_text(figure)) != counted for figure in figures)
    curves = (page.parent / "figures" / "curves-digits-tokens.csv").read_text()
    assert ("solo" in curves, str(64_000 + 10_000) in curves) == (True, counted)


def test_joint_run_is_matched_by_task_budget() -> None:
    joint = make_row(mode="joint")
    joint["result"]["budget"] = {**joint["result"]["budget"], "tokens": 3 * 64_000}
    assert unmatched([make_row(), joint]) == []
    rows = [make_row(task, 80.0, mode="joint") for task in ("digits", "music")]
    for row in rows:
        del row["result"]["task_budgets"]
    assert "not recorded" in matching_sentence(rows)


def test_gain_has_the_digits_that_its_interval_supports() -> None:
    rows = make_seeds("digits", 90.0, 91.0, 92.0)
    rows += make_seeds("digits", *(90.0 + seed + 0.01 * (1 + seed / 10) for seed in range(3)), **JOINT)
    (_, line) = score_tables(group_conditions(rows))["digits"]
    assert len(re.findall(r"\d\.\d(?!\d)", " ".join(line.values()))) == 2 * 3, line
    # These scores lie tens apart, but their differences by seed do not.
    rows = make_seeds("digits", 50.0, 70.0, 90.0) + make_seeds("digits", 50.4, 70.3, 90.45, **JOINT)
    (_, line) = score_tables(group_conditions(without_ranges(rows)))["digits"]
    assert (line["accuracy"], line["minus solo"]) == ("70 ± 50", "+0.4 ± 0.2")
    # Equal gains have no interval.
    (solo, joint) = score_tables(group_conditions(make_gains("digits", 2.0, 2.0)))["digits"]
    assert sum("±" in cell for cell in joint.values()) == sum("±" in cell for cell in solo.values())


@pytest.mark.parametrize(("reference", "suffix"), [(98.0, ", normalized"), (None, "")])
def test_gain_columns_are_marked_as_normalized(reference: float | None, suffix: str) -> None:
    rows = [make_row(), make_row("digits", 50.0, **FROZEN), make_row("digits", 70.0, start="genres", **FROZEN)]
    for row in rows:
        row["result"]["data"]["digits"]["score_range"]["reference"] = reference
    conditions = group_conditions(rows)
    assert [name for name in score_tables(conditions)["digits"][0] if "solo" in name] == [f"minus solo{suffix}"]
    assert [name for name in control_table(conditions)[0] if "minus" in name] == [f"minus random{suffix}"]


def test_all_lines_have_the_same_columns() -> None:
    rows = [make_row("digits", 90.0 - k, varied={"data": f"folder{k}"}) for k in range(2)]
    rows.append(with_metric(make_row("digits", 0.5, varied={"data": "folder0", "task": "tags"}), "map", 1.0))
    (lines,) = score_tables(group_conditions(rows)).values()
    assert len({tuple(line) for line in lines}) == 1


def test_other_metrics_keep_their_digits() -> None:
    row = make_row("digits", 90.0)
    row["result"]["metrics"] |= {"test/digits/map": 0.262, "test/digits/nats": -1.04}
    ((line,),) = score_tables(group_conditions([row])).values()
    assert line["also"].split(", ")[-2:] == ["0.262 map", "−1.04 nats"]


def test_other_metric_is_over_the_runs_with_it() -> None:
    """A run that never predicts a label has no F1 for it."""
    rows = make_seeds("digits", 90.0, 90.0, 90.0)
    for label, seeds in {"one": (0, 1), "seven": (2,)}.items():
        for seed in seeds:
            rows[seed]["result"]["metrics"][f"test/digits/f1_{label}"] = 40.0 + 10 * seed
    ((line,),) = score_tables(group_conditions(rows)).values()
    assert re.findall(r"(\S+) (f1 \w+)", line["also"]) == [("45.0", "f1 one"), ("60.0", "f1 seven")]


def test_cross_validation_is_a_mean_over_folds(tmp_path: Path) -> None:
    scores = np.random.default_rng(0).normal(80, 5, (2, 4, 3))  # Axes: patch, fold, seed.
    rows = [
        make_row("digits", float(scores[patch, fold, seed]), seed, varied={"fold": fold, "patch": patch})
        for patch, fold, seed in np.ndindex(2, 4, 3)
    ]
    rows.append(make_row("digits", 10.0, 0, varied={"fold": None, "patch": 0}))  # This run has no test fold.
    results = read_results(conftest.make_comparison(tmp_path / "runs", rows))
    first, second, without_fold = group_conditions(results.rows)
    assert [condition.label for condition in (first, second)] == ["patch=0, over folds", "patch=1, over folds"]
    low, high = stats.ttest_1samp(scores[0].mean(1), 0).confidence_interval(0.95)
    assert (first.score.low, first.score.high) == (pytest.approx(low), pytest.approx(high))
    assert (first.score.num_values, first.score.unit) == (4, "fold")
    assert (without_fold.score.mean, without_fold.score.unit) == (10.0, "seed")
    assert "seed" not in summarize([first, second]).sentences[0]
    table = run_table(results.rows, {id(row): "" for row in results.rows})
    assert [line["fold"] for line in table] == [*(str(fold) for _, fold, _ in np.ndindex(2, 4, 3)), "–"]
