"""Settings of sounds: the tokenizer and the augmentation."""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, final

from unifier.augmentation.audio import audio_tta, augment_audio
from unifier.augmentation.mixup import Mixup
from unifier.data.cache import fit_once
from unifier.data.dataloader import Augmentation, TestTimeAugmentation
from unifier.data.source import BadExamples, LabeledSource
from unifier.data.statistics import max_duration, median_duration
from unifier.experiment import fitted
from unifier.options.trunk import TrunkConfig
from unifier_tokenizers import FrameTokenizer, InputError, WaveformTokenizer
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.normalization import Normalization
from unifier_tokenizers.stems import StemKind

LONG_CLIP = 10.0
"""Training uses random crops if the median duration of the clips is above this number of seconds."""
CROP_SECONDS, NUM_CROPS = 6.0, 5
"""For long clips: the default crop length in seconds, and the default number of crops in validation and test."""
OUTLIER_FACTOR = 3
"""Training uses random crops if the longest clip exceeds the length of a crop by more than this factor."""
MIN_CLIP = 0.2
"""The lower limit of the median duration, in seconds."""
FRAME_SECONDS = 0.01


@final
@dataclass(frozen=True)
class AudioFrontend:
    """Settings of the tokenizer for sounds."""

    sample_rate: int = 16_000
    """Sounds are resampled to this rate, in Hz."""
    tokenizer: Literal["frames", "waveform"] = "frames"
    """Kind of tokens: frames of a log-mel spectrogram, or frames of learned filters on the waveform."""
    stack: int | None = None
    """Number of 10 ms frames in a token; None means 2, 4 or 8, by the median duration, or with CTC by the data."""
    patch: tuple[int, int] | None = None
    """Size of a spectrogram patch, in frames and bands; None means stacked frames instead of patches."""
    stride: tuple[int, int] | None = None
    """Distance between neighboring patches, in frames and bands; None means the size of a patch."""
    stem: StemKind | Literal["auto"] | None = "auto"
    """Convolutions on the spectrogram: strided, pooled or none; auto means strided for frames and none for patches."""
    normalize: Normalization = "band"
    """Normalization: whole (over all bands), band (per band), or example (per band and example, for new voices)."""

    def build(
        self, source: LabeledSource, trunk: TrunkConfig, clips: "ClipStatistics", bad_examples: BadExamples
    ) -> AudioTokenizer:
        """Create a tokenizer, and compute its normalization from the training split or load it from the cache."""
        if self.tokenizer == "waveform" and (self.patch or self.stride):
            raise InputError("patch and stride are for spectrograms only: with tokenizer=waveform, set stack instead")
        kind = (
            WaveformTokenizer
            if self.tokenizer == "waveform"
            else partial(FrameTokenizer, patch=self.patch, stride=self.stride)
        )
        tokenizer = kind(
            trunk.dim,
            sample_rate=self.sample_rate,
            stack=self.frames_per_token(clips),
            stem=self.resolved_stem,
            normalize=self.normalize,
            positions=trunk.input_positions,
            dropout=trunk.dropout,
        )
        fit_once(tokenizer, source, bad_examples=bad_examples)
        return tokenizer

    @property
    def resolved_stem(self) -> StemKind | None:
        """The kind of stem to build, which is never "auto"."""
        if self.stem == "auto":
            return None if self.patch else "strided"
        return self.stem

    def frames_per_token(self, clips: "ClipStatistics") -> int:
        """Return the number of frames stacked in one token."""
        if self.stack is not None:
            return self.stack
        return 1 if self.patch else 1 << min(round(math.log2(clips.median / 0.1)), 3)


@final
class ClipStatistics:
    """The median duration and the longest duration of a source's sounds, in seconds.

    Each duration is measured once. A loaded or resumed run reads the durations from the run's folder.
    """

    def __init__(self, source: LabeledSource, target: str) -> None:
        self._source, self._name = source, f"{source.name}-{target}"

    @cached_property
    def median(self) -> float:
        """The median duration in seconds, at least `MIN_CLIP`."""
        return max(fitted(f"{self._name}-seconds", lambda: median_duration(self._source), self._source), MIN_CLIP)

    @cached_property
    def longest(self) -> float:
        """The longest duration in seconds."""
        return fitted(f"{self._name}-longest", lambda: max_duration(self._source), self._source)


@final
@dataclass(frozen=True)
class AudioAugmentationConfig:
    """Settings for the random changes of training sounds, and for the crops in validation and test."""

    mixup: float = 0.0
    """Parameter alpha of mixup; 0 turns mixup off."""
    speed_perturb: float = 0.0
    """Largest relative change of speed; 0.1 means up to 10 percent faster or slower."""
    crop: float | None = None
    """Duration of a training crop, in seconds; None means 6 for long clips, and 0 means no crop."""
    freq_shift: float | None = None
    """Largest shift in frequency, as a share of all bands; None means 0.1, or 0 if tokenizer=waveform."""
    gain: float | None = None
    """Largest change of loudness, in dB; None means 6, or 0 if target=tags or normalize=example."""
    random_eq: float = 0.0
    """Largest random change of a single frequency band, in dB."""
    time_masks: int = 0
    """Number of masked time intervals (SpecAugment)."""
    time_width: float = 0.1
    """Longest masked time interval, as a share of the sound's duration."""
    band_masks: int = 0
    """Number of masked groups of neighboring frequency bands (SpecAugment)."""
    band_width: float = 0.2
    """Largest masked group of frequency bands, as a share of all bands."""
    num_crops: int | None = None
    """Number of crops that validation and test average; None means 5 for long clips, else 1."""
    freq_shift_tta: bool = True
    """In validation and test, average over copies that are shifted in frequency."""

    def resolve(self, frontend: AudioFrontend, clips: ClipStatistics, target: str) -> "AudioAugmentationConfig":
        """Return a copy of the settings. Each None is replaced by a value that fits the data, or by the default.

        Raises:
            InputError: If normalize=example cancels `gain` or `random_eq`.
        """
        for name, decibels in (("gain", self.gain), ("random_eq", self.random_eq)):
            if decibels and frontend.normalize == "example":
                raise InputError(
                    f"{name}={decibels}: normalize=example cancels this change; leave one of the two settings out"
                )
        gain = self.gain
        if gain is None:
            gain = 0.0 if frontend.normalize == "example" or target == "tags" else 6.0
        freq_shift = self.freq_shift
        if freq_shift is None:
            freq_shift = 0.0 if frontend.tokenizer == "waveform" else 0.1
        crop, num_crops = self.crop, self.num_crops
        if crop is None:
            long = clips.median > LONG_CLIP
            # A crop is shortened to whole tokens, so the factor 1.1 lets a crop contain a whole clip.
            piece = CROP_SECONDS if long else max(CROP_SECONDS, 1.1 * clips.median)
            if long or clips.longest > OUTLIER_FACTOR * piece:
                crop, num_crops = piece, NUM_CROPS if num_crops is None else num_crops
        return replace(
            self,
            gain=gain,
            freq_shift=freq_shift,
            crop=crop or None,
            num_crops=1 if num_crops is None else num_crops,
        )

    def build(self, tokenizer: AudioTokenizer, num_classes: int) -> Augmentation | None:
        """Create the augmentation of training batches from resolved settings (see `resolve`).

        Return None if every change is turned off.
        """
        return augment_audio(
            tokenizer,
            mixup=Mixup(num_classes, self.mixup) if self.mixup else None,
            speed_perturb=self.speed_perturb,
            crop=self.crop,
            freq_shift=self.freq_shift or 0.0,
            gain=self.gain or 0.0,
            random_eq=self.random_eq,
            time_masks=self.time_masks,
            time_width=self.time_width,
            band_masks=self.band_masks,
            band_width=self.band_width,
        )

    def tta(self, tokenizer: AudioTokenizer) -> TestTimeAugmentation | None:
        """Create the crops for validation and test from resolved settings (see `resolve`).

        Return None if only the whole sound is used.
        """
        freq_shift = (self.freq_shift or 0.0) if self.freq_shift_tta else 0.0
        return audio_tta(tokenizer, self.num_crops or 1, crop=self.crop, freq_shift=freq_shift)
