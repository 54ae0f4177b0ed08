"""Accuracy over distance: the fitted decay is that of the data, and runs are averaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.conftest import make_comparison, make_row
from unifier.files import write_json
from unifier.report.conditions import group_conditions
from unifier.report.plot_distances import draw_distances, fit_decay, is_above_chance
from unifier.report.plot_style import FigureWriter
from unifier.report.read_results import read_results
from unifier.report.schema import collect_problems

DISTANCES = [2, 5, 10, 30, 100]


@pytest.mark.parametrize(("a", "r"), [(50.0, 0.03), (20.0, 0.5), (40.0, 0.0)])
def test_decay_of_exact_scores_is_recovered(a: float, r: float) -> None:
    n = [2, 5, 10, 30, 100]
    fit = fit_decay(n, (50 + a * np.exp(-r * np.array(n))).tolist(), 50.0)
    assert fit is not None
    assert (fit.a, fit.r) == pytest.approx((a, r), rel=1e-3, abs=1e-4)
    assert fit.predict(np.array([fit.half_distance]))[0] - 50 == pytest.approx(fit.a / 2) or r == 0


def test_two_distances_have_no_fit() -> None:
    assert fit_decay([2, 5], [90.0, 80.0], 50.0) is None


@pytest.mark.parametrize("best", [100.0, 60.0, None])
def test_fitted_advantage_is_at_most_the_best_possible_score(best: float | None) -> None:
    # The steep start of these scores is fitted best by a score far above 100 at distance 0.
    fit = fit_decay([2, 3, 4, 10], [99.0, 70.0, 55.0, 50.0], 50.0, best)
    assert fit is not None
    assert (fit.a > 50) if best is None else (fit.a <= best - 50)


def test_score_range_without_room_has_no_fit() -> None:
    assert fit_decay(DISTANCES, [50.0] * 5, 50.0, 50.0) is None


@pytest.mark.parametrize(
    ("scores", "examples", "above"),
    [
        ([50.0, 52.0, 49.0, 51.0, 48.0], 200, False),
        ([56.0, 44.0, 50.0, 53.0, 47.0], 100, False),
        ([60.0, 50.0, 50.0, 50.0, 50.0], 1000, True),
        ([100.0, 50.0, 50.0, 50.0, 50.0], 20, True),
    ],
)
def test_guess_is_not_above_chance(scores: list[float], examples: int, above: bool) -> None:
    assert is_above_chance(scores, [examples] * 5, 50.0, 100.0) == above


def with_distances(folder: Path, *contents: Any) -> list[Any]:
    """Return conditions of runs with chance 10, each with its distances.json."""
    rows = [make_row(varied={"reader": str(k)}) for k in range(len(contents))]
    results: Any = read_results(make_comparison(folder / "runs", rows)).rows
    for row, content in zip(results, contents, strict=True):
        write_json(row["folder"] / "distances.json", {"digits": content})
    return group_conditions(results)


def points(scores: list[float]) -> list[dict[str, float]]:
    return [{"distance": n, "score": score, "examples": 100} for n, score in zip(DISTANCES, scores, strict=True)]


@pytest.mark.slow
@pytest.mark.usefixtures("figure_style")
def test_reader_at_chance_has_no_line_and_no_decay(writer: FigureWriter, tmp_path: Path) -> None:
    conditions = with_distances(tmp_path, points([95, 90, 80, 40, 12]), points([11, 9, 12, 10, 8]))
    (figure,) = draw_distances(conditions, writer)
    fitted = [line["condition"] for line in figure.table if "fit" in line]
    assert fitted == ["reader=0"] * 5
    assert figure.note.endswith("reader=1")


DAMAGED: dict[str, Any] = {
    "no points": [],
    "text": "much",
    "no score": [{"distance": 2}],
    "distance 0": [{"distance": 0, "score": 90.0}, {"distance": 5, "score": 80.0}],
    "equal distances": [{"distance": 5, "score": 90.0}, {"distance": 5, "score": 80.0}],
    "falling distances": [{"distance": 9, "score": 90.0}, {"distance": 5, "score": 80.0}],
    "half a word": [{"distance": 2.5, "score": 90.0}],
    "score above 100": [{"distance": 2, "score": 120.0}, {"distance": 5, "score": 80.0}],
    "not a number": [{"distance": 2, "score": float("nan")}],
}


@pytest.mark.usefixtures("figure_style")
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_file_is_named_in_one_line(damage: str, writer: FigureWriter, tmp_path: Path) -> None:
    conditions = with_distances(tmp_path, DAMAGED[damage])
    with collect_problems() as problems:
        assert draw_distances(conditions, writer) == []
    (line,) = problems()
    assert "distances.json" in line
    assert "\n" not in line


@pytest.mark.usefixtures("figure_style")
def test_file_that_is_no_json_is_named_in_one_line(writer: FigureWriter, tmp_path: Path) -> None:
    conditions = with_distances(tmp_path, points([90.0] * 5))
    (conditions[0].rows[0]["folder"] / "distances.json").write_text('{"digits": [{"dist')
    with collect_problems() as problems:
        assert draw_distances(conditions, writer) == []
    (line,) = problems()
    assert "distances.json" in line


@pytest.mark.slow
@pytest.mark.usefixtures("figure_style")
def test_run_with_other_distances_is_named(writer: FigureWriter, tmp_path: Path) -> None:
    rows = [make_row(seed=seed) for seed in (0, 1)]
    results: Any = read_results(make_comparison(tmp_path / "runs", rows)).rows
    for row, content in zip(results, (points([90.0] * 5), points([90.0] * 5)[1:]), strict=True):
        write_json(row["folder"] / "distances.json", {"digits": content})
    with collect_problems() as problems:
        (figure,) = draw_distances(group_conditions(results), writer)
    (line,) = problems()
    assert "distances.json" in line
    assert {each["seeds"] for each in figure.table} == {1}
