"""A metric for which lower is better: reports decide as with 100 minus the metric, for which higher is better."""

import itertools
from typing import Any

import pytest

from tests.report.conftest import FROZEN, JOINT, Row, as_errors, make_gains, make_row, make_seeds, without_ranges
from tests.report.test_summary import answer, widths
from unifier.report.conditions import by_priority, group_conditions
from unifier.report.plot_curves import select_conditions
from unifier.report.plot_scores import draw_grids, draw_joint, draw_scores, score_limits
from unifier.report.plot_style import FigureWriter
from unifier.report.scaling_law import efficiencies
from unifier.report.summary import joint_effect
from unifier.report.tables import score_tables
from unifier.report.transfer import RAW_UNIT, retained_scores, transfer_grids


def moved_rows() -> list[Row]:
    """Return a task on transferred trunks: two frozen trunks, a tuned trunk and a control."""
    rows = [*make_seeds("digits", 90.0, 91.0, 92.0), *make_seeds("digits", 60.0, 61.0, 63.0, **FROZEN)]
    for start, score in (("genres", 80.0), ("translation", 70.0)):
        rows += make_seeds("digits", score, score + 1, score + 3, start=start, **FROZEN)
    return [*rows, *make_seeds("digits", 95.0, 96.0, 98.0, start="genres", mode="transfer")]


def test_normalized_scores_ranks_and_shares_are_equal() -> None:
    swept = [make_row("digits", score, varied={"dim": dim}) for dim, score in ((16, 90.0), (32, 85.0), (64, 93.0))]
    for rows in (moved_rows(), swept):
        scores, errors = group_conditions(rows), group_conditions(as_errors(rows))
        assert [c.normalized_scores for c in errors] == [pytest.approx(c.normalized_scores) for c in scores]
        assert [c.label for c in by_priority(errors)] == [c.label for c in by_priority(scores)]
        chosen = [[c.label for c in select_conditions(group, 2)] for group in (scores, errors)]
        assert chosen[0] == chosen[1]
        shares = [[(r.frozen.label, r.share) for r in retained_scores(group)] for group in (scores, errors)]
        assert [label for label, _ in shares[0]] == [label for label, _ in shares[1]]
        for (_, share), (_, other) in zip(*shares, strict=True):
            assert share == pytest.approx(other)
        cells = [[grid.cells for grid in transfer_grids(group)] for group in (scores, errors)]
        for cell, other in zip(*(itertools.chain(*itertools.chain(*grids)) for grids in cells), strict=True):
            assert cell == pytest.approx(other)


def test_error_without_a_range_has_no_shares_and_a_raw_grid() -> None:
    conditions = group_conditions(as_errors(without_ranges(moved_rows())))
    assert not retained_scores(conditions)
    assert {(grid.unit, *grid.columns) for grid in transfer_grids(conditions)} == {
        (RAW_UNIT, "digits (lower is better)")
    }


def test_error_without_a_reference_is_a_share_of_the_error_at_chance() -> None:
    (row,) = as_errors([make_row("digits", 85.0)])
    row["result"]["data"]["digits"]["score_range"] |= {"chance": 60.0, "reference": None}
    (condition,) = group_conditions([row])
    assert condition.normalized_scores == {0: pytest.approx(100 * (1 - 15 / 60))}
    assert score_limits(condition, normalized=True) == pytest.approx((-float("inf"), 100))


@pytest.mark.parametrize("gains", [(0.9, 1.0, 1.1), (-2.1, -2.0, -1.9), (2.0,), (-2.0,), (0.0, 0.0)])
def test_sentences_have_the_direction_of_the_metric(gains: tuple[float, ...]) -> None:
    rows = make_gains("digits", *gains)
    (sentence,), (of_error,) = answer(rows), answer(as_errors(rows))
    better = gains[0] > 0
    assert ("gains" in sentence, "costs" in sentence) == (better and len(gains) > 1, not better and len(gains) > 2)
    assert ("saves" in of_error, "costs" in of_error) == ("gains" in sentence, "costs" in sentence)
    assert ("above" in sentence, "below" in sentence) == ("below" in of_error, "above" in of_error)
    assert of_error.count("error") == (1 if any(gains) else 0)


@pytest.mark.slow
def test_best_task_and_best_setting_are_equal() -> None:
    rows = [*make_gains("digits", 9.0, 9.1, 8.9), *make_gains("music", 2.0, 2.2, 1.8)]
    for given in (rows, without_ranges([*rows])):
        effects = [joint_effect(group_conditions(each))[0] for each in (given, as_errors(given))]
        assert effects[0].best_minus_worst == pytest.approx(effects[1].best_minus_worst)
        texts = [" ".join(answer(each)) for each in (given, as_errors(given))]
        assert all("digits fares best and music fares worst" in text for text in texts)
    swept = widths({8: 70.0, 16: 80.0, 32: 75.0}, {8: 60.0, 16: 62.0, 32: 90.0})
    assert all(answer(each)[0].startswith("For digits, dim=32 is chosen") for each in (swept, as_errors(swept)))


def test_error_over_share_is_the_metric() -> None:
    rows = [make_row("digits", 100 - error, varied={"share": share}) for share, error in ((0.25, 20.0), (1.0, 10.0))]
    (curve,) = efficiencies(group_conditions(as_errors(rows)))
    assert ([error.mean for error in curve.errors], curve.max_score) == ([20.0, 10.0], None)


@pytest.mark.slow
def test_figures_and_tables_name_the_direction(writer: FigureWriter) -> None:
    rows = as_errors(without_ranges([*make_gains("digits", 1.0, 2.0), make_row("digits", start="genres", **FROZEN)]))
    conditions = group_conditions(rows)
    saved: list[Any] = [*draw_scores(conditions, writer), *draw_joint(conditions, writer)]
    saved += draw_grids(conditions, writer)
    assert all("ower is better" in figure.svg + figure.note for figure in saved)
    assert "error (lower is better)" in score_tables(conditions)["digits"][0]
    assert JOINT["mode"] in {condition.rows[0]["mode"] for condition in conditions}
