"""Tables of differences: the first condition is the baseline, and each group of test examples has its own rows."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from tests.report.conftest import JOINT, Row, make_row
from tests.report.test_example_tests import scored_row, write_predictions
from unifier.report.conditions import group_conditions
from unifier.report.differences import MAX_LISTED_CONDITIONS, difference_tables

GROUPS = ("", "en", "en de", "de")
"""The groups of every fourth test example."""


def grouped_row(folder: Path, scores: list[float], seed: int, decoder: str) -> Row:
    """Write predictions of examples with `GROUPS`, and return the row with the score of each group."""
    names = [GROUPS[k % 4] for k in range(len(scores))]
    lines = [
        {"index": k, "target": "cat", "prediction": "dog", "score": score, "groups": name}
        for k, (score, name) in enumerate(zip(scores, names, strict=True))
    ]
    write_predictions(folder, "digits", lines)
    row = make_row("digits", fmean(scores), seed, folder=folder, varied={"decoder": decoder})
    for group in ("en", "de"):
        own = [score for score, name in zip(scores, names, strict=True) if group in name.split()]
        row["result"]["metrics"][f"test/digits/accuracy_{group}"] = fmean(own)
    return row


def tables(rows: list[Row]) -> dict[str, Any]:
    return difference_tables(group_conditions(rows))


@pytest.mark.slow
def test_groups_have_paired_differences_from_the_first_condition(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = {
        (decoder, s): (100.0 * (rng.random(80) < p)).tolist()
        for decoder, p in (("soft", 0.5), ("hard", 0.7))
        for s in (0, 1)
    }
    rows = [grouped_row(tmp_path / f"{name}{seed}", own, seed, name) for (name, seed), own in scores.items()]
    ((title, lines),) = tables(rows).items()
    assert title.endswith("decoder=soft")
    assert [(line["test examples"], line["condition"]) for line in lines] == [
        (group, f"decoder={decoder}") for group in ("all", "en", "de") for decoder in ("soft", "hard")
    ]
    member = {
        "all": range(80),
        "en": [k for k in range(80) if k % 4 in (1, 2)],
        "de": [k for k in range(80) if k % 4 > 1],
    }
    for line in lines[1::2]:
        own = member[line["test examples"]]
        expected = fmean(scores["hard", s][k] - scores["soft", s][k] for s in (0, 1) for k in own)
        for cell in (line["difference"], line["over test examples"]):
            assert float(cell.split(" ± ")[0].replace("−", "-")) == pytest.approx(expected, abs=0.5)
        assert line["over test examples"].endswith(f"({len(own)} examples)")


def test_unit_of_clusters_is_an_independent_example(tmp_path: Path) -> None:
    clusters = [f"c{k % 10}" for k in range(40)]
    rows = [
        scored_row(tmp_path / f"{name}{seed}", scores, seed, clusters=clusters, varied={"decoder": name})
        for name, seed, scores in zip(
            ("soft", "soft", "hard", "hard"), (0, 1, 0, 1), np.random.default_rng(0).random((4, 40)), strict=True
        )
    ]
    ((_, lines),) = tables(rows).items()
    assert lines[1]["over test examples"].endswith("(10 independent examples)")


def test_difference_without_predictions_has_an_interval_over_seeds_alone() -> None:
    rows = [make_row(score=80 + seed + 3 * k, seed=seed, varied={"dim": k}) for k in (0, 1) for seed in (0, 1, 2)]
    rows[-1]["result"]["metrics"]["test/digits/accuracy"] += 0.5
    (lines,) = tables(rows).values()
    assert lines[1]["difference"].startswith("+3.2 ± ")
    assert lines[1]["over test examples"] == lines[0]["difference"]


@pytest.mark.parametrize("count", [1, MAX_LISTED_CONDITIONS + 1])
def test_table_needs_some_conditions(count: int) -> None:
    assert tables([make_row(varied={"dim": k}) for k in range(count)]) == {}


def test_score_of_other_data_has_no_difference(tmp_path: Path) -> None:
    rows = [scored_row(tmp_path / str(k), np.arange(4.0) % 2, varied={"data": k}) for k in (0, 1)]
    assert tables(rows) == {}


def test_joint_conditions_have_a_table_of_their_own() -> None:
    rows = [
        make_row(score=70 + 5 * experts + gain, seed=seed, varied={"experts": experts}, **mode)
        for mode, gain in (({}, 10), (JOINT, 0))
        for experts in (1, 4)
        for seed in (0, 1)
    ]
    found = tables(rows)
    assert len(found) == 2
    (joint,) = (lines for title, lines in found.items() if title.endswith("joint, experts=1"))
    assert [line["condition"] for line in joint] == ["joint, experts=1", "joint, experts=4"]
    assert joint[1]["difference"].startswith("+15")
