"""Similarity of trunks and agreement of gradients, layer by layer."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text

from unifier.report.plot_layers import draw_gradients, draw_representation
from unifier.report.plot_style import FigureWriter
from unifier.report.read_results import read_results


def test_pairs_with_shuffled_weights_are_left_out(drawn_axes: Mapping[str, Axes], writer: FigureWriter) -> None:
    solo = {"experiment": "own", "mode": "solo", "start": None, "shuffled": False, "trainable": "all", "varied": {}}
    measured = {"task": "digits", "layer": "blocks.0", "cka": 0.5, "cka_chance": 0.1, "cka_calibrated": 0.4, "cka_p": 0}
    transferred = [
        solo | {"mode": "transfer", "start": start, "shuffled": shuffled}
        for start in ("genres", "texts", "from_shuffled")
        for shuffled in (True, False)
    ]
    draw_representation([measured | {"a": solo, "b": trunk} for trunk in transferred], writer)
    labels = {text.get_text().replace("\n", " ") for text in drawn_axes["representation-digits-cka"].texts} - {"chance"}
    assert {f"{start}, all trained" for start in ("genres", "texts", "from shuffled")} < labels
    assert len(labels) == 4


def test_label_of_two_tasks_has_both_colors(
    drawn_axes: Mapping[str, Axes],
    writer: FigureWriter,
    tmp_path: Path,
    row: Callable[..., dict[str, Any]],
    comparison: Callable[..., Path],
) -> None:
    def height(text: Text) -> float:
        assert isinstance(text, Annotation)
        return text.xyann[1]

    draw_gradients(
        read_results(comparison(tmp_path, [row("digits", 90.0, mode="joint", experiment="joint")])).rows, writer
    )
    labels = sorted(drawn_axes["gradients-blocks.0"].texts, key=height, reverse=True)
    texts = [(label.get_text(), label.get_color()) for label in labels]
    pairs = [(first, second) for first, second in pairwise(texts) if first[0].endswith(" and")]
    assert len(pairs) == 3
    for (first, first_color), (second, second_color) in pairs:
        assert first_color == writer.colors[first.removesuffix(" and")]
        assert second_color == writer.colors[second]
