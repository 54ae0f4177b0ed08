"""Setting groups that recipes share: dataclasses whose fields are settings, and what each group builds.

A field that is None is derived from the data by the group's `build`. Each field's docstring is what
`unifier show FILE` and `unifier run FILE --help` print.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, final

from unifier.augmentation.audio import audio_tta, augment_audio
from unifier.augmentation.image import augment_images, image_tta
from unifier.augmentation.mixup import Mixup
from unifier.data.cache import fit_once
from unifier.data.dataloader import Augmentation, TestTimeAugmentation
from unifier.data.source import BadExamples, LabeledSource, Source, readable_examples
from unifier.data.statistics import max_duration, median_duration, median_side
from unifier.data.text_files import Duplicates
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.multi30k import Multi30k
from unifier.datasets.parallel_text import ParallelText, Texts, WithExtraPairs
from unifier.experiment import fitted
from unifier.heads.classification import ClassificationHead, Pooling, TaggingHead
from unifier.trunks.factory import Positions, create_trunk, input_positions
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import FrameTokenizer, InputError, PatchTokenizer, Vocabulary, WaveformTokenizer
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.normalization import Normalization
from unifier_tokenizers.stems import StemKind

MAX_VOCABULARY_TEXTS = 1_000_000
"""A vocabulary is learned from at most this many examples, evenly spaced; more take time and hardly change it."""
MAX_FITTED_IMAGES = 2000
"""Mean and spread of pictures are learned from at most this many, evenly spaced."""
LONG_CLIP = 10.0
"""Clips whose median is longer, in seconds, are trained on random crops."""
CROP_SECONDS, NUM_CROPS = 6.0, 5
"""The default crop of long clips, and how many crops validation and test average."""
OUTLIER_FACTOR = 3
"""One clip this many times as long as a crop turns crops on, too."""
MIN_CLIP = 0.2
"""Shorter median durations, in seconds, count as this one."""
FRAME_SECONDS = 0.01


@final
@dataclass(frozen=True)
class TrunkConfig:
    """The trunk: its architecture and size."""

    trunk: str = "transformer"
    """Architecture: transformer, mean_attention, gru, lstm, convolutional, or timm:MODEL with its trained weights."""
    dim: int = 128
    """D, the width of a token."""
    depth: int = 4
    """Number of layers."""
    heads: int | None = None
    """Attention heads of a layer; None takes one per 64 features."""
    ffn_dim: int | None = None
    """Width of the feed-forward layers; None takes 4 * dim."""
    dropout: float = 0.1
    """Dropout probability of the trunk, the tokenizer and the decoder."""
    positions: Positions = "sinusoid"
    """Positions: sinusoid or learned (added by the tokenizer), rotary (a transformer's), or none."""
    drop_path: float = 0.0
    """Probability that the last block is skipped in training; it falls linearly to the first block."""
    qk_norm: bool = False
    """Normalize queries and keys, in the trunk and in a transformer decoder."""
    scaled_residual_init: bool = False
    """Scale the initial residual projections down by depth, as GPT-2 does."""

    @property
    def input_positions(self) -> Literal["sinusoid", "learned", "none"]:
        """The positions that the tokenizer adds."""
        return input_positions(self.positions)

    def build(self) -> Trunk:
        """Create the trunk. Raises InputError for an option that the architecture lacks."""
        # The decoder takes both options whatever the trunk is, so that only a transformer is given them here.
        transformer = self.trunk == "transformer"
        return create_trunk(
            self.trunk,
            self.dim,
            self.depth,
            self.heads,
            self.ffn_dim,
            self.dropout,
            positions=self.positions,
            qk_norm=self.qk_norm and transformer,
            scaled_residual_init=self.scaled_residual_init and transformer,
            drop_path=self.drop_path,
        )


@final
@dataclass(frozen=True)
class ClassifierConfig:
    """The head that classifies or tags."""

    pooling: Pooling = "mean"
    """How the head reads the tokens: their mean, the class token (cls), or a learned attention."""
    label_smoothing: float = 0.0
    """Probability mass that is spread over all classes in training."""

    def build(
        self, source: LabeledSource, dim: int, *, tags: bool = False, class_token: bool = True
    ) -> ClassificationHead | TaggingHead:
        """Create a head for the source's labels.

        Args:
            source: a data set with labels.
            dim: D, the width of a token.
            tags: an example may have several labels.
            class_token: the tokenizer can put a class token in front.
        """
        if self.pooling == "cls" and not class_token:
            raise InputError("pooling=cls: this tokenizer has no class token; take mean or attention")
        if not tags:
            return ClassificationHead(source.labels, dim, pooling=self.pooling, label_smoothing=self.label_smoothing)
        if self.label_smoothing:
            raise InputError(f"label_smoothing={self.label_smoothing}: tags have no label smoothing; leave it out")
        return TaggingHead(source.labels, dim, pooling=self.pooling)


@final
@dataclass(frozen=True)
class ImageFrontend:
    """From pictures to tokens."""

    size: int = 64
    """Longest side of one's own pictures, in pixels; longer ones are shrunk."""
    patch: int | None = None
    """Side of a patch, in pixels; None cuts the median picture into about eight by eight."""
    stem: StemKind | None = "pooled"
    """Convolutions that read a patch: pooled, strided, or none for one linear projection."""

    def build(
        self, source: LabeledSource, trunk: TrunkConfig, pooling: Pooling, bad_examples: BadExamples
    ) -> PatchTokenizer:
        """Create a tokenizer, and fit its normalization to the training split."""

        def pictures() -> Iterator[Any]:
            train = readable_examples(source.split("train"), bad_examples=bad_examples, max_examples=MAX_FITTED_IMAGES)
            return (example.input for example in train)

        first = next(pictures(), None)
        if first is None:
            raise InputError(f"{source.name}: none of the pictures to train on can be read")
        patch = self.patch
        if patch is None:
            patch = fitted(f"{source.name}-patch", lambda: 2 ** round(math.log2(max(median_side(source), 16) / 8)))
        return PatchTokenizer(
            trunk.dim,
            patch=patch,
            channels=3 if first.ndim == 3 else 1,
            stem=self.stem,
            class_token=pooling == "cls",
            positions=trunk.input_positions,
            length=max(64, -(-self.size // max(patch, 1))),
            dropout=trunk.dropout,
        ).fit(pictures())


@final
@dataclass(frozen=True)
class ImageAugmentationConfig:
    """Changes to training pictures, and the views of each picture in validation and test."""

    crop: int | None = None
    """Shift by at most this many pixels; None takes an eighth of the sides, 0 none."""
    flip: bool = False
    """Mirror half of the pictures."""
    randaugment: int = 0
    """Magnitude of RandAugment, 1 to 9; 0 turns it off."""
    random_erasing: float = 0.0
    """Probability that a rectangle is erased."""
    mixup: float = 0.0
    """Alpha of mixup; 0 turns it off."""
    cutmix: float = 0.0
    """Alpha of CutMix; 0 turns it off."""
    num_crops: int | None = None
    """Views averaged in validation and test; None takes 5 if training shifts pictures, else 1."""

    def build(self, tokenizer: PatchTokenizer, num_classes: int) -> Augmentation | None:
        """Create the augmentation of training batches; None if all of it is off."""
        return augment_images(
            tokenizer,
            num_classes,
            crop=self.crop,
            flip=self.flip,
            randaugment=self.randaugment,
            random_erasing=self.random_erasing,
            mixup=self.mixup,
            cutmix=self.cutmix,
        )

    def tta(self, tokenizer: PatchTokenizer) -> TestTimeAugmentation | None:
        """Create the views of validation and test; None for the picture as it is."""
        num_crops = (1 if self.crop == 0 else NUM_CROPS) if self.num_crops is None else self.num_crops
        return image_tta(tokenizer, num_crops, crop=self.crop, flip=self.flip)


@final
@dataclass(frozen=True)
class AudioFrontend:
    """From sounds to tokens."""

    sample_rate: int = 16_000
    """Sounds are resampled to this rate, in Hz."""
    tokenizer: Literal["frames", "waveform"] = "frames"
    """Log-mel frames, or frames of filters that are learned from the waveform."""
    stack: int | None = None
    """Frames of 10 ms in a token; None takes 2, 4 or 8, so that a median clip has about ten tokens."""
    patch: tuple[int, int] | None = None
    """Patches of the spectrogram, in (frames, bands), instead of stacked frames."""
    stride: tuple[int, int] | None = None
    """Steps between patches; None takes the patch's sides."""
    stem: StemKind | Literal["auto"] | None = "auto"
    """Convolutions over the spectrogram: strided, pooled, or none; auto is strided for stacks and none for patches."""
    normalize: Normalization = "band"
    """Normalize over all bands (whole), each band, or each band of each example (for unheard voices or microphones)."""

    def build(
        self, source: LabeledSource, trunk: TrunkConfig, clips: "ClipStatistics", bad_examples: BadExamples
    ) -> AudioTokenizer:
        """Create a tokenizer, and fit its normalization to the training split, once for all runs."""
        if self.tokenizer == "waveform" and (self.patch or self.stride):
            raise InputError("patch and stride are for a spectrogram: with tokenizer=waveform, set stack")
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
        """The stem, with auto replaced."""
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
    """Durations of a source's sounds, in seconds; each is measured once, and a loaded or resumed run remembers it."""

    def __init__(self, source: LabeledSource, target: str) -> None:
        self._source, self._name = source, f"{source.name}-{target}"

    @cached_property
    def median(self) -> float:
        """The median duration."""
        return max(fitted(f"{self._name}-seconds", lambda: median_duration(self._source)), MIN_CLIP)

    @cached_property
    def longest(self) -> float:
        """The longest duration."""
        return fitted(f"{self._name}-longest", lambda: max_duration(self._source))


@final
@dataclass(frozen=True)
class AudioAugmentationConfig:
    """Changes to training sounds, and the crops of each sound in validation and test."""

    mixup: float = 0.0
    """Alpha of mixup; 0 turns it off."""
    speed_perturb: float = 0.0
    """Largest change of speed, as a share."""
    crop: float | None = None
    """Seconds of a training crop; None takes 6 for long clips, 0 none."""
    freq_shift: float | None = None
    """Largest shift along the bands, as a share of them; None takes 0.1, and 0 for a waveform."""
    gain: float | None = None
    """Largest change of loudness, in dB; None takes 6, and 0 for tags or normalize=example."""
    random_eq: float = 0.0
    """Largest change of single bands, in dB."""
    time_masks: int = 0
    """Number of masked stretches of time (SpecAugment)."""
    time_width: float = 0.1
    """Longest masked stretch, as a share of the sound."""
    band_masks: int = 0
    """Number of masked groups of bands (SpecAugment)."""
    band_width: float = 0.2
    """Widest masked group, as a share of the bands."""
    num_crops: int | None = None
    """Crops averaged in validation and test; None takes 5 for long clips, else 1."""
    freq_shift_tta: bool = True
    """Average over copies shifted along the bands, too, in validation and test."""

    def resolve(self, frontend: AudioFrontend, clips: ClipStatistics, target: str) -> "AudioAugmentationConfig":
        """Return the group with each None replaced. Raises InputError for options that cancel each other."""
        for name, decibels in (("gain", self.gain), ("random_eq", self.random_eq)):
            if decibels and frontend.normalize == "example":
                raise InputError(f"{name}={decibels}: normalize=example removes it again; leave one of them out")
        gain = self.gain
        if gain is None:
            gain = 0.0 if frontend.normalize == "example" or target == "tags" else 6.0
        freq_shift = self.freq_shift
        if freq_shift is None:
            freq_shift = 0.0 if frontend.tokenizer == "waveform" else 0.1
        crop, num_crops = self.crop, self.num_crops
        if crop is None:
            long = clips.median > LONG_CLIP
            piece = CROP_SECONDS if long else max(CROP_SECONDS, 1.1 * clips.median)  # a crop ends with a whole token
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
        """Create the augmentation of training batches; None if all of it is off. Needs a resolved group."""
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
        """Create the crops of validation and test; None for the whole sound. Needs a resolved group."""
        freq_shift = (self.freq_shift or 0.0) if self.freq_shift_tta else 0.0
        return audio_tta(tokenizer, self.num_crops or 1, crop=self.crop, freq_shift=freq_shift)


@final
@dataclass(frozen=True)
class ParallelTextConfig:
    """Pairs of texts: where they are, their languages, and how they are cleaned."""

    data: str = "embedded"
    """embedded (a small grammar), multi30k, a file of tab-separated pairs, two files (a,b), or a .tmx."""
    source: str = "en"
    """Language of the input."""
    target: str = "fr"
    """Language of the output; scores follow its rules."""
    val: str | None = None
    """Validation file, as `data`; None holds out pairs of `data`."""
    test: str | None = None
    """Test file, as `data`, or the year of multi30k's (2016, 2017); None holds out pairs of `data`."""
    extra: str | None = None
    """File of further training pairs."""
    length_ratio: float | None = None
    """Drop training pairs of one's own files whose lengths differ by more than this factor."""
    duplicates: Duplicates = "keep"
    """Keep or drop repeated training pairs of one's own files."""

    def build(self) -> Source:
        """Open the pairs. Raises InputError for options that the data cannot have."""
        if self.data in ("embedded", "multi30k"):
            if not self.extra and (self.length_ratio is not None or self.duplicates == "drop"):
                raise InputError(
                    f"length_ratio and duplicates are for files of your own: leave them out with data={self.data}"
                )
            if self.val is not None or (self.test is not None and self.data == "embedded"):
                raise InputError(
                    f"data={self.data} has its own val and test: set them with files of your own, "
                    "or test=2017 with multi30k"
                )
        pairs: Source
        match self.data:
            case "embedded":
                pairs = GrammarPairs(source=self.source, target=self.target)
            case "multi30k":
                pairs = Multi30k(self.source, self.target, test=self.test or "2016")
            case _:
                pairs = self._files(self.data, self.val, self.test)
        return WithExtraPairs(pairs, self._files(self.extra)) if self.extra else pairs

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{self.source}-{self.target}"

    def _files(self, train: str, val: str | None = None, test: str | None = None) -> ParallelText:
        return ParallelText(
            _split_pair(train),
            val and _split_pair(val),
            test and _split_pair(test),
            languages=(self.source, self.target),
            length_ratio=self.length_ratio,
            duplicates=self.duplicates,
        )


def _split_pair(files: str) -> Texts:
    """Return one file, or the two files around a comma."""
    source, comma, target = files.partition(",")
    return (source, target) if comma else files


@final
@dataclass(frozen=True)
class DecoderConfig:
    """The decoder of a translator, and how it is trained and searched."""

    decoder_depth: int = 4
    """Number of layers."""
    tied: Literal["all", "source", "target", "none"] = "all"
    """Embeddings that share one table: of encoder, decoder and output (all), the first or last two, or none."""
    label_smoothing: float = 0.1
    """Probability mass that is spread over the vocabulary in training."""
    r_drop: float = 0.0
    """Weight of R-Drop, which reads each batch twice; 0 turns it off."""
    beam_width: int = 1
    """Width of the beam search; 1 is greedy."""
    length_penalty: float = 1.2
    """Exponent of the length penalty."""


def learn_vocabulary(name: str, source: Source, size: int, bad_examples: BadExamples, *, targets: bool) -> Vocabulary:
    """Learn a byte-level BPE vocabulary from the training inputs, and from the target texts if `targets`.

    A loaded or resumed run takes the vocabulary from its folder.
    """

    def learn() -> Vocabulary:
        train = readable_examples(source.split("train"), bad_examples=bad_examples, max_examples=MAX_VOCABULARY_TEXTS)
        return Vocabulary.fit(
            (text for example in train for text in ((example.input, example.target) if targets else (example.input,))),
            size=size,
        )

    return fitted(name, learn)
