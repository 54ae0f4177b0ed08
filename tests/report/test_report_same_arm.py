"""Experiments whose tasks bear one name keep baselines, trunks and gradients of their own; so do comparisons."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unifier.files import read_csv, write_csv
from unifier.report.conditions import contrasts, group_conditions
from unifier.report.page import report_on
from unifier.report.read_results import read_results
from unifier.report.tables import score_tables
from unifier.report.transfer import retained_scores, transfer_grids

Rows = Callable[..., dict[str, Any]]
Comparison = Callable[..., Path]


def easy_and_hard(row: Rows) -> list[dict[str, Any]]:
    """Two experiments on the task "digits", each begun from the other's trunk too."""
    rows: list[dict[str, Any]] = []
    for own, other, solo in (("easy", "hard", 90.0), ("hard", "easy", 50.0)):
        moved = {"experiment": own, "mode": "transfer", "start": other}
        rows += [
            row("digits", solo, experiment=own),
            row("digits", solo - 20, experiment=own, mode="transfer", trainable="none"),
            row("digits", solo - 5, trainable="none", **moved),
            row("digits", solo + 1, trainable="all", **moved),
        ]
    return rows


def test_a_trunk_is_held_against_those_of_its_own_experiment(row: Rows) -> None:
    found = group_conditions(easy_and_hard(row))
    pairs = [(one.condition.end, one.baseline.end) for one in contrasts(found)]
    assert pairs
    assert all(own == other for own, other in pairs)
    gains = {one.condition.score.mean: one.gain.mean for one in contrasts(found) if one.baseline.has(start=None)}
    assert gains[91.0] == gains[51.0] == 1


def test_and_keeps_a_share_of_what_its_own_experiment_reached(row: Rows) -> None:
    found = group_conditions(easy_and_hard(row))
    shares = {one.start: one.share.mean for one in retained_scores(found) if one.share}
    assert shares == {"hard": pytest.approx(100 * 75 / 81), "easy": pytest.approx(100 * 35 / 41)}
    frozen = transfer_grids(found)[0]
    assert frozen.columns == ["easy, digits", "hard, digits"]
    lines = dict(zip(frozen.rows, frozen.cells, strict=True))
    assert lines["from hard"] == [pytest.approx(100 * 75 / 88), None]
    assert lines["from easy"] == [None, pytest.approx(100 * 35 / 88)]


def test_a_joint_trunk_is_held_against_those_of_the_experiments_that_it_was_trained_on(row: Rows) -> None:
    joint = row("digits", 91.0, mode="joint", experiment="joint")
    joint["result"]["settings"] = {"easy": {"dim": 32}, "genres": {"dim": 32}}
    easy, hard = (row("digits", score, experiment=name) for name, score in (("easy", 90.0), ("hard", 50.0)))
    for rows in ([joint, easy, hard], [joint, hard, easy]):
        (found,) = contrasts(group_conditions(rows))
        assert (found.baseline.end, found.gain.mean) == (("easy", "digits"), 1)
        told = [line["minus solo, normalized"] for line in score_tables(group_conditions(rows))["digits"]]
        assert told.count("+1.1") == 1
    assert contrasts(group_conditions([joint, hard])) == []


def test_and_one_that_does_not_say_against_the_one_with_most_settings_in_common(row: Rows) -> None:
    joint = row("digits", 91.0, mode="joint", experiment="both")
    joint["result"]["settings"] |= {"depth": 2, "tokens": 128_000}
    near, far = (row("digits", score, experiment=name) for name, score in (("near", 90.0), ("far", 50.0)))
    near["result"]["settings"] |= {"depth": 2}
    far["result"]["settings"] |= {"depth": 6, "dim": 64}
    for rows in ([joint, near, far], [joint, far, near]):
        (found,) = contrasts(group_conditions(rows))
        assert found.baseline.end == ("near", "digits")


def pair(task: str, a: dict[str, Any], b: dict[str, Any], cka: float) -> dict[str, Any]:
    told = ("experiment", "mode", "start", "shuffled", "trainable", "varied")
    sides = {name: {fact: side[fact] for fact in told} for name, side in (("a", a), ("b", b))}
    measured = {"cka": cka, "cka_chance": 0.0, "cka_calibrated": cka, "cka_p": 0.01}
    return {"task": task, "seed": 0, "layer": "blocks.0", **sides, **measured}


def test_trunks_of_three_experiments_are_three_and_no_repetitions(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    own, other, third = (row("digits", 90.0, experiment=name) for name in ("attending", "averaging", "rotating"))
    pairs = [pair("digits", own, other, 0.2), pair("digits", own, third, 0.9)]
    folder = comparison(tmp_path, [own, other, third], representation=pairs)
    report_on(folder)
    lines = read_csv(folder / "figures" / "representation-digits-cka.csv")
    assert {line["trunks"]: float(line["raw"]) for line in lines} == {
        "attending and averaging": 0.2,
        "attending and rotating": 0.9,
    }


def test_trunks_of_two_comparisons_are_told_apart_as_their_scores_are(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    for dim, cka in ((32, 0.1), (64, 0.9)):
        own, joint = row("digits", 90.0), row("digits", 91.0, mode="joint", experiment="joint")
        pairs = [pair("digits", own, joint, cka)]
        folder = comparison(tmp_path / f"{dim}", [own, joint], settings={"dim": dim}, representation=pairs)
        for name in ("pictures", "joint"):  # runs of one id would be one
            shutil.rmtree(folder.parents[1] / name)
    found = read_results(tmp_path).representation
    assert [(one["a"]["varied"], one["cka"]) for one in found] == [({"dim": 32}, 0.1), ({"dim": 64}, 0.9)]
    report_on(tmp_path)
    lines = read_csv(tmp_path / "figures" / "representation-digits-cka.csv")
    assert [line["trunks"] for line in lines] == ["dim=32 and joint, dim=32", "dim=64 and joint, dim=64"]


def test_gradients_of_two_ways_of_training_are_two_figures(tmp_path: Path, row: Rows, comparison: Comparison) -> None:
    rows = [
        row(task, 90.0, mode="joint", experiment="joint", varied={"dim": dim})
        for dim in (32, 64)
        for task in ("digits", "music")
    ]
    folder = comparison(tmp_path, rows)
    for dim in (32, 64):
        for k, one in enumerate(rows):
            if one["varied"] == {"dim": dim}:
                at = next((tmp_path / "joint").glob(f"*0{k}-seed0-*")) / "interference.csv"
                line = {"step": 0, "tokens": 100, "layer": "blocks.0", "task_a": "digits", "task_b": "music"}
                write_csv(at, [{**line, "cosine": dim / 100}])
    report_on(folder)
    for dim in (32, 64):
        (line,) = read_csv(folder / "figures" / f"gradients-blocks.0-joint-dim-{dim}.csv")
        assert float(line["cosine"]) == dim / 100


def test_a_perfect_score_that_rounding_leaves_above_itself_is_drawn(
    tmp_path: Path, row: Rows, comparison: Comparison
) -> None:
    shares = (0.125, 0.25, 0.5, 1.0)
    scores = (60.0, 80.0, 99.0, 100.00000000000004)
    rows = [row("digits", score, varied={"share": share}) for share, score in zip(shares, scores, strict=True)]
    for one in rows:
        one["result"]["data"]["digits"]["score_range"] = None
    folder = comparison(tmp_path, rows)
    report_on(folder)
    assert (folder / "figures" / "efficiency-digits.csv").exists()
