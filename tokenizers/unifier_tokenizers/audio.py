"""Tokenizers for sound: log-mel frames, spectrogram patches, and learned filters on the waveform."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.normalization import Normalization, SpectrogramNorm
from unifier_tokenizers.patches import Tiles
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.stems import FrameStem, LinearProjection, StemKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

POWER_FLOOR = 1e-6
"""The smallest power of a band, which is 60 dB below a power of 1."""

MAX_RATIO_TERM = 2000
"""The largest numerator or denominator of an exact resampling ratio. A ratio with larger terms is approximated."""

RATIO_TOLERANCE = 0.001
"""The largest relative error of an approximated resampling ratio, which is less than a fiftieth of a semitone."""

MIN_MIX_POWER = 0.1
"""The smallest power of the mean of the channels, relative to the mean power of the channels."""

MAX_ADDED_SAMPLES = 1 << 26
"""The largest number of samples that resampling may add to a sound: 70 minutes at 16 kHz, or 268 MB."""


class Audio(NamedTuple):
    """Raw input of an audio tokenizer: a waveform and its sample rate."""

    waveform: Tensor | NDArray[np.floating]
    """The samples (samples,) or (channels, samples), from -1 to 1."""
    sample_rate: int
    """The number of samples per second (Hz)."""


@lru_cache(maxsize=64)
def resampling_ratio(source_rate: int, target_rate: int) -> Fraction:
    """Return source_rate / target_rate as a fraction, approximated if numerator or denominator exceeds 2,000.

    The approximation changes the pitch and the length of the sound by at most 0.1 %. The exact resampling filter would
    need too much memory, because the filter's size grows with numerator times denominator. For example, the exact
    filter from 44,101 to 16,000 Hz needs 2.8 GB.

    Args:
        source_rate: The sample rate of the sound, in Hz.
        target_rate: The sample rate of the resampled sound, in Hz.
    """
    exact, max_term = Fraction(source_rate, target_rate), 64
    simple = max(exact.numerator, exact.denominator) <= MAX_RATIO_TERM
    ratio = exact if simple else exact.limit_denominator(max_term)
    while abs(ratio / exact - 1) > RATIO_TOLERANCE:
        max_term *= 2
        ratio = exact.limit_denominator(max_term)
    return ratio


def mix_channels(waveform: Tensor) -> Tensor:
    """Average channels (C, samples), or return the channel with the most power if the channels cancel out.

    The channels cancel out if one channel is the negative of another. The power is compared with and without the
    constant offset of each channel, because an offset is not audible.
    """
    products, offsets = waveform @ waveform.T, waveform.sum(1)
    rounding = 1e-5 * products.trace() / len(products)  # Constant channels differ only by rounding errors.
    for covariance in (products, products - offsets.outer(offsets) / waveform.shape[1]):
        powers = covariance.diagonal()
        if covariance.mean() < MIN_MIX_POWER * powers.mean() - rounding:
            # Of equally loud channels, the first one is returned, although rounding depends on the processor.
            return waveform[(powers >= powers.max() - rounding).int().argmax()]
    return waveform.mean(0)


def resample(audio: Audio, sample_rate: int, min_samples: int) -> Tensor:
    """Mix the channels of a sound with `mix_channels`, resample the mix, and return the waveform (samples,).

    Args:
        audio: The sound.
        sample_rate: The sample rate of the result, in Hz. The actual rate may differ slightly, because
            `resampling_ratio` may round the ratio.
        min_samples: The smallest number of samples of the result.

    Raises:
        InputError: If the shape or the dtype of the waveform is wrong, or if a sample is NaN or infinite. The error is
            also raised if the sample rate is not a positive integer, if the result is shorter than `min_samples`, or if
            resampling adds over `MAX_ADDED_SAMPLES` samples.
    """
    from torchaudio.functional import resample as resample_waveform

    # Arrays are copied, because torch refuses read-only arrays and negative strides.
    waveform = audio.waveform if isinstance(audio.waveform, Tensor) else torch.tensor(np.array(audio.waveform))
    # The order (samples, channels), which soundfile returns, is refused.
    valid = waveform.ndim == 1 or (waveform.ndim == 2 and len(waveform) <= waveform.shape[1])
    if not valid or not waveform.numel() or audio.sample_rate <= 0 or audio.sample_rate != int(audio.sample_rate):
        raise InputError(
            f"the waveform has shape {tuple(waveform.shape)} at {audio.sample_rate} Hz: "
            f"give (samples,) or (channels, samples), at a rate that is a positive integer"
        )
    if not waveform.is_floating_point():
        raise InputError(f"the waveform has dtype {waveform.dtype}: convert the samples to floats from -1 to 1")
    waveform = waveform.float()
    if waveform.ndim == 2:
        waveform = mix_channels(waveform)
    if not torch.isfinite(waveform).all():
        raise InputError("the waveform has NaN or infinite samples: repair this sound or remove it from the data")
    ratio = resampling_ratio(int(audio.sample_rate), sample_rate)
    if len(waveform) / ratio - len(waveform) > MAX_ADDED_SAMPLES:
        raise InputError(
            f"{len(waveform):,} samples at {audio.sample_rate} Hz become {int(len(waveform) / ratio):,} at "
            f"{sample_rate} Hz, over {MAX_ADDED_SAMPLES:,} more: cut the sound into parts, or correct its sample rate"
        )
    waveform = resample_waveform(waveform, ratio.numerator, ratio.denominator)
    if waveform.shape[-1] < min_samples:
        seconds, window = waveform.shape[-1] / sample_rate, min_samples / sample_rate
        raise InputError(f"a sound of {seconds:.3f} s is shorter than one window ({window:.3f} s): remove this sound")
    return waveform


def to_samples(win_length: float, hop_length: float, sample_rate: int) -> tuple[int, int]:
    """Convert the lengths of the window and of the hop from seconds to samples.

    Raises:
        InputError: If the window or the hop is shorter than one sample.
    """
    window, hop = round(win_length * sample_rate), round(hop_length * sample_rate)
    if window <= 0 or hop <= 0:
        raise InputError(
            f"win_length={win_length}, hop_length={hop_length}: "
            f"each must be at least one sample long at sample_rate={sample_rate}"
        )
    return window, hop


class AudioTokenizer(Tokenizer, ABC):
    """Base class of the tokenizers for sound.

    `encode` converts a sound to a plane (frames, bands) and cuts the plane into tiles. The plane is a spectrogram, or
    the waveform. `embed` computes the log power of each tile and normalizes the log power. A linear layer or a stem
    then maps the log power to a token.
    """

    unit = "seconds"

    def __init__(
        self,
        dim: int,
        *,
        tiles: Tiles,
        frame_step: float,
        first_center: float,
        norm: SpectrogramNorm,
        shape: tuple[int, int],
        axes: int = 1,
        stem: StemKind | None,
        positions: PositionKind,
        length: int,
        dropout: float,
    ) -> None:
        """Create the layers that all audio tokenizers share.

        Args:
            dim: D, the width of the tokens.
            tiles: The grid that cuts the plane into tiles.
            frame_step: The time between two frames of the plane, in seconds.
            first_center: The time at the center of the first frame, in seconds.
            norm: The layer that normalizes log power.
            shape: The numbers of frames and bands per token.
            axes: The number of axes of a position: 1 for time, 2 for time and band.
            stem: The kind of convolutional stem, or None for a linear layer.
            positions: The kind of positional encoding.
            length: The maximum number of tokens along an axis, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        if stem and axes == 2:
            raise InputError(
                f"stem={stem} does not work with patch, because a stem reads all bands: give stack instead"
            )
        self.tiles, self.frame_step, self.first_center, self.axes = tiles, frame_step, first_center, axes
        self.project = FrameStem(stem, dim, *shape) if stem else LinearProjection(math.prod(shape), dim)
        self.encoding = PositionalEncoding(positions, dim, (length,) * axes)
        self.dropout = Dropout(dropout)
        self.norm = norm

    @abstractmethod
    def to_plane(self, audio: Audio) -> Tensor:
        """Convert a sound to the plane (frames, bands), which `encode` cuts into tiles."""

    @abstractmethod
    def log_power(self, tiles: Tensor) -> Tensor:
        """Return the natural logarithm of the power of tiles (B, N, frames, bands).

        The result has the shape (B, N, *shape), with the argument `shape` of the constructor.
        """

    @abstractmethod
    def spectrogram(self, audio: Audio) -> Tensor:
        """Return the log power (F, frames) of a sound."""

    @final
    def encoding_key(self) -> dict[str, Any]:
        """Return all settings, except settings that only `embed` uses.

        The settings include the number of learned positions, because `encode` refuses sounds with more positions.
        """
        excluded = ("dim", "training")
        settings = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in excluded}
        max_length = self.encoding.lengths if self.encoding.kind == "learned" else None
        return settings | {"tiles": asdict(self.tiles), "normalize": self.norm.kind, "max_length": max_length}

    @final
    def fit(self, audios: Iterable[Audio]) -> Self:
        """Measure the mean and the standard deviation of the log power of sounds, and return self."""
        self.norm.fit(self.spectrogram(audio) for audio in audios)
        return self

    @final
    def encode(self, raw: Audio) -> Units:
        """Cut a sound into tiles (P, N) at positions (A, N)."""
        if not isinstance(raw, Audio):
            raise InputError(f"an Audio(waveform, sample_rate) is expected, not {type(raw).__name__}")
        values = self.tiles.cut(self.to_plane(raw))
        per_step = self.tiles.tiles_per_step
        grid = torch.cartesian_prod(torch.arange(values.shape[1] // per_step), torch.arange(per_step))
        positions = grid.T[: self.axes].contiguous()
        self.encoding.check(positions)
        return Units(values, positions)

    @final
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn tiles (B, P, N) at positions (B, A, N) into tokens (B, D, N)."""
        power = self.norm(self.log_power(values.mT.unflatten(2, self.tiles.patch)), positions)
        return self.dropout(self.encoding(self.project(power, positions), positions))

    @property
    def token_seconds(self) -> float:
        """The time from one token to the next, in seconds."""
        return self.tiles.stride[0] * self.frame_step

    @final
    def position_values(self, units: Units) -> Tensor:
        """Return the time of each token's center (1, N) in seconds."""
        return self.frame_times(units.positions[:1] * self.tiles.stride[0] + (self.tiles.patch[0] - 1) / 2)

    @final
    def frame_times(self, frames: Tensor) -> Tensor:
        """Convert frame numbers, counted from 0, to the centers of the frames in seconds."""
        return frames * self.frame_step + self.first_center


@final
class FrameTokenizer(AudioTokenizer):
    """Tokenizer that turns log-mel frames into tokens.

    A sound may have any sample rate and length. Without `patch`, each token is a stack of frames. The values of N
    stacks are (stack x F, N), at times (1, N). With `patch`, each token is a patch of the spectrogram (Gong et al.
    2021, section 2.1). The values of N patches are (frames x bands, N), at times and bands (2, N).
    """

    def __init__(
        self,
        dim: int,
        *,
        sample_rate: int = 16000,
        win_length: float = 0.025,
        hop_length: float = 0.010,
        n_mels: int = 64,
        stack: int = 1,
        patch: tuple[int, int] | None = None,
        stride: tuple[int, int] | None = None,
        stem: StemKind | None = None,
        normalize: Normalization = "whole",
        positions: PositionKind = "sinusoid",
        length: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            sample_rate: The sample rate in Hz. Sounds with another rate are resampled to this rate.
            win_length: The length of the window, in seconds.
            hop_length: The time from one frame to the next, in seconds.
            n_mels: F, the number of mel bands.
            stack: The number of frames per token.
            patch: The size of a token as (frames, bands), which replaces `stack`.
            stride: The step from one patch to the next as (frames, bands); by default, the size of a patch. Patches
                overlap if the step is smaller than a patch.
            stem: The kind of convolutions that replace the linear layer, "strided" or "pooled".
            normalize: The kind of normalization, which is "whole", "band" or "example".
            positions: The kind of positional encoding.
            length: The maximum number of tokens along an axis, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        self.sample_rate, self.n_mels = sample_rate, n_mels
        self.win_samples, self.hop_samples = to_samples(win_length, hop_length, sample_rate)
        if patch and stack != 1:
            raise InputError("give stack or patch, but not both: a patch already contains several frames")
        if not patch and stride:
            raise InputError(f"stride={stride} is given without patch: give patch too, or leave out stride")
        if stack < 1:
            raise InputError(f"stack={stack}: a token needs at least 1 frame")
        if patch and min(patch) < 1:
            raise InputError(f"patch={patch}: a token needs at least 1 frame and 1 band")
        if stride and min(stride) < 1:
            raise InputError(f"stride={stride}: the stride must be at least 1 frame and 1 band")
        sides = patch or (stack, n_mels)
        steps = stride or sides
        if any(step > side for step, side in zip(steps, sides, strict=True)):
            raise InputError(
                f"stride={stride} skips parts of the spectrogram: "
                f"use a stride no larger than the patch, which is {sides}"
            )
        if not 0 < sides[1] <= n_mels:
            raise InputError(
                f"a patch of {sides[1]} bands does not fit n_mels={n_mels}: use at least 1 and at most n_mels bands"
            )
        super().__init__(
            dim,
            tiles=Tiles(n_mels, sides, steps, math.log(POWER_FLOOR)),
            frame_step=self.hop_samples / sample_rate,
            first_center=fft_size(self.win_samples) / 2 / sample_rate,
            norm=SpectrogramNorm(normalize, n_mels, sides[1], steps[1]),
            shape=sides,
            stem=stem,
            axes=2 if patch else 1,
            positions=positions,
            length=length,
            dropout=dropout,
        )

    def spectrogram(self, audio: Audio) -> Tensor:
        """Return the log-mel spectrogram (F, frames) in natural logarithms.

        Raises:
            InputError: If `resample` refuses the sound, for example because the sound is shorter than one FFT.
        """
        waveform = resample(audio, self.sample_rate, fft_size(self.win_samples))
        mel = mel_spectrogram(self.sample_rate, self.win_samples, self.hop_samples, self.n_mels)
        return mel(waveform).clamp(min=POWER_FLOOR).log()

    def to_plane(self, audio: Audio) -> Tensor:
        """Return the log-mel spectrogram (frames, F)."""
        return self.spectrogram(audio).T

    def log_power(self, tiles: Tensor) -> Tensor:
        """Return the tiles unchanged, because tiles of a spectrogram already contain log power."""
        return tiles


@final
class WaveformTokenizer(AudioTokenizer):
    """Tokenizer that applies F learned filters to segments of a waveform.

    The values are segments (samples, N) at times (1, N). Each filter is a pair of kernels, which are initialized as a
    Gabor cosine and a Gabor sine under a Hann window. As in LEAF (Zeghidour et al. 2021, section 3.1), the power of a
    band is the sum of two squared kernel outputs. Unlike in LEAF, every sample of a kernel is learned.
    """

    def __init__(
        self,
        dim: int,
        *,
        sample_rate: int = 16000,
        win_length: float = 0.025,
        hop_length: float = 0.010,
        n_filters: int = 64,
        stack: int = 1,
        stem: StemKind | None = None,
        normalize: Normalization = "whole",
        positions: PositionKind = "sinusoid",
        length: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            sample_rate: The sample rate in Hz. Sounds with another rate are resampled to this rate.
            win_length: The length of a filter, in seconds.
            hop_length: The time from one frame to the next, in seconds.
            n_filters: F, the number of filter pairs.
            stack: The number of frames per token.
            stem: The kind of convolutions that replace the linear layer, "strided" or "pooled".
            normalize: The kind of normalization, which is "whole", "band" or "example".
            positions: The kind of positional encoding.
            length: The maximum number of tokens of a sound, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        self.sample_rate = sample_rate
        self.win_samples, self.hop_samples = to_samples(win_length, hop_length, sample_rate)
        if self.hop_samples > self.win_samples:
            raise InputError(
                f"hop_length={hop_length} skips samples between windows: use at most win_length={win_length}"
            )
        if stack < 1 or n_filters < 1:
            raise InputError(f"stack={stack}, n_filters={n_filters}: each must be at least 1")
        span = self.win_samples + (stack - 1) * self.hop_samples
        super().__init__(
            dim,
            tiles=Tiles(1, (span, 1), (stack * self.hop_samples, 1), 0.0),
            frame_step=1 / sample_rate,
            first_center=0.5 / sample_rate,
            norm=SpectrogramNorm(normalize, n_filters, n_filters, n_filters),
            shape=(stack, n_filters),
            stem=stem,
            positions=positions,
            length=length,
            dropout=dropout,
        )
        self.bank = nn.Parameter(gabor_filters(sample_rate, self.win_samples, n_filters))

    def to_plane(self, audio: Audio) -> Tensor:
        """Return the resampled waveform (samples, 1)."""
        return resample(audio, self.sample_rate, self.win_samples)[:, None]

    def log_power(self, tiles: Tensor) -> Tensor:
        """Return the log power (B, N, stack, F) of segments (B, N, samples, 1)."""
        frames = tiles.squeeze(3).unfold(2, self.win_samples, self.hop_samples)  # B, N, stack, window
        # `fit` measures the statistics of the power in float32, so `embed` must also compute the power in float32.
        with torch.autocast(tiles.device.type, enabled=False):
            cosine, sine = (frames.float() @ self.bank).chunk(2, dim=-1)
            return (cosine**2 + sine**2 + POWER_FLOOR).log()

    @torch.no_grad()
    def spectrogram(self, audio: Audio) -> Tensor:
        """Return the log power (F, frames) of a sound, computed with the current filters."""
        tiles = self.tiles.cut(self.to_plane(audio)).to(self.bank.device)
        return self.log_power(tiles.mT[None, ..., None])[0].flatten(0, 1).T


def gabor_filters(sample_rate: int, win_samples: int, n_filters: int) -> Tensor:
    """Return Gabor filters (window, 2 x filters) under a Hann window: first all cosines, then all sines.

    The center frequencies are evenly spaced on the mel scale between 0 and half the sample rate.

    Args:
        sample_rate: The sample rate in Hz.
        win_samples: The length of a filter, in samples.
        n_filters: The number of pairs of a cosine and a sine.
    """
    # The mel scale is 2595 log10(1 + f / 700). The factor 2595 is left out, because a constant factor does not change
    # evenly spaced pitches.
    max_mel = math.log1p(sample_rate / 2 / 700)
    pitches = 700 * torch.expm1(torch.linspace(0, max_mel, n_filters + 2)[1:-1])
    phase = 2 * math.pi * torch.arange(win_samples)[:, None] * pitches / sample_rate
    return torch.cat([phase.cos(), phase.sin()], dim=1) * torch.hann_window(win_samples)[:, None]


@lru_cache(maxsize=8)
def mel_spectrogram(sample_rate: int, win_samples: int, hop_samples: int, n_mels: int) -> nn.Module:
    # This module is not stored in the tokenizer, because `encode` must not read the tokenizer's buffers.
    from torchaudio.transforms import MelSpectrogram

    n_fft = fft_size(win_samples)
    return MelSpectrogram(
        sample_rate, n_fft=n_fft, win_length=win_samples, hop_length=hop_samples, n_mels=n_mels, center=False
    )


def fft_size(win_samples: int) -> int:
    """Return the FFT size for a window: the smallest power of 2 that is at least `win_samples`."""
    return 1 << (win_samples - 1).bit_length()
