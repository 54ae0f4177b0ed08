"""The shares of experts: unused experts are named, tasks are compared, and a damaged file gives one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.conftest import JOINT, make_comparison, make_row, svg_text
from unifier.files import write_json
from unifier.report.conditions import group_conditions
from unifier.report.plot_experts import draw_experts, task_difference, unused_experts
from unifier.report.plot_style import FigureWriter
from unifier.report.read_results import read_results
from unifier.report.schema import collect_problems

pytestmark = pytest.mark.usefixtures("figure_style")


def test_expert_is_unused_if_no_task_reaches_it() -> None:
    counts = {"digits": [[3, 0, 0], [1, 1, 1]], "music": [[0, 0, 5], [2, 0, 1]]}
    assert unused_experts(counts) == ["expert 2 of layer 1"]


def test_difference_is_0_for_equal_shares_and_1_for_separate_experts() -> None:
    even, first, last = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert task_difference({"a": even, "b": even}) == 0
    assert task_difference({"a": first, "b": last}) == 1
    assert task_difference({"a": first, "b": even}) == pytest.approx(0.5)
    assert task_difference({"a": first}) is None


def joint_runs(folder: Path, contents: list[Any]) -> list[Any]:
    """Return the rows of joint runs of two tasks, one run for each content of experts.json."""
    rows = [make_row(task, seed=seed, **JOINT) for seed in range(len(contents)) for task in ("digits", "music")]
    results: Any = read_results(make_comparison(folder / "runs", rows)).rows
    for row in results:  # The tasks of a joint run have one folder.
        row["folder"] = next(each["folder"] for each in results if each["seed"] == row["seed"])
        write_json(row["folder"] / "experts.json", contents[row["seed"]])
    return results


def test_tasks_of_one_trunk_have_one_figure_with_a_row_per_layer_and_task(writer: FigureWriter, tmp_path: Path) -> None:
    first = {"digits": [[9, 1, 0], [5, 5, 0]], "music": [[0, 20, 0], [5, 10, 5]]}
    rows = joint_runs(tmp_path, [first, {task: layers[::-1] for task, layers in first.items()}])
    (figure,) = draw_experts(group_conditions(rows), writer)
    assert len(figure.table) == 2 * 2 * 3
    (line,) = [each for each in figure.table if (each["task"], each["layer"], each["expert"]) == ("music", 2, 2)]
    assert line["share"] == 0.5
    text = svg_text(figure.path)
    assert all(f"layer {layer}, {task}" in text for layer in (1, 2) for task in first)
    assert "expert 3 of layer 1" in figure.note
    assert "2 of 2 runs" in figure.note


def test_expert_without_tokens_in_a_later_run_is_counted_but_not_named(writer: FigureWriter, tmp_path: Path) -> None:
    rows = joint_runs(tmp_path, [{"digits": [[9, 1]], "music": [[0, 20]]}, {"digits": [[9, 0]], "music": [[20, 0]]}])
    (figure,) = draw_experts(group_conditions(rows), writer)
    assert "1 of 2 runs" in figure.note
    assert "expert 2" not in figure.note


@pytest.mark.parametrize("entry", [[], [[]], [[1, -2]], [[1], [2, 3]], "much", [[1, 2, 3]]])
def test_damaged_file_is_named_in_one_line(entry: Any, writer: FigureWriter, tmp_path: Path) -> None:
    rows = joint_runs(tmp_path, [{"digits": entry, "music": [[1, 2]]}])
    with collect_problems() as problems:
        assert draw_experts(group_conditions(rows), writer) == []
    (line,) = problems()
    assert "experts.json" in line


def test_run_without_experts_has_no_figure(writer: FigureWriter, tmp_path: Path) -> None:
    rows: Any = read_results(make_comparison(tmp_path / "runs", [make_row()])).rows
    with collect_problems() as problems:
        assert draw_experts(group_conditions(rows), writer) == []
    assert problems() == []
