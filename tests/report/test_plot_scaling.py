"""Error over the share of examples, and score over cost."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from tests.report.conftest import make_row, make_seeds, with_metric
from unifier.report.conditions import group_conditions
from unifier.report.plot_scaling import draw_efficiency, draw_sweeps
from unifier.report.plot_style import FigureWriter


def bar_ends(axes: Axes) -> np.ndarray:
    """Return the lower and upper ends (N, 2) of a panel's vertical interval bars."""
    (bars,) = axes.findobj(LineCollection)
    assert isinstance(bars, LineCollection)
    return np.array([segment[:, 1] for segment in bars.get_segments()])


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.1, 2.2, 9.0, 11.0, 30.0, 100.0, 1e3, 1e4])
def test_tick_labels_of_flops_do_not_overlap(
    drawn_axes: Mapping[str, Axes], writer: FigureWriter, times: float
) -> None:
    rows = [make_row(varied={"dim": dim}, budget={"flops": 1.25e9 * times**dim}) for dim in (0, 0.5, 1)]
    draw_sweeps(group_conditions(rows), writer)
    axes = drawn_axes["sweep-digits-flops"]
    axes.get_figure(root=True).draw_without_rendering()  # pyright: ignore[reportOptionalMemberAccess]
    low, high = axes.get_xlim()
    labels = [label for label in axes.get_xticklabels() if label.get_text()]
    assert sum(low <= label.get_position()[0] <= high for label in labels) >= 2
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.slow
@pytest.mark.usefixtures("figure_style")
@pytest.mark.parametrize(("metric", "max_score"), [("macro_auc", 1.0), ("negative_mse", 0.0)])
def test_error_is_named_after_its_metric(metric: str, max_score: float, writer: FigureWriter) -> None:
    rows = [make_row("digits", max_score - 0.5 / n, varied={"share": n}) for n in (0.1, 1.0)]
    (figure,) = draw_efficiency(group_conditions([with_metric(row, metric, max_score) for row in rows]), writer)
    assert f"Error: {max_score:g} minus {metric.replace('_', ' ')}" in figure.note


@pytest.mark.slow
@pytest.mark.usefixtures("figure_style")
def test_power_law_is_in_the_table(writer: FigureWriter) -> None:
    rows = [make_row("digits", 98 - 3 * n**-0.5, varied={"share": n}) for n in (0.01, 0.1, 0.3, 1.0)]
    (figure,) = draw_efficiency(group_conditions(rows), writer)
    assert figure.table[0]["b"] == pytest.approx(0.5, rel=1e-2)
    assert [line["law"] for line in figure.table] == pytest.approx([line["error"] for line in figure.table], rel=1e-2)
    scores = {0.125: 60.0, 0.25: 80.0, 0.5: 99.0, 1.0: 100.00000000000004}
    rows = [make_row("digits", score, varied={"share": share}) for share, score in scores.items()]
    (figure,) = draw_efficiency(group_conditions([with_metric(row, "f1", 100.0) for row in rows]), writer)
    assert figure.table[-1]["error"] == 0, "a score that rounding puts above the best is drawn"


@pytest.mark.slow
@pytest.mark.usefixtures("figure_style")
def test_sweep_is_sorted_by_its_cost(writer: FigureWriter) -> None:
    rows = [make_row("digits", 80.0, varied={"patch": patch}, budget={"tokens": 64_000 // patch}) for patch in (2, 4)]
    (figure,) = draw_sweeps(group_conditions(rows), writer)
    assert [line["setting"] for line in figure.table] == ["patch=4", "patch=2"]
    (figure,) = draw_sweeps(group_conditions([*rows, *(row | {"seed": 1} for row in rows)]), writer)
    assert [line["half interval"] for line in figure.table] == ["", ""], "equal scores have no interval"


def test_bars_end_at_the_possible_scores(drawn_axes: Mapping[str, Axes], writer: FigureWriter) -> None:
    scores = {8: (0.1, 9.0), 16: (40.0, 60.0), 32: (91.0, 99.9)}
    rows = [
        row for n in scores for row in make_seeds("digits", *scores[n], varied={"dim": n}, budget={"flops": n * 1e9})
    ]
    draw_sweeps(group_conditions(rows), writer)
    ends = bar_ends(drawn_axes["sweep-digits-flops"])
    assert ends[[0, 2]].min() == pytest.approx(0)
    assert ends[[0, 2]].max() == pytest.approx(100)
    assert ends.min() >= -1e-9
    assert ends.max() <= 100 + 1e-9
    draw_efficiency(group_conditions([row | {"varied": {"share": row["varied"]["dim"] / 32}} for row in rows]), writer)
    ends = bar_ends(drawn_axes["efficiency-digits"])
    assert ends.min() > 0
    assert ends.max() == pytest.approx(100)
