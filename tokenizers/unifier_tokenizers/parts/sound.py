"""Sound from any file to columns: what log-mel frames and learned filters have in common."""

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
from torch import Tensor

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.parts.dropout import Dropout
from unifier_tokenizers.parts.normal import Normal
from unifier_tokenizers.parts.stem import FrameStem, LinearMap, StemKind
from unifier_tokenizers.parts.tiles import Tiles
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

FLOOR = 1e-6
"""Power below this is silence: 60 dB under a band of power 1."""


class Sound(NamedTuple):
    """A waveform and its rate: what a data set of sounds gives as input."""

    waveform: Tensor | NDArray[np.floating]
    """(samples,) or (channels, samples), in -1 to 1."""
    rate: int
    """Samples a second (Hz)."""


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


def at_rate(sound: Sound, rate: int, least: int) -> Tensor:
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
    if not along or not waveform.numel() or sound.rate <= 0 or sound.rate != int(sound.rate):
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
    if waveform.shape[-1] < least:
        seconds = waveform.shape[-1] / rate
        raise InputError(f"a sound of {seconds:.3f} s is shorter than one window ({least / rate:.3f} s): leave it out")
    return waveform


def in_samples(window: float, hop: float, rate: int) -> tuple[int, int]:
    """A window and a hop of so many seconds, in samples at `rate` Hz."""
    if not round(hop * rate) > 0 or not round(window * rate) > 0:
        raise InputError(f"a window of {window} s and a hop of {hop} s at {rate} Hz leave no sample")
    return round(window * rate), round(hop * rate)


class SoundTokenizer(Tokenizer, ABC):
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
        normal: Normal,
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
        self.project = FrameStem(stem, dim, *shape) if stem else LinearMap(math.prod(shape), dim)
        self.encoding = PositionalEncoding(positions, dim, (length,) * axes)
        self.dropout = Dropout(dropout)
        self.normal = normal

    @abstractmethod
    def plane(self, sound: Sound) -> Tensor:
        """What the columns of a sound are cut from: (frames, bands)."""

    @abstractmethod
    def log_power(self, tiles: Tensor) -> Tensor:
        """Tiles (B, N, frames, bands) as natural logarithms of power (B, N, frames, bands), of other sides maybe."""

    @abstractmethod
    def spectrogram(self, sound: Sound) -> Tensor:
        """The log power (F, frames) of a sound."""

    @final
    def encoding_key(self) -> dict[str, Any]:
        # All settings but those of embed, so that none is forgotten; and where learned positions end, past which encode
        # refuses.
        own = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in ("dim", "training")}
        most = self.encoding.lengths if self.encoding.kind == "learned" else None
        return own | {"tiles": asdict(self.tiles), "normalise": self.normal.kind, "most": most}

    @final
    def fit(self, sounds: Iterable[Sound]) -> Self:
        """Take the mean and standard deviation of log power from sounds; returns itself."""
        self.normal.fit(self.spectrogram(sound) for sound in sounds)
        return self

    @final
    def encode(self, raw: Sound) -> Units:
        if not isinstance(raw, Sound):
            raise InputError(f"a Sound(waveform, rate) is expected, not {type(raw).__name__}")
        values = self.tiles.cut(self.plane(raw))
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
    def coordinates(self, units: Units) -> Tensor:
        """The time of the middle of each column (1, N), in seconds; bands have another unit."""
        return self.time(units.positions[:1] * self.tiles.stride[0] + (self.tiles.patch[0] - 1) / 2)

    @final
    def time(self, frames: Tensor) -> Tensor:
        """The seconds at which frames of the plane, counted from 0, have their middle."""
        return frames * self.step + self.middle
