"""The sound of a piano roll, from decaying sine waves."""

from collections.abc import Sequence

import numpy as np
import torch

from unifier_tokenizers import Audio

SAMPLE_RATE = 22_050
"""Sample rate of the sound in Hz."""

HARMONICS = (1.0, 0.5, 0.25, 0.12, 0.06)
"""Amplitude of each harmonic of a note."""

DECAY_SECONDS = 0.8
"""Time after which the amplitude of a held note has decreased by the factor e."""

FADE_SECONDS = 0.01
"""Duration of the start and the end of a note, which would click without a fade."""

PEAK = 0.9
"""Largest amplitude of a sound that is not silent."""


def synthesize(steps: Sequence[Sequence[int]], step_seconds: float) -> Audio:
    """Return the sound of a piece. A note in successive steps is struck once and held.

    Args:
        steps: The MIDI numbers of the sounding notes of each time step.
        step_seconds: The duration of a time step in seconds.
    """
    length = round(step_seconds * SAMPLE_RATE)
    fade = round(FADE_SECONDS * SAMPLE_RATE)
    sound = np.zeros(len(steps) * length + fade, np.float64)
    starts = dict[int, int]()
    for n, notes in enumerate([*map(set, steps), set[int]()]):
        for note in [note for note in starts if note not in notes]:
            start = starts.pop(note) * length
            sound[start : n * length + fade] += _note(note, n * length + fade - start, fade)
        for note in notes:
            starts.setdefault(note, n)
    loudest = np.abs(sound).max()
    return Audio(torch.from_numpy(sound * (PEAK / loudest if loudest else 1.0)).float(), SAMPLE_RATE)


def _note(note: int, count: int, fade: int) -> np.ndarray:
    """Return `count` samples of a note, of which the first and the last `fade` samples are faded."""
    seconds = np.arange(count) / SAMPLE_RATE
    frequency = 440 * 2 ** ((note - 69) / 12)
    # A harmonic above half of the sample rate would sound as a lower tone.
    waves = [
        amplitude * np.sin(2 * np.pi * k * frequency * seconds)
        for k, amplitude in enumerate(HARMONICS, start=1)
        if k * frequency < SAMPLE_RATE / 2
    ]
    ramp = np.minimum(np.arange(count), np.arange(count)[::-1]) / fade
    return sum(waves, np.zeros(count)) * np.exp(-seconds / DECAY_SECONDS) * ramp.clip(max=1)
