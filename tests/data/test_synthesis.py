"""Synthesized tunes have the frequencies of their notes, from the start to the end of each note."""

import numpy as np
import pytest

from unifier.data.synthesis import SAMPLE_RATE, synthesize


@pytest.mark.parametrize("note", [21, 60, 69, 108])
def test_note_has_its_frequency(note: int) -> None:
    sound = np.asarray(synthesize([[note]] * 2 + [[]] * 2, 0.5).waveform)
    assert np.abs(sound).max() == pytest.approx(0.9)
    spectrum = np.abs(np.fft.rfft(sound[:SAMPLE_RATE]))
    assert np.argmax(spectrum) == pytest.approx(440 * 2 ** ((note - 69) / 12), abs=1)
    assert not sound[SAMPLE_RATE + 500 :].any()
    assert sound[SAMPLE_RATE - 300 : SAMPLE_RATE].any()


def test_silence_is_silent() -> None:
    assert not np.asarray(synthesize([[], []], 0.1).waveform).any()
