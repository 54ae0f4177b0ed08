"""Pictures of sounds with a time span, such as the answer to a question."""

import numpy as np
from numpy.typing import NDArray

from unifier.figures.mask_figures import class_colors
from unifier_tokenizers.audio import Audio

WIDTH, HEIGHT = 320, 60
"""The size of a picture in pixels."""

TINT = 0.25
"""Share of the color in the background of the time span. The waveform has the full color."""


def draw_time(sound: Audio, begin: float, end: float) -> NDArray[np.uint8]:
    """Return a picture (HEIGHT, WIDTH, 3) of the waveform of a sound, with a time span in color.

    Args:
        sound: The sound.
        begin: The begin of the time span, in seconds.
        end: The end of the time span, in seconds.
    """
    waveform = np.abs(np.asarray(sound.waveform, np.float32))
    mono = waveform.reshape(-1, waveform.shape[-1]).max(0)
    columns = np.arange(WIDTH) * len(mono) // WIDTH
    loudness = np.maximum.reduceat(mono, columns)
    height = HEIGHT / 2 * loudness / max(float(loudness.max()), 1e-9)
    is_wave = np.abs(np.arange(HEIGHT) - (HEIGHT - 1) / 2)[:, None] <= height
    times = columns / sound.sample_rate
    is_inside = (begin <= times) & (times < end)
    color = class_colors(2)[1].astype(float)
    background = np.where(is_inside[:, None], TINT * color + (1 - TINT) * 255, 255.0)
    wave = np.where(is_inside[:, None], color, 110.0)
    return np.where(is_wave[:, :, None], wave, background).round().astype(np.uint8)
