"""Small multiples of attention heads: a line per large weight, and the cells of the matrices."""

from pathlib import Path
from typing import Any

import matplotlib.axes
import numpy as np
import pytest

from unifier.analysis.attention_heads import LayerAttention
from unifier.figures.head_figures import MAX_HEADS, draw_head_lines, draw_head_matrices


def test_draw_head_lines_draws_a_line_per_large_weight(tmp_path: Path) -> None:
    weights = np.array([[[0.5, 0.5, 0], [0.96, 0.02, 0.02]], [[1, 0, 0], [0, 0, 1]]])
    draw_head_lines(tmp_path / "a.svg", [LayerAttention("trunk", 1, ["a", "b"], ["c", "d", "e"], weights)])
    assert (tmp_path / "a.svg").read_text().count("stroke-linecap: round") == 5


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the arrays that are drawn."""
    arrays: list[Any] = []
    own = matplotlib.axes.Axes.imshow
    monkeypatch.setattr("matplotlib.axes.Axes.imshow", lambda *a, **k: (arrays.append(a[1]), own(*a, **k))[1])  # pyright: ignore
    return arrays


def test_first_token_of_a_decoder_does_not_make_the_other_cells_pale(tmp_path: Path, drawn: list[Any]) -> None:
    weights = np.tril(np.full((20, 20), 0.1))
    weights[0, 0] = 1
    draw_head_matrices(tmp_path / "a.svg", [LayerAttention("decoder", 1, [], [], weights[None])])
    np.testing.assert_allclose(drawn[0][:20, :20], np.tril(np.ones((20, 20))))


def test_draw_head_matrices_scales_each_head(tmp_path: Path, drawn: list[Any]) -> None:
    weights = np.random.default_rng(3).random((MAX_HEADS + 3, 2, 3))
    draw_head_matrices(tmp_path / "a.svg", [LayerAttention("trunk", k, [], [], weights / k) for k in (1, 2)])
    assert f"the first {MAX_HEADS} of {MAX_HEADS + 3} heads" in (tmp_path / "a.svg").read_text()
    (joined,) = drawn
    assert joined.shape == (2 * 3, MAX_HEADS * 4)
    for layer in range(2):
        for head in range(MAX_HEADS):
            cells = joined[3 * layer : 3 * layer + 2, 4 * head : 4 * head + 3]
            np.testing.assert_allclose(cells, weights[head] / weights[head].max())
