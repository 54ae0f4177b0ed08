"""Attention as pictures: words as they are, cells where they belong, on no ground of its own."""

import base64
import re
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from unifier.report.plot_attention import ORANGE, draw_alignment, draw_over_picture, draw_over_sound


def text(path: Path) -> list[str]:
    return [each for each in map(str.strip, ElementTree.parse(path).getroot().itertext()) if each]


def images(path: Path) -> list[NDArray[np.uint8]]:
    """The pictures that lie in an SVG, one for each part of the figure: (height, width, 4)."""
    found = re.findall(r"data:image/png;base64,([^\"]+)", path.read_text())
    opened = (Image.open(BytesIO(base64.b64decode(each))).convert("RGBA") for each in found)
    return [np.asarray(each)[::-1] for each in opened]  # they are kept upside down


def test_words_stand_as_they_are_and_true_cells_are_outlined(tmp_path: Path) -> None:
    source, target = ["$a$", "日本", "<&>", "l'"], ["un", "deux", "🙂"]
    path = tmp_path / "figures" / "words.svg"
    draw_alignment(path, source, target, np.eye(3, 4), {(0, 0), (3, 2)})
    assert set(text(path)) >= {*source, *target, "outlined: the true alignment"}
    assert len(re.findall(rf"stroke: {ORANGE}", path.read_text())) == 2
    draw_alignment(path, source, target, np.eye(3, 4))
    assert "outlined: the true alignment" not in text(path)
    (cells,) = images(path)
    height, width = cells.shape[:2]
    opacity = cells[height // 6 :: height // 3, width // 8 :: width // 4, 3][:3, :4]
    assert np.array_equal(opacity > 128, np.eye(3, 4) > 0)


@pytest.mark.parametrize("channels", [1, 3])
def test_color_lies_over_the_patch_that_received_it(channels: int, tmp_path: Path) -> None:
    path = tmp_path / "figures" / "picture.svg"
    received = np.zeros((2, 4))
    received[1, 3] = 8.0
    draw_over_picture(path, np.zeros((8, 16, channels), np.uint8), received, (0, 16, 8, 0), "label: $x$")
    assert {"label: $x$", "attention received", "relative to uniform attention"} <= set(text(path))
    heat = images(path)[1].astype(int)
    height, width = heat.shape[:2]
    patches = heat[height // 4 :: height // 2, width // 8 :: width // 4][:2, :4]
    assert np.array_equal(patches[..., 0] - patches[..., 2] > 100, received > 0)  # orange, or gray


def test_a_long_sound_is_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "sound.svg"
    draw = np.random.default_rng(0)
    draw_over_sound(path, draw.standard_normal((64, 6000)), (0.0, 60.0), np.arange(60.0), np.ones(60), "label: jazz")
    assert {"seconds", "mel band", "label: jazz"} <= set(text(path))
    assert path.stat().st_size < 150_000
    assert images(path)[0].shape[1] <= 256


def test_no_ground_is_painted(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "words.svg"
    draw_alignment(path, ["a"], ["b"], np.zeros((1, 1)))
    ground = re.search(r'id="patch_1">.*?style="([^"]*)"', path.read_text(), flags=re.DOTALL)
    assert ground is not None
    assert re.search("fill: none|opacity: 0", ground[1])
