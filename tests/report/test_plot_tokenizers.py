"""Tiles of patch projections and frequency responses of filters."""

import base64
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unifier import FrameTokenizer, Mixture, PatchTokenizer, SubwordTokenizer, Tokenizer, Vocabulary, WaveformTokenizer
from unifier.figures.tokenizer_figures import projection_tiles
from unifier.report.plot_tokenizers import draw_responses, draw_tiles, filter_responses, join_tiles


def picture_of(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    (encoded,) = re.findall(r"data:image/png;base64,([^\"]+)", path.read_text())
    return np.asarray(Image.open(BytesIO(base64.b64decode(encoded))).convert("RGB"))[::-1]  # It is upside down.


@pytest.mark.parametrize("channels", [1, 3])
def test_tiles_are_sorted_and_have_the_colors_of_the_weights(channels: int, tmp_path: Path) -> None:
    weights = np.zeros((3, channels, 2, 2), np.float32)
    weights[0, 0, 0, 0] = 0.1
    weights[1, :, 1, 1] = -5
    weights[2, 0, 0, 1] = 1
    draw_tiles(tmp_path / "tiles.svg", weights, "Patches")
    picture = picture_of(tmp_path / "tiles.svg")
    rows = (np.array([0.25, 0.75]) * picture.shape[0]).astype(int)
    columns = (np.arange(3)[:, None] + [0.25, 0.75]) * picture.shape[1] / 3
    corners = [[picture[y, int(x)].astype(int) for y in rows for x in pair] for pair in columns]
    red = [255, 255, 255] if channels == 1 else [255, 127, 127]
    gray = [127, 127, 127]
    expected = [[gray, gray, gray, [0, 0, 0]], [gray, red, gray, gray], [red, gray, gray, gray]]
    assert np.abs(np.array(corners) - np.array(expected)).max() <= 3
    assert "all 3, norms" in (tmp_path / "tiles.svg").read_text()


def test_joined_tiles_have_white_gaps_and_white_places_after_the_last_tile() -> None:
    picture = join_tiles(np.zeros((3, 5, 2, 1)), 2)
    height, width = picture.shape[0] // 2, picture.shape[1] // 2
    for row, column, is_tile in ((0, 0, True), (0, 1, True), (1, 0, True), (1, 1, False)):
        part = picture[row * height : (row + 1) * height, column * width : (column + 1) * width]
        assert (part[2:-2, 2:-2] == (0 if is_tile else 1)).all()
        assert part[0].min() == part[-1].min() == part[:, 0].min() == part[:, -1].min() == 1
    assert picture.shape[0] / picture.shape[1] > 2


@pytest.mark.slow
def test_responses_peak_at_the_frequencies_of_the_filters(tmp_path: Path) -> None:
    rate, window = 8000, np.hanning(400)
    pitches = np.array([2000.0, 500.0, 1250.0])
    phase = 2 * np.pi * np.arange(400)[:, None] * pitches / rate
    cosine, sine = np.cos(phase) * window[:, None], np.sin(phase) * window[:, None]
    frequencies, power = filter_responses(cosine, sine, rate)
    np.testing.assert_allclose(frequencies[power.argmax(1)], sorted(pitches), atol=rate / 1024)
    direct = np.abs(np.exp(-2j * np.pi * np.outer(frequencies, np.arange(400)) / rate) @ cosine[:, 1]) ** 2
    direct += np.abs(np.exp(-2j * np.pi * np.outer(frequencies, np.arange(400)) / rate) @ sine[:, 1]) ** 2
    np.testing.assert_allclose(power[0], direct, rtol=1e-6, atol=1e-6)
    draw_responses(tmp_path / "filters.svg", cosine, sine, rate, "Learned filters")
    assert "kHz" in (tmp_path / "filters.svg").read_text()


@torch.no_grad()
@pytest.mark.parametrize(
    "tokenizer",
    [PatchTokenizer(8, patch=4), FrameTokenizer(8, patch=(6, 16)), FrameTokenizer(8, stack=3, n_mels=20)],
    ids=["picture", "spectrogram", "stack"],
)
def test_product_of_tile_and_patch_is_the_projection(tokenizer: PatchTokenizer | FrameTokenizer) -> None:
    tiles = projection_tiles(tokenizer)
    assert tiles is not None
    patch = torch.randn(tiles.shape[1:])
    # The rows of a picture go down, and the bands of a spectrogram go up.
    column = patch.flatten() if isinstance(tokenizer, PatchTokenizer) else patch.flip(1).mT.flatten()
    project = tokenizer.project
    expected = project(column[None, None], torch.zeros(1, 1, 1))[0, :, 0] - project.out.bias
    torch.testing.assert_close((tiles * patch).sum((1, 2, 3)), expected, atol=1e-5, rtol=1e-4)


def test_other_tokenizers_have_no_tiles() -> None:
    tokenizers: list[Tokenizer] = [
        SubwordTokenizer(Vocabulary.fit(["a"], size=261), 8),
        WaveformTokenizer(8),
        Mixture({"a": WaveformTokenizer(8)}),
        FrameTokenizer(16, stack=2, stem="strided"),
    ]
    assert [projection_tiles(tokenizer) for tokenizer in tokenizers] == [None] * 4
    stem = projection_tiles(PatchTokenizer(8, patch=4, stem="strided"))
    assert stem is not None
    assert stem.shape[1:] == (3, 3, 3)
