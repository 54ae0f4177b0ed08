"""Sound to columns, one stack of spectrogram frames or one spectrogram patch a column."""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

FLOOR = 1e-6
"""Mel power below this is silence: 60 dB under a band of power 1."""


class Sound(NamedTuple):
    """A waveform and its rate: what a data set of sounds gives as input."""

    waveform: Tensor | NDArray[np.floating]
    """(samples,) or (channels, samples), in -1 to 1."""
    rate: int
    """Samples a second (Hz)."""


@lru_cache(maxsize=8)
def _spectrogram(rate: int, window: int, hop: int, bands: int) -> nn.Module:
    # Not part of the tokenizer, so that `encode` reads nothing that moves to a device.
    from torchaudio.transforms import MelSpectrogram

    return MelSpectrogram(
        rate, n_fft=1 << (window - 1).bit_length(), win_length=window, hop_length=hop, n_mels=bands, center=False
    )


TERMS = 2000
"""Between rates whose ratio in lowest terms has a larger one than this, resampling takes a near ratio."""
NEAR = 0.001
"""How far, at most, that one is off: a fiftieth of a semitone."""


@lru_cache(maxsize=64)
def resampling_ratio(old: int, new: int) -> Fraction:
    """What to resample by from `old` to `new` Hz: their ratio, or where its terms are large a simple one near it.

    A polyphase filter has as many taps as the product of the two terms, and more: 2.8 GB of them from 44,101 to
    16,000 Hz. The near ratio is at most 0.1 % off, and so are then pitch and length.
    """
    exact, most = Fraction(old, new), 64
    near = exact if max(exact.numerator, exact.denominator) <= TERMS else exact.limit_denominator(most)
    while abs(near / exact - 1) > NEAR:
        most *= 2
        near = exact.limit_denominator(most)
    return near


def log_mel(sound: Sound, *, rate: int, window: int, hop: int, bands: int) -> Tensor:
    """The log-mel spectrogram (F, frames) of a sound: channels averaged, resampled to `rate` Hz, natural logarithm.

    A rate whose ratio to `rate` is no simple one is taken for a near one, 0.1 % away at most (`resampling_ratio`).
    `window` and `hop` are in samples at `rate`. A frame needs a whole window: raises InputError for a sound shorter
    than one, with samples that are not floats or not numbers, or with a rate that is none.
    """
    from torchaudio.functional import resample

    # A copy of what numpy holds: torch takes no array that is read backwards or only.
    waveform = sound.waveform if isinstance(sound.waveform, Tensor) else torch.tensor(np.array(sound.waveform))
    if waveform.ndim not in (1, 2) or not waveform.numel() or sound.rate <= 0 or sound.rate != int(sound.rate):
        raise InputError(
            f"a waveform (samples,) or (channels, samples) at a whole rate above 0 Hz is expected, "
            f"not one of shape {tuple(waveform.shape)} at {sound.rate} Hz"
        )
    if not waveform.is_floating_point():
        raise InputError(f"a waveform holds floats in -1 to 1, not {waveform.dtype}: divide it by its full scale")
    waveform = waveform.float()
    if waveform.ndim == 2:
        waveform = waveform.mean(0)
    if not torch.isfinite(waveform).all():
        raise InputError("the waveform holds samples that are not numbers (NaN or infinite)")
    ratio = resampling_ratio(int(sound.rate), rate)
    waveform = resample(waveform, ratio.numerator, ratio.denominator)
    transform = _spectrogram(rate, window, hop, bands)
    span = max(window, 1 << (window - 1).bit_length())
    if waveform.shape[-1] < span:
        raise InputError(
            f"a sound of {waveform.shape[-1] / rate:.3f} s is shorter than one window ({span / rate:.3f} s): "
            f"leave it out, or take a smaller window"
        )
    return transform(waveform).clamp(min=FLOOR).log()


@final
class FrameTokenizer(Tokenizer):
    """Log-mel frames of a sound of any rate and length as columns.

    Without `patch`, a column is a stack of frames: (stack x F, N) at times (1, N). With it, a column is a patch of
    the spectrogram: (bands x frames of the patch, N) at times and bands (2, N) (Gong et al. 2021, section 2.1).
    """

    unit = "seconds"
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        dim: int,
        *,
        rate: int = 16000,
        window: float = 0.025,
        hop: float = 0.010,
        bands: int = 64,
        stack: int = 1,
        patch: tuple[int, int] | None = None,
        stride: tuple[int, int] | None = None,
        positions: PositionKind = "sinusoid",
        length: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        """`rate` in Hz, `window` and `hop` in seconds, `stack` in frames, `patch` and `stride` in (frames, bands).

        `length` is the most columns along an axis for positions="learned".
        """
        super().__init__(dim)
        self.rate, self.bands = rate, bands
        self.window, self.hop = round(window * rate), round(hop * rate)
        self.patch = patch or (stack, bands)
        self.stride = stride or self.patch
        self.axes = 2 if patch else 1
        if patch and stack != 1:
            raise InputError("give stack or patch, not both: a patch already spans several frames")
        if not patch and stride:
            raise InputError("a stride needs a patch to move; for frames, hop is the step in time")
        if not self.hop > 0 or not self.window > 0:
            raise InputError(f"a window of {window} s and a hop of {hop} s at {rate} Hz leave no sample")
        if any(not 0 < step <= side for step, side in zip(self.stride, self.patch, strict=True)):
            raise InputError(f"a stride of {stride} skips parts of a patch of {self.patch}")
        if not 0 < self.patch[1] <= bands:
            raise InputError(f"a patch of {self.patch[1]} bands does not fit a spectrogram of {bands}")
        self.project = nn.Linear(math.prod(self.patch), dim)
        self.encoding = PositionalEncoding(positions, dim, (length,) * self.axes)
        self.dropout = Dropout(dropout)
        # Mean and standard deviation of log-mel power; of speech and music at full scale until `fit` is called.
        self.register_buffer("mean", torch.tensor(-4.0))
        self.register_buffer("std", torch.tensor(4.0))

    def fit(self, sounds: Iterable[Sound]) -> "FrameTokenizer":
        """Take the mean and standard deviation of log-mel power from sounds; returns itself."""
        spectrograms = torch.cat([self.spectrogram(sound) for sound in sounds], dim=1)
        self.mean.copy_(spectrograms.mean())
        self.std.copy_(spectrograms.std().clamp(min=1e-3))
        return self

    def spectrogram(self, sound: Sound) -> Tensor:
        """The log-mel spectrogram (F, frames) that the columns are cut from."""
        return log_mel(sound, rate=self.rate, window=self.window, hop=self.hop, bands=self.bands)

    def encode(self, raw: Sound) -> Units:
        if not isinstance(raw, Sound):
            raise InputError(f"a Sound(waveform, rate) is expected, not {type(raw).__name__}")
        frames = self.spectrogram(raw).T
        counts = [
            max(math.ceil((n - p) / s), 0) + 1 for n, p, s in zip(frames.shape, self.patch, self.stride, strict=True)
        ]
        spans = [(count - 1) * s + p for count, p, s in zip(counts, self.patch, self.stride, strict=True)]
        silence = (0, spans[1] - frames.shape[1], 0, spans[0] - frames.shape[0])
        frames = functional.pad(frames, silence, value=math.log(FLOOR))
        windows = frames.unfold(0, self.patch[0], self.stride[0]).unfold(1, self.patch[1], self.stride[1])
        values = windows.permute(2, 3, 0, 1).reshape(math.prod(self.patch), -1).contiguous()
        positions = torch.cartesian_prod(*(torch.arange(count) for count in counts)).T[: self.axes].contiguous()
        self.encoding.check(positions)
        return Units(values, positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        normal = (values - self.mean) / self.std
        columns = self.project(normal.transpose(1, 2)).transpose(1, 2)
        return self.dropout(self.encoding(columns, positions))

    def coordinates(self, units: Units) -> Tensor:
        """The time of the middle of each column (1, N), in seconds; bands have another unit."""
        return self.time(units.positions[:1] * self.stride[0] + (self.patch[0] - 1) / 2)

    def time(self, frames: Tensor) -> Tensor:
        """The seconds at which spectrogram frames, counted from 0, have their middle."""
        span = 1 << (self.window - 1).bit_length()  # a window stands in the middle of its transform
        return (frames * self.hop + span / 2) / self.rate
