"""Log-mel spectrograms of sounds, and the sound of a log-mel spectrogram by the method of Griffin and Lim."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.audio import POWER_FLOOR, Audio, fft_size, mel_spectrogram, resample, to_samples
from unifier_tokenizers.configurable import Configurable
from unifier_tokenizers.errors import InputError

GRIFFIN_LIM_STEPS = 60
"""Number of steps of Griffin and Lim's method. A second of sound at 8 kHz takes about 60 ms."""

MAX_LOG_POWER = 25.0
"""Largest natural logarithm of the power of a band. A model that diverges would otherwise give infinite samples."""


@final
@dataclass(frozen=True)
class LogMel(Configurable):
    """Conversion between a sound and the natural logarithms of the power of its mel bands."""

    sample_rate: int = 8000
    """Sounds are resampled to this rate, in Hz."""
    win_length: float = 0.025
    """The length of the window, in seconds."""
    hop_length: float = 0.010
    """The time from one frame to the next, in seconds."""
    n_mels: int = 64
    """F, the number of mel bands."""

    def __post_init__(self) -> None:
        window, hop = to_samples(self.win_length, self.hop_length, self.sample_rate)
        if hop > window:
            raise InputError(f"hop_length={self.hop_length} skips samples: use at most win_length={self.win_length}")
        if not 1 <= self.n_mels <= fft_size(window) // 2:
            raise InputError(f"n_mels={self.n_mels}: give a number from 1 to {fft_size(window) // 2}")

    @property
    def frame_seconds(self) -> float:
        """The time from one frame to the next, in seconds."""
        return self._sizes[1] / self.sample_rate

    @property
    def _sizes(self) -> tuple[int, int]:
        return to_samples(self.win_length, self.hop_length, self.sample_rate)

    def spectrogram(self, audio: Audio) -> Tensor:
        """Return the log-mel spectrogram (F, frames) of a sound.

        Raises:
            InputError: If `resample` refuses the sound, for example because the sound is shorter than one FFT.
        """
        window, hop = self._sizes
        waveform = resample(audio, self.sample_rate, fft_size(window))
        return mel_spectrogram(self.sample_rate, window, hop, self.n_mels)(waveform).clamp(min=POWER_FLOOR).log()

    @torch.no_grad()
    def sound(self, spectrogram: Tensor) -> Audio:
        """Return a sound (samples,) whose log-mel spectrogram is close to a spectrogram (F, frames).

        The power of each frequency is the solution of least squares. The phases are found by the fast method of
        Griffin and Lim (Perraudin et al. 2013), which begins with phases of 0. Equal spectrograms give equal sounds.
        """
        power = spectrogram.detach().float().cpu().clamp(math.log(POWER_FLOOR), MAX_LOG_POWER).exp()
        window, hop = self._sizes
        needed = fft_size(window) // 2 // hop + 2  # Silence follows a sound that is too short for torchaudio.
        power = functional.pad(power, (0, max(needed - power.shape[1], 0)))
        linear, phases = _inverse(self.sample_rate, window, hop, self.n_mels)
        waveform: Tensor = phases(linear(power))
        return Audio(waveform / waveform.abs().max().clamp(min=1.0), self.sample_rate)


@lru_cache(maxsize=8)
def _inverse(sample_rate: int, win_samples: int, hop_samples: int, n_mels: int) -> tuple[nn.Module, nn.Module]:
    from torchaudio.transforms import GriffinLim, InverseMelScale

    n_fft = fft_size(win_samples)
    # Narrow bands are linear combinations of each other, and only this driver accepts a matrix without full rank.
    linear = InverseMelScale(n_fft // 2 + 1, n_mels, sample_rate, driver="gelsd")
    phases = GriffinLim(
        n_fft, n_iter=GRIFFIN_LIM_STEPS, win_length=win_samples, hop_length=hop_samples, power=2, rand_init=False
    )
    return linear, phases
