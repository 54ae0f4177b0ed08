"""Log-mel spectrograms: equal to those of the tokenizer, and audible again."""

import numpy as np
import pytest
import torch

from unifier_tokenizers import Audio, FrameTokenizer, InputError
from unifier_tokenizers.log_mel import LogMel

TONE = Audio(0.5 * np.sin(2 * np.pi * 440 * np.arange(4000) / 8000).astype(np.float32), 8000)


@pytest.mark.slow
def test_spectrogram_equals_that_of_the_tokenizer() -> None:
    tokenizer = FrameTokenizer(8, sample_rate=8000)
    assert torch.equal(LogMel().spectrogram(TONE), tokenizer.spectrogram(TONE))


@pytest.mark.slow
def test_sound_has_the_spectrogram_that_is_given() -> None:
    log_mel = LogMel()
    given = log_mel.spectrogram(TONE)
    sound = log_mel.sound(given)
    assert sound.sample_rate == 8000
    assert torch.equal(torch.as_tensor(sound.waveform), torch.as_tensor(log_mel.sound(given).waveform))
    again = log_mel.spectrogram(sound)
    loud = given[:, 20] > given[:, 20].max() - 5
    torch.testing.assert_close(again[loud, 15:25], given[loud, 15:25], atol=1, rtol=0)
    silent = torch.as_tensor(log_mel.sound(torch.full((64, 9), -torch.inf)).waveform)
    assert silent.abs().max() < 1e-2
    assert torch.as_tensor(log_mel.sound(torch.full((64, 9), torch.inf)).waveform).abs().max() <= 1
    assert len(log_mel.sound(given[:, :1]).waveform) >= 80


def test_windows_that_skip_samples_are_refused() -> None:
    with pytest.raises(InputError, match=r"hop_length=0\.1"):
        LogMel(hop_length=0.1)
