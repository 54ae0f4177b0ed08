"""Pictures of sounds: the columns of the time span are in color, and loud columns are high."""

import numpy as np

from unifier.figures.time_figures import HEIGHT, WIDTH, draw_time
from unifier_tokenizers.audio import Audio


def test_time_span_is_in_color_and_loud_parts_are_high() -> None:
    waveform = np.zeros((2, 8000), np.float32)
    waveform[1, 4000:] = -1
    picture = draw_time(Audio(waveform, 8000), 0.25, 0.75)
    assert picture.shape == (HEIGHT, WIDTH, 3)
    is_gray = (picture == picture[:, :, :1]).all((0, 2))
    assert is_gray.tolist() == [not WIDTH // 4 <= k < 3 * WIDTH // 4 for k in range(WIDTH)]
    assert (picture[0, : WIDTH // 4] == 255).all()
    assert (picture[0, 3 * WIDTH // 4 :] < 255).all()


def test_silent_and_short_sounds_are_drawn() -> None:
    for samples in (1, 10):
        assert draw_time(Audio(np.zeros(samples, np.float32), 8000), 0.0, 1.0).shape == (HEIGHT, WIDTH, 3)
