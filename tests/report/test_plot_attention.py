"""Attention maps: literal words, cells at their places, and a transparent background."""

import base64
import re
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from unifier.report.plot_attention import ORANGE, draw_alignment, draw_over_audio, draw_over_image, draw_over_text


def texts(path: Path) -> list[str]:
    """Return the texts of an SVG."""
    return [text for text in map(str.strip, ElementTree.parse(path).getroot().itertext()) if text]


def images(path: Path) -> list[NDArray[np.uint8]]:
    """Return the bitmaps (height, width, 4) of an SVG, one per panel."""
    encoded = re.findall(r"data:image/png;base64,([^\"]+)", path.read_text())
    decoded = (Image.open(BytesIO(base64.b64decode(data))).convert("RGBA") for data in encoded)
    return [np.asarray(image)[::-1] for image in decoded]  # Matplotlib stores them upside down.


@pytest.mark.slow
def test_alignment_has_literal_words_and_outlines(tmp_path: Path) -> None:
    source, target = ["$a$", "日本", "<&>", "l'"], ["un", "deux", "🙂"]
    path = tmp_path / "words.svg"
    draw_alignment(path, source, target, np.eye(3, 4), {(0, 0), (3, 2)})
    assert set(texts(path)) >= {*source, *target, "outlined: the true alignment"}
    assert len(re.findall(rf"stroke: {ORANGE}", path.read_text())) == 2
    draw_alignment(path, source, target, np.eye(3, 4))
    assert "outlined: the true alignment" not in texts(path)
    (cells,) = images(path)
    height, width = cells.shape[:2]
    opacity = cells[height // 6 :: height // 3, width // 8 :: width // 4, 3][:3, :4]
    assert np.array_equal(opacity > 128, np.eye(3, 4) > 0)
    background = re.search(r'id="patch_1">.*?style="([^"]*)"', path.read_text(), flags=re.DOTALL)
    assert background is not None
    assert re.search("fill: none|opacity: 0", background[1])


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_color_is_over_the_attended_patch(channels: int, tmp_path: Path) -> None:
    path = tmp_path / "image.svg"
    received = np.zeros((2, 4))
    received[1, 3] = 8.0
    draw_over_image(path, np.zeros((8, 16, channels), np.uint8), received, (0, 16, 8, 0), "label: $x$")
    assert {"label: $x$", "attention received", "relative to uniform attention"} <= set(texts(path))
    heat = images(path)[1].astype(int)
    height, width = heat.shape[:2]
    patches = heat[height // 4 :: height // 2, width // 8 :: width // 4][:2, :4]
    assert np.array_equal(patches[..., 0] - patches[..., 2] > 100, received > 0)  # Orange, or gray.


@pytest.mark.slow
def test_long_audio_is_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "sound.svg"
    mel = np.random.default_rng(0).standard_normal((64, 6000))
    draw_over_audio(path, mel, (0.0, 60.0), np.arange(60.0), np.ones(60), "label: jazz")
    assert {"seconds", "band", "label: jazz"} <= set(texts(path))
    assert path.stat().st_size < 150_000
    assert images(path)[0].shape[1] <= 256


def test_text_has_a_bar_per_token_with_its_attention(tmp_path: Path) -> None:
    path, received = tmp_path / "text.svg", np.arange(1.0, 41.0)
    draw_over_text(path, ["日本", *["word"] * 38, "<&>"], range(40), received, "red (90%)")
    assert set(texts(path)) >= {"日本", "word", "<&>", "red (90%)", "attention received"}
    assert texts(path).count("word") == 38
    bars = re.findall(rf'<path d="([^"]*)"[^>]*style="fill: {ORANGE}', path.read_text())
    corners = [np.array(re.findall(r"[\d.]+ ([\d.]+)", bar), float) for bar in bars]
    heights = np.array([np.ptp(corner) for corner in corners])
    np.testing.assert_allclose(heights / heights.max(), received / 40, atol=1e-3)
    assert len({corner.max() for corner in corners}) > 2, "a long text has several lines"


def test_tokens_of_the_marked_word_are_bold(tmp_path: Path) -> None:
    texts: list[str] = []
    for word in (None, 1):
        draw_over_text(tmp_path / "a.svg", ["a", "b", "c"], [0, 1, 1], np.ones(3), "title", word)
        texts.append((tmp_path / "a.svg").read_text())
    plain, marked = (text.count("700") for text in texts)
    assert marked - plain == 2
