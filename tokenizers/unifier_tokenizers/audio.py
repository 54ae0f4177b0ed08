"""Sound to columns, one stack of spectrogram frames or one spectrogram patch a column."""

import math
from functools import lru_cache
from typing import final

from torch import Tensor, nn

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.parts.normal import Normal, Normalise
from unifier_tokenizers.parts.sound import FLOOR, Sound, SoundTokenizer, at_rate, in_samples
from unifier_tokenizers.parts.stem import StemKind
from unifier_tokenizers.parts.tiles import Tiles
from unifier_tokenizers.positions import PositionKind


@lru_cache(maxsize=8)
def _spectrogram(rate: int, window: int, hop: int, bands: int) -> nn.Module:
    # Not part of the tokenizer, so that `encode` reads nothing that moves to a device.
    from torchaudio.transforms import MelSpectrogram

    return MelSpectrogram(rate, n_fft=_span(window), win_length=window, hop_length=hop, n_mels=bands, center=False)


def _span(window: int) -> int:
    """The samples of the transform that a window stands in the middle of: a power of 2."""
    return 1 << (window - 1).bit_length()


@final
class FrameTokenizer(SoundTokenizer):
    """Log-mel frames of a sound of any rate and length as columns.

    Without `patch`, a column is a stack of frames: (stack x F, N) at times (1, N). With it, a column is a patch of
    the spectrogram: (bands x frames of the patch, N) at times and bands (2, N) (Gong et al. 2021, section 2.1).
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
        patch: tuple[int, int] | None = None,
        stride: tuple[int, int] | None = None,
        stem: StemKind | None = None,
        normalise: Normalise = "whole",
        positions: PositionKind = "sinusoid",
        length: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        """`rate` in Hz, `window` and `hop` in seconds, `stack` in frames, `patch` and `stride` in (frames, bands).

        A stride below the patch makes patches overlap. `length` is the most columns along an axis for
        positions="learned".
        """
        self.rate, self.bands = rate, bands
        self.window, self.hop = in_samples(window, hop, rate)
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
        sides = patch or (stack, bands)
        steps = stride or sides
        if any(step > side for step, side in zip(steps, sides, strict=True)):
            raise InputError(f"a stride of {stride} skips parts of a patch of {sides}")
        if not 0 < sides[1] <= bands:
            raise InputError(f"a patch of {sides[1]} bands does not fit a spectrogram of {bands}")
        super().__init__(
            dim,
            tiles=Tiles(bands, sides, steps, math.log(FLOOR)),
            step=self.hop / rate,
            middle=_span(self.window) / 2 / rate,
            normal=Normal(normalise, bands, sides[1], steps[1]),
            shape=sides,
            stem=stem,
            axes=2 if patch else 1,
            positions=positions,
            length=length,
            dropout=dropout,
        )

    def spectrogram(self, sound: Sound) -> Tensor:
        """The log-mel spectrogram (F, frames) that the columns are cut from, in natural logarithms.

        A frame needs a whole transform, of a power of 2; raises InputError as `at_rate` does.
        """
        waveform = at_rate(sound, self.rate, _span(self.window))
        return _spectrogram(self.rate, self.window, self.hop, self.bands)(waveform).clamp(min=FLOOR).log()

    def plane(self, sound: Sound) -> Tensor:
        return self.spectrogram(sound).T

    def log_power(self, tiles: Tensor) -> Tensor:
        return tiles
