"""Sound from any file to columns: what log-mel frames and learned filters have in common.

Sound to columns, one stack of spectrogram frames or one spectrogram patch a column.

Sound to columns, by learned filters on the waveform."""

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
"""Power below this is silence: 60 dB under a band of power 1."""


class Audio(NamedTuple):
    """A waveform and its rate: what a data set of sounds gives as input."""

    waveform: Tensor | NDArray[np.floating]
    """(samples,) or (channels, samples), in -1 to 1."""
    sample_rate: int
    """Samples a second (Hz)."""


MAX_RATIO_TERM = 2000
"""Between rates whose ratio in lowest terms has a larger one than this, resampling takes a near ratio."""


RATIO_TOLERANCE = 0.001
"""How far, at most, that one is off: a fiftieth of a semitone."""


@lru_cache(maxsize=64)
def resampling_ratio(old: int, new: int) -> Fraction:
    """What to resample by from `old` to `new` Hz: their ratio, or where its terms are large a simple one near it.

    A polyphase filter has as many taps as the product of the two terms, and more: 2.8 GB of them from 44,101 to
    16,000 Hz. The near ratio is at most 0.1 % off, and so are then pitch and length.
    """
    exact, most = Fraction(old, new), 64
    near = exact if max(exact.numerator, exact.denominator) <= MAX_RATIO_TERM else exact.limit_denominator(most)
    while abs(near / exact - 1) > RATIO_TOLERANCE:
        most *= 2
        near = exact.limit_denominator(most)
    return near


def resample(sound: Audio, rate: int, least: int) -> Tensor:
    """The waveform (samples,) of a sound at `rate` Hz, its channels averaged.

    A rate whose ratio to `rate` is no simple one is taken for a near one, 0.1 % away at most (`resampling_ratio`).
    Raises InputError for a sound shorter than a window of `least` samples, with samples that are not floats or not
    numbers, or with a rate that is none.
    """
    from torchaudio.functional import resample

    # A copy of what numpy holds: torch takes no array that is read backwards or only.
    waveform = sound.waveform if isinstance(sound.waveform, Tensor) else torch.tensor(np.array(sound.waveform))
    # soundfile reads (samples, channels).
    along = waveform.ndim == 1 or (waveform.ndim == 2 and len(waveform) <= waveform.shape[1])
    if not along or not waveform.numel() or sound.sample_rate <= 0 or sound.sample_rate != int(sound.sample_rate):
        raise InputError(
            f"a waveform (samples,) or (channels, samples) at a whole rate above 0 Hz is expected, "
            f"not one of shape {tuple(waveform.shape)} at {sound.sample_rate} Hz"
        )
    if not waveform.is_floating_point():
        raise InputError(f"a waveform holds floats in -1 to 1, not {waveform.dtype}: divide it by its full scale")
    waveform = waveform.float()
    if waveform.ndim == 2:
        waveform = waveform.mean(0)
    if not torch.isfinite(waveform).all():
        raise InputError("the waveform holds samples that are not numbers (NaN or infinite)")
    ratio = resampling_ratio(int(sound.sample_rate), rate)
    waveform = resample(waveform, ratio.numerator, ratio.denominator)
    if waveform.shape[-1] < least:
        seconds = waveform.shape[-1] / rate
        raise InputError(f"a sound of {seconds:.3f} s is shorter than one window ({least / rate:.3f} s): leave it out")
    return waveform


def in_samples(window: float, hop: float, rate: int) -> tuple[int, int]:
    """A window and a hop of so many seconds, in samples at `rate` Hz."""
    if not round(hop * rate) > 0 or not round(window * rate) > 0:
        raise InputError(f"a window of {window} s and a hop of {hop} s at {rate} Hz leave no sample")
    return round(window * rate), round(hop * rate)


class AudioTokenizer(Tokenizer, ABC):
    """Tiles of a plane (frames, bands) as columns; their log power, made normal, goes through a linear map or a stem.

    The plane, which `encode` makes of a sound, is a spectrogram or the waveform itself.
    """

    unit = "seconds"

    def __init__(
        self,
        dim: int,
        *,
        tiles: Tiles,
        step: float,
        middle: float,
        normal: SpectrogramNorm,
        shape: tuple[int, int],
        axes: int = 1,
        stem: StemKind | None,
        positions: PositionKind,
        length: int,
        dropout: float,
    ) -> None:
        """Frames of the plane are `step` seconds apart, the first one's middle at `middle` seconds.

        `shape` is that of a column's log power (frames, bands), and `axes` 2 where its band is a coordinate too.
        """
        super().__init__(dim)
        if stem and axes == 2:
            raise InputError(f"stem={stem} overlaps by itself and reads all bands: give stack in place of patch")
        self.tiles, self.step, self.middle, self.axes = tiles, step, middle, axes
        self.project = FrameStem(stem, dim, *shape) if stem else LinearProjection(math.prod(shape), dim)
        self.encoding = PositionalEncoding(positions, dim, (length,) * axes)
        self.dropout = Dropout(dropout)
        self.normal = normal

    @abstractmethod
    def time_bands(self, sound: Audio) -> Tensor:
        """What the columns of a sound are cut from: (frames, bands)."""

    @abstractmethod
    def log_power(self, tiles: Tensor) -> Tensor:
        """Tiles (B, N, frames, bands) as natural logarithms of power (B, N, frames, bands), of other sides maybe."""

    @abstractmethod
    def spectrogram(self, sound: Audio) -> Tensor:
        """The log power (F, frames) of a sound."""

    @final
    def encoding_key(self) -> dict[str, Any]:
        # All settings but those of embed, so that none is forgotten; and where learned positions end, past which encode
        # refuses.
        own = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in ("dim", "training")}
        most = self.encoding.lengths if self.encoding.kind == "learned" else None
        return own | {"tiles": asdict(self.tiles), "normalize": self.normal.kind, "most": most}

    @final
    def fit(self, sounds: Iterable[Audio]) -> Self:
        """Take the mean and standard deviation of log power from sounds; returns itself."""
        self.normal.fit(self.spectrogram(sound) for sound in sounds)
        return self

    @final
    def encode(self, raw: Audio) -> Units:
        if not isinstance(raw, Audio):
            raise InputError(f"a Sound(waveform, rate) is expected, not {type(raw).__name__}")
        values = self.tiles.cut(self.time_bands(raw))
        across = self.tiles.across
        places = torch.cartesian_prod(torch.arange(values.shape[1] // across), torch.arange(across))
        positions = places.T[: self.axes].contiguous()
        self.encoding.check(positions)
        return Units(values, positions)

    @final
    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        power = self.normal(self.log_power(values.mT.unflatten(2, self.tiles.patch)), positions)
        return self.dropout(self.encoding(self.project(power, positions), positions))

    @final
    def position_values(self, units: Units) -> Tensor:
        """The time of the middle of each column (1, N), in seconds; bands have another unit."""
        return self.time(units.positions[:1] * self.tiles.stride[0] + (self.tiles.patch[0] - 1) / 2)

    @final
    def time(self, frames: Tensor) -> Tensor:
        """The seconds at which frames of the plane, counted from 0, have their middle."""
        return frames * self.step + self.middle


@lru_cache(maxsize=8)
def _spectrogram(rate: int, window: int, hop: int, bands: int) -> nn.Module:
    # Not part of the tokenizer, so that `encode` reads nothing that moves to a device.
    from torchaudio.transforms import MelSpectrogram

    return MelSpectrogram(rate, n_fft=_span(window), win_length=window, hop_length=hop, n_mels=bands, center=False)


def _span(window: int) -> int:
    """The samples of the transform that a window stands in the middle of: a power of 2."""
    return 1 << (window - 1).bit_length()


@final
class FrameTokenizer(AudioTokenizer):
    """Log-mel frames of a sound of any rate and length as columns.

    Without `patch`, a column is a stack of frames: (stack x F, N) at times (1, N). With it, a column is a patch of
    the spectrogram: (bands x frames of the patch, N) at times and bands (2, N) (Gong et al. 2021, section 2.1).
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
        """`rate` in Hz, `window` and `hop` in seconds, `stack` in frames, `patch` and `stride` in (frames, bands).

        A stride below the patch makes patches overlap. `length` is the most columns along an axis for
        positions="learned".
        """
        self.rate, self.bands = sample_rate, n_mels
        self.window, self.hop = in_samples(win_length, hop_length, sample_rate)
        if patch and stack != 1:
            raise InputError("give stack or patch, not both: a patch already spans several frames")
        if not patch and stride:
            raise InputError(f"stride={stride}: without a patch there is nothing to move; give patch too")
        if stack < 1:
            raise InputError(f"stack={stack}: a column has at least 1 frame")
        if patch and min(patch) < 1:
            raise InputError(f"patch={patch}: a column has at least 1 frame and 1 band")
        if stride and min(stride) < 1:
            raise InputError(f"stride={stride}: a step has at least 1 frame and 1 band")
        sides = patch or (stack, n_mels)
        steps = stride or sides
        if any(step > side for step, side in zip(steps, sides, strict=True)):
            raise InputError(f"a stride of {stride} skips parts of a patch of {sides}")
        if not 0 < sides[1] <= n_mels:
            raise InputError(f"a patch of {sides[1]} bands does not fit a spectrogram of {n_mels}")
        super().__init__(
            dim,
            tiles=Tiles(n_mels, sides, steps, math.log(POWER_FLOOR)),
            step=self.hop / sample_rate,
            middle=_span(self.window) / 2 / sample_rate,
            normal=SpectrogramNorm(normalize, n_mels, sides[1], steps[1]),
            shape=sides,
            stem=stem,
            axes=2 if patch else 1,
            positions=positions,
            length=length,
            dropout=dropout,
        )

    def spectrogram(self, sound: Audio) -> Tensor:
        """The log-mel spectrogram (F, frames) that the columns are cut from, in natural logarithms.

        A frame needs a whole transform, of a power of 2; raises InputError as `at_rate` does.
        """
        waveform = resample(sound, self.rate, _span(self.window))
        return _spectrogram(self.rate, self.window, self.hop, self.bands)(waveform).clamp(min=POWER_FLOOR).log()

    def time_bands(self, sound: Audio) -> Tensor:
        return self.spectrogram(sound).T

    def log_power(self, tiles: Tensor) -> Tensor:
        return tiles


def mel_filter_bank(rate: int, window: int, bands: int) -> Tensor:
    """Cosines, and then sines, of rising pitch under a Hann window: (window, 2 x bands), in samples at `rate` Hz.

    Pitches lie evenly on the mel scale, between 0 and half the rate, as the peaks of a mel filter bank do.
    """
    highest = math.log1p(rate / 2 / 700)  # mel is 2595 log10(1 + f / 700); only its shape counts
    pitches = 700 * torch.expm1(torch.linspace(0, highest, bands + 2)[1:-1])
    phase = 2 * math.pi * torch.arange(window)[:, None] * pitches / rate
    return torch.cat([phase.cos(), phase.sin()], dim=1) * torch.hann_window(window)[:, None]


@final
class WaveformTokenizer(AudioTokenizer):
    """Stretches of a waveform as columns, read by a learned bank of F filters: (samples, N) at times (1, N).

    Each filter is a pair, at first a cosine and a sine (Gabor's, under a Hann window); the sum of their squares is the
    power of its band, as LEAF has it (Zeghidour et al. 2021, section 3.1), with every sample of a filter free to learn.
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
        """As of `FrameTokenizer`: a column has `stack` frames, each of a `window`, one every `hop` seconds."""
        self.rate = sample_rate
        self.window, self.hop = in_samples(win_length, hop_length, sample_rate)
        if self.hop > self.window:
            raise InputError(f"a hop of {hop_length} s skips what lies between windows of {win_length} s")
        if stack < 1 or n_filters < 1:
            raise InputError(f"stack={stack}, bands={n_filters}: at least 1 of each is needed")
        span = self.window + (stack - 1) * self.hop
        super().__init__(
            dim,
            tiles=Tiles(1, (span, 1), (stack * self.hop, 1), 0.0),
            step=1 / sample_rate,
            middle=0.5 / sample_rate,
            normal=SpectrogramNorm(normalize, n_filters, n_filters, n_filters),
            shape=(stack, n_filters),
            stem=stem,
            positions=positions,
            length=length,
            dropout=dropout,
        )
        self.bank = nn.Parameter(mel_filter_bank(sample_rate, self.window, n_filters))

    def time_bands(self, sound: Audio) -> Tensor:
        return resample(sound, self.rate, self.window)[:, None]

    def log_power(self, tiles: Tensor) -> Tensor:
        frames = tiles.squeeze(3).unfold(2, self.window, self.hop)  # B, N, stack, window
        with torch.autocast(tiles.device.type, enabled=False):  # as `fit` finds the mean and spread it is scaled by
            cosine, sine = (frames.float() @ self.bank).chunk(2, dim=-1)
            return (cosine**2 + sine**2 + POWER_FLOOR).log()

    @torch.no_grad()
    def spectrogram(self, sound: Audio) -> Tensor:
        """The log power (F, frames) that the bank finds, now."""
        return self.log_power(self.tiles.cut(self.time_bands(sound)).mT[None, ..., None])[0].flatten(0, 1).T
