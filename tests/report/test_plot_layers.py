"""Similarity of trunks and agreement of gradients, layer by layer."""

import re
from collections.abc import Mapping
from itertools import combinations_with_replacement, pairwise
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text

from tests.report.conftest import JOINT, Row, make_comparison, make_row
from unifier.files import write_csv
from unifier.report.plot_layers import draw_gradients, draw_representation
from unifier.report.plot_style import MAX_FIGURES, FigureWriter
from unifier.report.read_results import read_results
from unifier.report.schema import collect_problems


def trunk_pair(a: Row, b: Row, cka: float) -> Row:
    measured = {"cka": cka, "cka_chance": 0.0, "cka_calibrated": cka, "cka_p": 0.01}
    return {"task": "digits", "seed": 0, "layer": "blocks.0", "a": a, "b": b, **measured}


def test_pairs_with_shuffled_weights_are_left_out(drawn_axes: Mapping[str, Axes], writer: FigureWriter) -> None:
    transferred = [
        make_row(experiment="own", mode="transfer", start=start, shuffled=shuffled)
        for start in ("genres", "texts", "from_shuffled")
        for shuffled in (True, False)
    ]
    draw_representation([trunk_pair(make_row(experiment="own"), trunk, 0.4) for trunk in transferred], writer)
    labels = {text.get_text().replace("\n", " ") for text in drawn_axes["representation-digits-cka"].texts} - {"chance"}
    assert {f"{start}, all trained" for start in ("genres", "texts", "from shuffled")} < labels
    assert len(labels) == 4


def test_label_of_two_tasks_has_both_colors(
    drawn_axes: Mapping[str, Axes], writer: FigureWriter, tmp_path: Path
) -> None:
    def height(text: Text) -> float:
        assert isinstance(text, Annotation)
        return text.xyann[1]

    draw_gradients(read_results(make_comparison(tmp_path, [make_row(**JOINT)])).rows, writer)
    labels = sorted(drawn_axes["gradients-blocks.0"].texts, key=height, reverse=True)
    texts = [(label.get_text(), label.get_color()) for label in labels]
    pairs = [(first, second) for first, second in pairwise(texts) if first[0].endswith(" and")]
    assert len(pairs) == 3
    for (first, first_color), (second, second_color) in pairs:
        assert first_color == writer.colors[first.removesuffix(" and")]
        assert second_color == writer.colors[second]


@pytest.mark.slow
@pytest.mark.usefixtures("figure_style")
def test_each_pair_of_trunks_has_a_line(writer: FigureWriter) -> None:
    first, second, third = (make_row(experiment=name) for name in ("attending", "averaging", "rotating"))
    (figure,) = draw_representation([trunk_pair(first, second, 0.2), trunk_pair(first, third, 0.9)], writer)
    lines = {line["trunks"]: line["raw"] for line in figure.table}
    assert lines == {"attending and averaging": 0.2, "attending and rotating": 0.9}
    settings: list[Row] = [{"varied": {"dim": dim}} for dim in (32, 64)]
    pairs = [trunk_pair(make_row(**facts), make_row(**facts, **JOINT), 0.1) for facts in settings]
    (figure,) = draw_representation(pairs, writer)
    assert [line["trunks"] for line in figure.table] == ["dim=32 and joint, dim=32", "dim=64 and joint, dim=64"]


@pytest.mark.slow
@pytest.mark.usefixtures("figure_style")
def test_two_settings_have_two_gradient_figures(writer: FigureWriter, tmp_path: Path) -> None:
    rows = [make_row(task, varied={"dim": dim}, **JOINT) for dim in (32, 64) for task in ("digits", "music")]
    results = read_results(make_comparison(tmp_path / "runs", rows))
    for row in results.rows:
        line = {"step": 0, "tokens": 100, "layer": "blocks.0", "task_a": "digits", "task_b": "music"}
        write_csv(row["folder"] / "interference.csv", [{**line, "cosine": row["varied"]["dim"] / 100}])
    cosines = {figure.path.stem: figure.table[0]["cosine"] for figure in draw_gradients(results.rows, writer)}
    assert cosines == {"gradients-blocks.0-joint-dim-32": 0.32, "gradients-blocks.0-joint-dim-64": 0.64}


@pytest.mark.slow
@pytest.mark.usefixtures("figure_style")
def test_twenty_tasks_fit_in_a_figure(writer: FigureWriter, tmp_path: Path) -> None:
    settings = [{"weights": ", ".join(f"task {k}={weight}" for k in range(20))} for weight in (0.5, 1.5)]
    made = make_comparison(tmp_path / "runs", [make_row(varied=varied, **JOINT) for varied in settings])
    rows = read_results(made).rows
    pairs = list(combinations_with_replacement([f"task {k}" for k in range(20)], 2))
    line = {"step": 0, "tokens": 100, "layer": "blocks.0", "cosine": 0.5}
    for row in rows:
        write_csv(row["folder"] / "interference.csv", [{**line, "task_a": a, "task_b": b} for a, b in pairs])
    figures = draw_gradients(rows, writer)  # A figure without room for its title is a warning, and so an error.
    assert [len(figure.table) for figure in figures] == [len(pairs)] * 2


def test_figures_of_settings_are_limited(writer: FigureWriter) -> None:
    with collect_problems() as problems:
        assert writer.limit(range(MAX_FIGURES), "transfer") == list(range(MAX_FIGURES))
        assert problems() == []
        assert writer.limit(range(MAX_FIGURES + 2), "transfer") == list(range(MAX_FIGURES))
    (problem,) = problems()
    assert re.search(f"transfer of 2 .* {MAX_FIGURES} ", problem)
