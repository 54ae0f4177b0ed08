"""Sound to columns, by learned filters on the waveform."""

import math
from typing import final

import torch
from torch import Tensor, nn

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.parts.normal import Normal, Normalise
from unifier_tokenizers.parts.sound import FLOOR, Sound, SoundTokenizer, at_rate, in_samples
from unifier_tokenizers.parts.stem import StemKind
from unifier_tokenizers.parts.tiles import Tiles
from unifier_tokenizers.positions import PositionKind


def filter_bank(rate: int, window: int, bands: int) -> Tensor:
    """Cosines, and then sines, of rising pitch under a Hann window: (window, 2 x bands), in samples at `rate` Hz.

    Pitches lie evenly on the mel scale, between 0 and half the rate, as the peaks of a mel filter bank do.
    """
    highest = math.log1p(rate / 2 / 700)  # mel is 2595 log10(1 + f / 700); only its shape counts
    pitches = 700 * torch.expm1(torch.linspace(0, highest, bands + 2)[1:-1])
    phase = 2 * math.pi * torch.arange(window)[:, None] * pitches / rate
    return torch.cat([phase.cos(), phase.sin()], dim=1) * torch.hann_window(window)[:, None]


@final
class WaveformTokenizer(SoundTokenizer):
    """Stretches of a waveform as columns, read by a learned bank of F filters: (samples, N) at times (1, N).

    Each filter is a pair, at first a cosine and a sine (Gabor's, under a Hann window); the sum of their squares is the
    power of its band, as LEAF has it (Zeghidour et al. 2021, section 3.1), with every sample of a filter free to learn.
    """

    def __init__(
        self,
        dim: int,
        *,
        rate: int = 16000,
        window: float = 0.025,
        hop: float = 0.010,
        bands: int = 64,
        stack: int = 1,
        stem: StemKind | None = None,
        normalise: Normalise = "whole",
        positions: PositionKind = "sinusoid",
        length: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        """As of `FrameTokenizer`: a column has `stack` frames, each of a `window`, one every `hop` seconds."""
        self.rate = rate
        self.window, self.hop = in_samples(window, hop, rate)
        if self.hop > self.window:
            raise InputError(f"a hop of {hop} s skips what lies between windows of {window} s")
        if stack < 1 or bands < 1:
            raise InputError(f"stack={stack}, bands={bands}: at least 1 of each is needed")
        span = self.window + (stack - 1) * self.hop
        super().__init__(
            dim,
            tiles=Tiles(1, (span, 1), (stack * self.hop, 1), 0.0),
            step=1 / rate,
            middle=0.5 / rate,
            normal=Normal(normalise, bands, bands, bands),
            shape=(stack, bands),
            stem=stem,
            positions=positions,
            length=length,
            dropout=dropout,
        )
        self.bank = nn.Parameter(filter_bank(rate, self.window, bands))

    def plane(self, sound: Sound) -> Tensor:
        return at_rate(sound, self.rate, self.window)[:, None]

    def log_power(self, tiles: Tensor) -> Tensor:
        frames = tiles.squeeze(3).unfold(2, self.window, self.hop)  # B, N, stack, window
        with torch.autocast(tiles.device.type, enabled=False):  # as `fit` finds the mean and spread it is scaled by
            cosine, sine = (frames.float() @ self.bank).chunk(2, dim=-1)
            return (cosine**2 + sine**2 + FLOOR).log()

    @torch.no_grad()
    def spectrogram(self, sound: Sound) -> Tensor:
        """The log power (F, frames) that the bank finds, now."""
        return self.log_power(self.tiles.cut(self.plane(sound)).mT[None, ..., None])[0].flatten(0, 1).T
