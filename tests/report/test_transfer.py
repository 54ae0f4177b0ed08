"""Grids of transfer scores, and the share of its score that a frozen trunk retains."""

from typing import Any, get_args

import pytest

from tests.report.conftest import FROZEN, Row, make_row, make_seeds, with_metric
from unifier.experiment import Trainable
from unifier.report.conditions import group_conditions
from unifier.report.transfer import TransferGrid, retained_scores, setting_grid, transfer_grids


def cells_of(grid: TransferGrid) -> dict[str, dict[str, float | None]]:
    return {name: dict(zip(grid.columns, row, strict=True)) for name, row in zip(grid.rows, grid.cells, strict=True)}


def two_experiments() -> list[Row]:
    """Return rows of two experiments on the task "digits", each transferred from the other's trunk."""
    rows: list[Row] = []
    for experiment, other, solo in (("easy", "hard", 90.0), ("hard", "easy", 50.0)):
        moved: dict[str, Any] = {"experiment": experiment, "mode": "transfer", "start": other}
        rows += [
            make_row("digits", solo, experiment=experiment),
            make_row("digits", solo - 20, experiment=experiment, **FROZEN),
            make_row("digits", solo - 5, trainable="none", **moved),
            make_row("digits", solo + 1, trainable="all", **moved),
        ]
    return rows


def test_grid_has_all_pairs_and_controls() -> None:
    rows = [
        make_row("digits", 95.0),
        make_row("music", 80.0),
        make_row("digits", 85.0, start="genres", **FROZEN),
        make_row("music", 70.0, start="pictures", **FROZEN),
        make_row("digits", 55.0, start="genres", shuffled=True, **FROZEN),
        make_row("digits", 60.0, **FROZEN),
    ]
    (grid,) = transfer_grids(group_conditions(rows))
    cells = cells_of(grid)
    assert cells["from genres"] == {"digits": pytest.approx(100 * 75 / 88), "music": None}
    assert cells["from pictures"] == {"digits": None, "music": pytest.approx(100 * 50 / 70)}
    assert cells["genres, shuffled"]["digits"] == pytest.approx(100 * 45 / 88)
    assert cells["random, frozen"]["digits"] == pytest.approx(100 * 50 / 88)
    assert cells["random, all trained (solo)"]["music"] == pytest.approx(100 * 60 / 70)
    for row in rows:
        row["result"]["data"][row["task"]]["score_range"] = {"metric": "accuracy", "chance": 0, "reference": None}
    (grid,) = transfer_grids(group_conditions(rows))
    assert grid.cells[0][0] == pytest.approx(100 * 85 / 95)
    assert "solo" in grid.unit


def test_controls_do_not_depend_on_names() -> None:
    moved: dict[str, Any] = FROZEN | {"start": "from_shuffled"}
    rows = [make_row("digits", 95.0), *(make_row("digits", 80.0, shuffled=each, **moved) for each in (False, True))]
    (grid,) = transfer_grids(group_conditions(rows))
    assert grid.rows == ["from from shuffled", "from shuffled, shuffled", "random, all trained (solo)"]
    assert grid.controls == grid.rows[1:]


def test_grid_of_negative_scores_is_raw() -> None:
    rows = [make_row(score=-2.0), make_row(score=-4.0, start="genres", **FROZEN), make_row(score=-8.0, **FROZEN)]
    (grid,) = transfer_grids(group_conditions([with_metric(row, "negative_mse", 0.0) for row in rows]))
    scores = {"from genres": -4, "random, frozen": -8, "random, all trained (solo)": -2}
    assert cells_of(grid) == {name: {"digits": score} for name, score in scores.items()}
    assert "own metric" in grid.unit


@pytest.mark.parametrize("reference", [98.0, None])
def test_grid_column_is_over_shared_seeds(reference: float | None) -> None:
    # The hardest of three seeds failed for the transferred trunk only.
    hard = (80.0, 80.0, 20.0)
    rows = [*make_seeds("digits", *hard), *make_seeds("digits", *hard, **FROZEN)]
    rows += make_seeds("digits", *hard[:2], start="genres", **FROZEN)
    for row in rows:
        row["result"]["data"]["digits"]["score_range"]["reference"] = reference
    (grid,) = transfer_grids(group_conditions(rows))
    ((first,), *others) = grid.cells
    assert others == [[pytest.approx(first)]] * 2
    rows.append(make_row("digits", 50.0, 3, start="genres", shuffled=True, **FROZEN))
    (grid,) = transfer_grids(group_conditions(rows))
    assert all(value is not None for (value,) in grid.cells), "without a shared seed, each cell is over its own"
    # A score of 0 gives no percentage.
    rows = [*make_seeds("digits", 0.0, 0.0, 60.0), *make_seeds("digits", 50.0, 50.0, start="genres", **FROZEN)]
    assert transfer_grids(group_conditions([with_metric(row, "f1", 100.0) for row in rows])) == []


def test_varied_settings_have_separate_grids() -> None:
    # The experiment `genres` lacks the setting `patch`, so its solo run is in both grids.
    rows: list[Row] = [make_row("music", 70.0)]
    for patch in (2, 4):
        varied: dict[str, Any] = {"varied": {"patch": patch}}
        rows.append(make_row("digits", 70.0 + patch, **varied))
        for trainable in ("none", "all"):
            moved: dict[str, Any] = varied | {"mode": "transfer", "trainable": trainable}
            rows.append(make_row("digits", 60.0 + patch, start="genres", **moved))
            rows.append(make_row("music", 50.0 + patch, start="pictures", **moved))
    grids = {grid.title: cells_of(grid) for grid in transfer_grids(group_conditions(rows))}
    assert len(grids) == 4
    for trainable in ("frozen", "all trained"):
        for patch in (2, 4):
            cells = grids[f"trunk {trainable}, patch={patch}"]
            assert cells["from genres"]["digits"] == pytest.approx(100 * (50 + patch) / 88)
            assert cells["from pictures"]["music"] == pytest.approx(100 * (30 + patch) / 70)
            assert cells["random, all trained (solo)"]["music"] == pytest.approx(100 * 50 / 70)


def test_each_trained_part_of_a_trunk_has_a_grid() -> None:
    rows = [make_row("digits", 95.0)]
    for trainable in get_args(Trainable):
        rows.append(make_row("digits", 80.0, start="genres", mode="transfer", trainable=trainable))
    grids = transfer_grids(group_conditions(rows))
    assert len({grid.title for grid in grids}) == len(get_args(Trainable))


def test_grid_columns_of_one_task_are_apart() -> None:
    frozen = transfer_grids(group_conditions(two_experiments()))[0]
    assert frozen.columns == ["easy, digits", "hard, digits"]
    lines = dict(zip(frozen.rows, frozen.cells, strict=True))
    assert lines["from hard"] == [pytest.approx(100 * 75 / 88), None]
    assert lines["from easy"] == [None, pytest.approx(100 * 35 / 88)]


def test_setting_grid_needs_two_shared_settings() -> None:
    rows = [make_row(task, 80.0, varied={"patch": patch}) for task in ("digits", "music") for patch in (2, 4)]
    grid = setting_grid(group_conditions(rows))
    assert grid is not None
    assert (grid.rows, grid.columns) == (["patch=2", "patch=4"], ["digits", "music"])
    assert setting_grid(group_conditions(rows[:3])) is None


def test_retained_share_is_of_the_tuned_trunk() -> None:
    moved: dict[str, Any] = {"mode": "transfer", "start": "pictures"}
    rows = [
        make_row("music", 76.0),
        make_row("music", 62.0, trainable="none", **moved),
        make_row("music", 80.0, trainable="all", **moved),
        make_row("music", 55.0, start="translation", **FROZEN),
    ]
    best, other = retained_scores(group_conditions(rows))
    assert best.share is not None
    assert other.share is not None
    assert (best.start, best.share.mean) == ("pictures", pytest.approx(100 * 42 / 60))
    assert (other.start, other.share.mean) == ("translation", pytest.approx(100 * 35 / 56))
    assert other.reference.label == "solo", "this trunk was never tuned"


def test_retained_share_is_of_its_own_experiment() -> None:
    retained = retained_scores(group_conditions(two_experiments()))
    shares = {score.start: score.share.mean for score in retained if score.share}
    assert shares == {"hard": pytest.approx(100 * 75 / 81), "easy": pytest.approx(100 * 35 / 41)}


def test_retained_share_is_of_its_own_setting() -> None:
    rows: list[Row] = []
    for dim, score in ((8, 40.0), (16, 80.0)):
        for start, trainable, factor in ((None, "all", 1.0), ("genres", "none", 0.5), ("genres", "all", 1.0)):
            facts = {"start": start, "trainable": trainable, "mode": "transfer" if start else "solo"}
            rows += make_seeds("digits", score * factor, score * factor, varied={"dim": dim}, **facts)
    retained = retained_scores(group_conditions([with_metric(row, "f1", 100.0) for row in rows]))
    assert [score.share.mean for score in retained if score.share] == [50, 50]


def test_fold_is_no_share_of_a_seed() -> None:
    moved: dict[str, Any] = {"mode": "transfer", "start": "genres"}
    frozen = [make_row("digits", 60.0, fold=fold, trainable="none", **moved) for fold in range(2)]
    by_seed = make_seeds("digits", 80.0, 80.0, trainable="all", **moved)
    assert retained_scores(group_conditions([*frozen, *by_seed])) == []
    by_fold = [make_row("digits", 90.0, fold=fold) for fold in range(2)]
    (retained,) = retained_scores(group_conditions([*frozen, *by_seed, *by_fold]))
    assert (retained.reference.unit, retained.reference.score.mean) == ("fold", 90)
