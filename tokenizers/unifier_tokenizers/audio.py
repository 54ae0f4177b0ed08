"""Sound as tokens: log-mel frames, spectrogram patches, and learned filters on the waveform."""

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
"""The power of silence: 60 dB below a band of power 1."""

MAX_RATIO_TERM = 2000
"""The largest term of an exact resampling ratio; a ratio with a larger term is approximated."""

RATIO_TOLERANCE = 0.001
"""The largest relative error of an approximated ratio: a fiftieth of a semitone."""


class Audio(NamedTuple):
    """A waveform and its sample rate: the input of an audio data set."""

    waveform: Tensor | NDArray[np.floating]
    """(samples,) or (channels, samples), in -1 to 1."""
    sample_rate: int
    """Samples per second (Hz)."""


@lru_cache(maxsize=64)
def resampling_ratio(source_rate: int, target_rate: int) -> Fraction:
    """Return the resampling ratio, or a simpler fraction within 0.1 % of it if a term exceeds 2,000.

    The size of a polyphase filter grows with the product of both terms: 2.8 GB from 44,101 to 16,000 Hz. Pitch and
    length change by the error of the fraction.

    Args:
        source_rate: The rate of the sound, in Hz.
        target_rate: The rate to resample to, in Hz.
    """
    exact, max_term = Fraction(source_rate, target_rate), 64
    simple = max(exact.numerator, exact.denominator) <= MAX_RATIO_TERM
    ratio = exact if simple else exact.limit_denominator(max_term)
    while abs(ratio / exact - 1) > RATIO_TOLERANCE:
        max_term *= 2
        ratio = exact.limit_denominator(max_term)
    return ratio


def resample(audio: Audio, sample_rate: int, min_samples: int) -> Tensor:
    """Return the waveform (samples,) at another rate, with its channels averaged.

    Args:
        audio: The sound.
        sample_rate: The rate of the result, in Hz; `resampling_ratio` may approximate it.
        min_samples: The samples of one window.

    Raises:
        InputError: If the waveform has a wrong shape, no float dtype or non-finite samples, if the rate is not a
            positive integer, or if the result is shorter than `min_samples`.
    """
    from torchaudio.functional import resample as resample_waveform

    # torch accepts neither read-only arrays nor negative strides, so an array is copied.
    waveform = audio.waveform if isinstance(audio.waveform, Tensor) else torch.tensor(np.array(audio.waveform))
    # soundfile gives (samples, channels), which is refused.
    valid = waveform.ndim == 1 or (waveform.ndim == 2 and len(waveform) <= waveform.shape[1])
    if not valid or not waveform.numel() or audio.sample_rate <= 0 or audio.sample_rate != int(audio.sample_rate):
        raise InputError(
            f"a waveform (samples,) or (channels, samples) at a whole rate above 0 Hz is expected, "
            f"not one of shape {tuple(waveform.shape)} at {audio.sample_rate} Hz"
        )
    if not waveform.is_floating_point():
        raise InputError(f"a waveform holds floats in -1 to 1, not {waveform.dtype}: divide it by its full scale")
    waveform = waveform.float()
    if waveform.ndim == 2:
        waveform = waveform.mean(0)
    if not torch.isfinite(waveform).all():
        raise InputError("the waveform holds NaN or infinite samples: repair it or leave it out")
    ratio = resampling_ratio(int(audio.sample_rate), sample_rate)
    waveform = resample_waveform(waveform, ratio.numerator, ratio.denominator)
    if waveform.shape[-1] < min_samples:
        seconds, window = waveform.shape[-1] / sample_rate, min_samples / sample_rate
        raise InputError(f"a sound of {seconds:.3f} s is shorter than one window ({window:.3f} s): leave it out")
    return waveform


def to_samples(win_length: float, hop_length: float, sample_rate: int) -> tuple[int, int]:
    """Convert a window and a hop from seconds to samples; raise InputError if either is below one sample."""
    window, hop = round(win_length * sample_rate), round(hop_length * sample_rate)
    if window <= 0 or hop <= 0:
        raise InputError(
            f"win_length={win_length}, hop_length={hop_length}: at sample_rate={sample_rate}, "
            f"each must be at least one sample"
        )
    return window, hop


class AudioTokenizer(Tokenizer, ABC):
    """Tiles of a plane (frames, bands) as tokens: their normalized log power, through a linear map or a stem.

    `encode` turns a sound into the plane, which is a spectrogram or the waveform itself.
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
            tiles: The tiles of the plane.
            frame_step: Seconds between two frames of the plane.
            first_center: The center of the first frame, in seconds.
            norm: The normalization of log power.
            shape: The (frames, bands) of a token's log power.
            axes: 2 if the band is a coordinate too, else 1.
            stem: The layer of a convolutional stem, or None for a linear map.
            positions: The kind of positional encoding.
            length: The most tokens along an axis for positions="learned".
            dropout: The dropout of the tokens.
        """
        super().__init__(dim)
        if stem and axes == 2:
            raise InputError(f"stem={stem} overlaps by itself and reads all bands: give stack in place of patch")
        self.tiles, self.frame_step, self.first_center, self.axes = tiles, frame_step, first_center, axes
        self.project = FrameStem(stem, dim, *shape) if stem else LinearProjection(math.prod(shape), dim)
        self.encoding = PositionalEncoding(positions, dim, (length,) * axes)
        self.dropout = Dropout(dropout)
        self.norm = norm

    @abstractmethod
    def to_plane(self, audio: Audio) -> Tensor:
        """Return the plane (frames, bands) that the tiles are cut from."""

    @abstractmethod
    def log_power(self, tiles: Tensor) -> Tensor:
        """Return the log power of tiles (B, N, frames, bands) in natural logarithms.

        The sides of the result are those of a token and may differ from the tiles.
        """

    @abstractmethod
    def spectrogram(self, audio: Audio) -> Tensor:
        """Return the log power (F, frames) of a sound."""

    @final
    def encoding_key(self) -> dict[str, Any]:
        """Return every setting that does not belong to `embed` alone.

        The length of learned positions is included because `encode` refuses longer sounds.
        """
        excluded = ("dim", "training")
        settings = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in excluded}
        max_length = self.encoding.lengths if self.encoding.kind == "learned" else None
        return settings | {"tiles": asdict(self.tiles), "normalize": self.norm.kind, "max_length": max_length}

    @final
    def fit(self, audios: Iterable[Audio]) -> Self:
        """Measure the mean and standard deviation of log power over sounds; return self."""
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

    @final
    def position_values(self, units: Units) -> Tensor:
        """Return the center of each token (1, N), in seconds; bands have another unit."""
        return self.frame_times(units.positions[:1] * self.tiles.stride[0] + (self.tiles.patch[0] - 1) / 2)

    @final
    def frame_times(self, frames: Tensor) -> Tensor:
        """Return the centers, in seconds, of frames of the plane, counted from 0."""
        return frames * self.frame_step + self.first_center


@final
class FrameTokenizer(AudioTokenizer):
    """Log-mel frames of a sound, of any sample rate and length, as tokens.

    Without `patch`, a token is a stack of frames: (stack x F, N) at times (1, N). With `patch`, a token is a patch of
    the spectrogram: (frames x bands of the patch, N) at times and bands (2, N) (Gong et al. 2021, section 2.1).
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
            sample_rate: Hz; sounds of other rates are resampled.
            win_length: The window, in seconds.
            hop_length: The step between frames, in seconds.
            n_mels: F, the mel bands.
            stack: Frames per token.
            patch: (frames, bands) per token, in place of `stack`.
            stride: (frames, bands) between patches; patches overlap if a step is below the patch.
            stem: "strided" or "pooled" convolutions in place of a linear map.
            normalize: The scope of the mean of log power.
            positions: The kind of positional encoding.
            length: The most tokens along an axis for positions="learned".
            dropout: The dropout of the tokens.
        """
        self.sample_rate, self.n_mels = sample_rate, n_mels
        self.win_samples, self.hop_samples = to_samples(win_length, hop_length, sample_rate)
        if patch and stack != 1:
            raise InputError("give stack or patch, not both: a patch already spans several frames")
        if not patch and stride:
            raise InputError(f"stride={stride} needs a patch: give patch too")
        if stack < 1:
            raise InputError(f"stack={stack}: a column has at least 1 frame")
        if patch and min(patch) < 1:
            raise InputError(f"patch={patch}: a column has at least 1 frame and 1 band")
        if stride and min(stride) < 1:
            raise InputError(f"stride={stride}: a step has at least 1 frame and 1 band")
        sides = patch or (stack, n_mels)
        steps = stride or sides
        if any(step > side for step, side in zip(steps, sides, strict=True)):
            raise InputError(f"stride={stride} skips parts of the spectrogram: take at most the patch, {sides}")
        if not 0 < sides[1] <= n_mels:
            raise InputError(f"a patch of {sides[1]} bands does not fit a spectrogram of n_mels={n_mels}")
        super().__init__(
            dim,
            tiles=Tiles(n_mels, sides, steps, math.log(POWER_FLOOR)),
            frame_step=self.hop_samples / sample_rate,
            first_center=_fft_size(self.win_samples) / 2 / sample_rate,
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

        The shortest valid sound is one FFT, whose size is a power of 2. It raises InputError as `resample` does.
        """
        waveform = resample(audio, self.sample_rate, _fft_size(self.win_samples))
        mel = _mel_spectrogram(self.sample_rate, self.win_samples, self.hop_samples, self.n_mels)
        return mel(waveform).clamp(min=POWER_FLOOR).log()

    def to_plane(self, audio: Audio) -> Tensor:
        """Return the log-mel spectrogram (frames, F)."""
        return self.spectrogram(audio).T

    def log_power(self, tiles: Tensor) -> Tensor:
        """Return the tiles, which already hold log power."""
        return tiles


@final
class WaveformTokenizer(AudioTokenizer):
    """Stretches of a waveform as tokens, read by a learned bank of F filters: (samples, N) at times (1, N).

    Each filter is a pair that starts as a Gabor cosine and sine under a Hann window. The sum of their squares is the
    power of the band, as in LEAF (Zeghidour et al. 2021, section 3.1), but every sample of a filter is learned.
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
            sample_rate: Hz; sounds of other rates are resampled.
            win_length: The length of a filter, in seconds.
            hop_length: The step between frames, in seconds.
            n_filters: F, the number of filter pairs.
            stack: Frames per token.
            stem: "strided" or "pooled" convolutions in place of a linear map.
            normalize: The scope of the mean of log power.
            positions: The kind of positional encoding.
            length: The most tokens for positions="learned".
            dropout: The dropout of the tokens.
        """
        self.sample_rate = sample_rate
        self.win_samples, self.hop_samples = to_samples(win_length, hop_length, sample_rate)
        if self.hop_samples > self.win_samples:
            raise InputError(f"hop_length={hop_length} skips samples between windows: take at most {win_length}")
        if stack < 1 or n_filters < 1:
            raise InputError(f"stack={stack}, n_filters={n_filters}: at least 1 of each is needed")
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
        """Return the log power (B, N, stack, F) of stretches (B, N, samples, 1)."""
        frames = tiles.squeeze(3).unfold(2, self.win_samples, self.hop_samples)  # B, N, stack, window
        # `fit` measures its statistics in float32, so the power is computed in float32 too.
        with torch.autocast(tiles.device.type, enabled=False):
            cosine, sine = (frames.float() @ self.bank).chunk(2, dim=-1)
            return (cosine**2 + sine**2 + POWER_FLOOR).log()

    @torch.no_grad()
    def spectrogram(self, audio: Audio) -> Tensor:
        """Return the log power (F, frames) under the current filters."""
        return self.log_power(self.tiles.cut(self.to_plane(audio)).mT[None, ..., None])[0].flatten(0, 1).T


def gabor_filters(sample_rate: int, win_samples: int, n_filters: int) -> Tensor:
    """Return cosines, then sines, of rising pitch under a Hann window: (window, 2 x filters).

    The pitches are evenly spaced on the mel scale between 0 and half the sample rate, like the peaks of a mel filter
    bank.

    Args:
        sample_rate: Hz.
        win_samples: The length of a filter, in samples.
        n_filters: The number of pairs.
    """
    # mel = 2595 log10(1 + f / 700). Only its shape matters here, so the factor is left out.
    max_mel = math.log1p(sample_rate / 2 / 700)
    pitches = 700 * torch.expm1(torch.linspace(0, max_mel, n_filters + 2)[1:-1])
    phase = 2 * math.pi * torch.arange(win_samples)[:, None] * pitches / sample_rate
    return torch.cat([phase.cos(), phase.sin()], dim=1) * torch.hann_window(win_samples)[:, None]


@lru_cache(maxsize=8)
def _mel_spectrogram(sample_rate: int, win_samples: int, hop_samples: int, n_mels: int) -> nn.Module:
    # The module is not part of the tokenizer, because `encode` must not read buffers that move to a device.
    from torchaudio.transforms import MelSpectrogram

    n_fft = _fft_size(win_samples)
    return MelSpectrogram(
        sample_rate, n_fft=n_fft, win_length=win_samples, hop_length=hop_samples, n_mels=n_mels, center=False
    )


def _fft_size(win_samples: int) -> int:
    """Return the size of the FFT around a window: the next power of 2."""
    return 1 << (win_samples - 1).bit_length()
