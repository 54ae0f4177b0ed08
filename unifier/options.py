"""Setting groups that recipes share. A setting group is a dataclass whose fields are settings.

The method `build` of a setting group creates an object from the settings. For the value None, `build` chooses a default
or computes a value from the data. `unifier show FILE` and `unifier run FILE --help` print the docstrings of the fields.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, final

from torch import Tensor, nn

from unifier.augmentation.audio import audio_tta, augment_audio
from unifier.augmentation.image import augment_images, image_tta
from unifier.augmentation.mixup import Mixup
from unifier.data.cache import fit_once
from unifier.data.dataloader import Augmentation, TestTimeAugmentation
from unifier.data.dataset import draw_examples
from unifier.data.packed import load_statistics
from unifier.data.source import BadExamples, LabeledSource, Source, data_folder, name_of, readable_examples, target_of
from unifier.data.statistics import max_duration, median_duration, median_side
from unifier.data.text_files import Duplicates
from unifier.datasets.arrow_tables import ArrowTable
from unifier.datasets.factory import PACKED, TABLES, open_packed, refuse_settings
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.language_pairs import LanguagePairs, language_codes
from unifier.datasets.multi30k import MULTI30K_LANGUAGES, Multi30k
from unifier.datasets.parallel_text import ParallelText, Texts, WithExtraPairs
from unifier.experiment import Task, Training, fitted
from unifier.files import print_status
from unifier.heads.classification import ClassificationHead, Pooling, TaggingHead
from unifier.heads.masked_language_modeling import MASK, MaskedLanguageModelingHead, Teacher
from unifier.heads.masked_reconstruction import MaskedReconstructionHead
from unifier.heads.regression import target_moments
from unifier.heads.replaced_token_detection import ReplacedTokenDetectionHead
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead, spectrogram_moments
from unifier.heads.transformer_decoder import TranslationHead
from unifier.models.folder import find_earlier_model, read_model, read_vocabulary
from unifier.models.hub import HUB
from unifier.models.word_table import read_word_table
from unifier.nn.experts import BALANCE_WEIGHT
from unifier.objectives.masked_patches import MaskedPatches
from unifier.objectives.masked_spans import MaskedSpans
from unifier.objectives.masked_tokens import MaskedTokens
from unifier.objectives.skip_gram import count_words
from unifier.trunks.factory import Positions, create_trunk, input_positions
from unifier.trunks.huggingface import HF, load_hf_tokenizer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import (
    FrameTokenizer,
    InputError,
    PatchTokenizer,
    PretrainedTextTokenizer,
    SeriesTokenizer,
    SubwordTokenizer,
    Tokenizer,
    Vocabulary,
    WaveformTokenizer,
    WordTokenizer,
    load_vectors,
    match_vectors,
    vector_words,
)
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.errors import check_choice, check_share
from unifier_tokenizers.log_mel import LogMel
from unifier_tokenizers.normalization import Normalization
from unifier_tokenizers.positions import PositionKind
from unifier_tokenizers.stems import StemKind
from unifier_tokenizers.text import Level

MAX_VOCABULARY_TEXTS = 1_000_000
"""The largest number of examples from which a vocabulary is learned.

The selected examples are evenly spaced in the split. More examples would cost time, but would hardly change the
vocabulary.
"""
MAX_VECTOR_WORDS = 2_000_000
"""The largest number of words of a vocabulary with word vectors."""
MAX_FITTED_IMAGES = 2000
"""The largest number of pictures for the pixels' mean and standard deviation, evenly spaced in the split."""
MAX_FITTED_SOUNDS, LONGER = 200, 1.25
"""The largest number of sounds for the mean and the standard deviation of the bands, evenly spaced in the split. The
longest generated sound is 1.25 times as long as the longest of these sounds."""
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
class TrunkConfig:
    """Settings for the architecture and the size of the trunk."""

    trunk: str = "transformer"
    """Architecture: transformer, mean_attention, gru, lstm, sha_rnn (an LSTM, then single-head attention),
    convolutional, or timm:MODEL or hf:MODEL (pretrained)."""
    dim: int = 128
    """D, the number of features of a token."""
    depth: int = 4
    """Number of layers of the trunk."""
    heads: int | None = None
    """Number of attention heads in a layer; None means one head per 64 features."""
    ffn_dim: int | None = None
    """Number of hidden features in the feed-forward layers; None means 4 * dim."""
    dropout: float = 0.1
    """Dropout probability in the trunk, the tokenizer and the decoder."""
    positions: Positions = "sinusoid"
    """Positional encoding: sinusoid, learned or concat (a quarter of the rows), rotary (in a transformer), or none."""
    drop_path: float = 0.0
    """Probability that training skips the last block; the probability is smaller for earlier blocks."""
    qk_norm: bool = False
    """Normalize the queries and keys of attention, in the trunk and in a transformer decoder."""
    scaled_residual_init: bool = False
    """Make the initial weights of residual projections smaller in deeper models, as in GPT-2."""
    share_layers: bool = False
    """Run one transformer layer `depth` times with the same weights, as in ALBERT."""
    attention_width: int | None = None
    """Local attention: a token attends to tokens at a distance below this number; None means to all tokens."""
    attention_stride: int | None = None
    """With attention_width, a token also attends to tokens whose distance is a multiple of this number."""
    dilation: int = 1
    """Factor of the distance between the tokens of a convolution, from layer to layer; 2 is as in WaveNet."""
    experts: int = 1
    """Number of feed-forward networks in each transformer layer, of which a router selects one for each token."""
    experts_per_token: int = 1
    """Number of feed-forward networks that each token uses, 1 (as in Switch) or 2."""
    balance_weight: float = BALANCE_WEIGHT
    """Factor of the training loss that gives all experts equally many tokens."""

    @property
    def input_positions(self) -> PositionKind:
        """The positional encoding that the tokenizer adds."""
        return input_positions(self.positions)

    def build(self, *, causal: bool = False) -> Trunk:
        """Create the trunk, or raise InputError if the architecture does not support an option.

        Args:
            causal: True for heads that predict the next token (see `create_trunk`).
        """
        # Only a transformer supports `qk_norm` and `scaled_residual_init`.
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
            share_layers=self.share_layers,
            attention_width=self.attention_width,
            attention_stride=self.attention_stride,
            dilation=self.dilation,
            experts=self.experts,
            experts_per_token=self.experts_per_token,
            balance_weight=self.balance_weight,
            causal=causal,
        )


@final
@dataclass(frozen=True)
class ClassifierConfig:
    """Settings of a head that classifies or tags."""

    pooling: Pooling = "mean"
    """Pooling of the tokens: mean (of all), cls (class token), attention (a learned weighted mean), or last (token)."""
    label_smoothing: float = 0.0
    """Share of the target probability that is spread over all classes in training."""

    def build(
        self, source: LabeledSource, dim: int, *, tags: bool = False, class_token: bool = True
    ) -> ClassificationHead | TaggingHead:
        """Create a head for the source's labels.

        Args:
            source: A data set with labels.
            dim: D, the number of features of a token.
            tags: True if an example may have several labels.
            class_token: True if the tokenizer can add a class token before the other tokens.
        """
        if self.pooling == "cls" and not class_token:
            raise InputError("pooling=cls: this tokenizer has no class token; set pooling=mean or pooling=attention")
        if not tags:
            return ClassificationHead(source.labels, dim, pooling=self.pooling, label_smoothing=self.label_smoothing)
        if self.label_smoothing:
            raise InputError(
                f"label_smoothing={self.label_smoothing}: tagging does not support label smoothing; leave it out"
            )
        return TaggingHead(source.labels, dim, pooling=self.pooling)


@final
@dataclass(frozen=True)
class ImageFrontend:
    """Settings of the tokenizer for pictures."""

    size: int = 64
    """Longest side of your own pictures, in pixels; larger pictures are shrunk."""
    patch: int | None = None
    """Side of a patch, in pixels; with None, a picture of median size is cut into about 8 x 8 patches."""
    stem: StemKind | None = "pooled"
    """Layers that read a patch: pooled or strided convolutions, or none for a single linear projection."""

    def build(
        self, source: LabeledSource, trunk: TrunkConfig, pooling: Pooling, bad_examples: BadExamples
    ) -> PatchTokenizer:
        """Create a tokenizer, and compute its normalization from the training split."""

        def pictures() -> Iterator[Any]:
            train = readable_examples(source.split("train"), bad_examples=bad_examples, max_examples=MAX_FITTED_IMAGES)
            return (example.input for example in train)

        first = next(pictures(), None)
        if first is None:
            raise InputError(
                f"{source.name}: no picture in the training split can be read; check the files of the data set"
            )
        patch = self.patch
        if patch is None:
            patch = fitted(
                f"{source.name}-patch", lambda: 2 ** round(math.log2(max(median_side(source), 16) / 8)), source
            )
        tokenizer = PatchTokenizer(
            trunk.dim,
            patch=patch,
            channels=3 if first.ndim == 3 else 1,
            stem=self.stem,
            class_token=pooling == "cls",
            positions=trunk.input_positions,
            length=max(64, -(-self.size // max(patch, 1))),
            dropout=trunk.dropout,
        )
        return tokenizer if load_statistics(tokenizer, source) else tokenizer.fit(pictures())


@final
@dataclass(frozen=True)
class ImageAugmentationConfig:
    """Settings for the random changes of training pictures, and for the views in validation and test."""

    crop: int | None = None
    """Largest random shift, in pixels; None means an eighth of each side, and 0 means no shift."""
    flip: bool = False
    """Mirror half of the pictures left to right."""
    randaugment: int = 0
    """Magnitude of RandAugment, from 1 to 9; 0 turns RandAugment off."""
    random_erasing: float = 0.0
    """Probability that a random rectangle of a picture is erased."""
    mixup: float = 0.0
    """Parameter alpha of mixup; 0 turns mixup off."""
    cutmix: float = 0.0
    """Parameter alpha of CutMix; 0 turns CutMix off."""
    num_crops: int | None = None
    """Number of views that validation and test average; None means 5 if training shifts pictures, else 1."""

    def build(self, tokenizer: PatchTokenizer, num_classes: int) -> Augmentation | None:
        """Create the augmentation of training batches. Return None if every change is turned off."""
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
        """Create the views for validation and test. Return None if only the picture itself is used."""
        num_crops = (1 if self.crop == 0 else NUM_CROPS) if self.num_crops is None else self.num_crops
        return image_tta(tokenizer, num_crops, crop=self.crop, flip=self.flip)


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


@final
@dataclass(frozen=True)
class SpectrogramDecoderConfig:
    """Settings of a decoder that writes the spectrogram of a spoken text."""

    sample_rate: int = 8000
    """Sounds are resampled to this rate, in Hz."""
    win_length: float = 0.025
    """Length of the window of a frame, in seconds."""
    hop_length: float = 0.010
    """Time from one frame to the next, in seconds."""
    n_mels: int = 64
    """Number of mel bands of a frame."""
    reduction: int = 5
    """Number of frames that the decoder writes per step."""
    decoder_depth: int = 3
    """Number of layers of the decoder."""
    prenet_dropout: float = 0.5
    """Dropout probability of the last frame that the decoder reads, also in prediction, as in Tacotron 2."""
    frame_dropout: float = 0.4
    """Probability that a step of training reads the mean frame in place of the last frame."""
    sharpening: float = 1.2
    """Factor of the distance from the mean frame in the sound; 1 changes nothing."""
    guided_attention: float = 1.0
    """Weight of the loss that keeps half of the decoder's attention heads near the diagonal; 0 turns it off."""
    max_seconds: float | None = None
    """Maximum length of a generated sound; None means 1.25 times the longest of some training sounds."""

    def build(self, source: Source, tokenizer: Tokenizer, trunk: TrunkConfig) -> SpectrogramDecoderHead:
        """Create a head, and compute the mean and the standard deviation of each band from training sounds.

        A loaded or resumed run reads the numbers from the run's folder.

        Args:
            source: A data set whose targets are sounds.
            tokenizer: The tokenizer of the texts.
            trunk: The settings of the trunk.
        """
        log_mel, name = LogMel(self.sample_rate, self.win_length, self.hop_length, self.n_mels), name_of(source)

        @cache
        def measure() -> tuple[tuple[list[float], list[float]], float, float]:
            train = readable_examples(source.split("train"), max_examples=MAX_FITTED_SOUNDS)
            pairs = [(log_mel.spectrogram(sound), tokenizer.encode(text)) for text, sound in train]
            frames = [spectrogram.shape[1] for spectrogram, _ in pairs]
            tokens = sum(units.values.shape[-1] for _, units in pairs)
            moments = spectrogram_moments([spectrogram for spectrogram, _ in pairs])
            return moments, max(frames) * log_mel.frame_seconds, sum(frames) / tokens

        mean, std = (
            [
                fitted(f"{name}-{key}-{k}", lambda k=k, part=part: measure()[0][part][k], source)
                for k in range(self.n_mels)
            ]
            for part, key in enumerate(("mean", "std"))
        )
        longest = fitted(f"{name}-longest", lambda: measure()[1], source)
        frames_per_token = fitted(f"{name}-frames", lambda: measure()[2], source)
        return SpectrogramDecoderHead(
            trunk.dim,
            log_mel=log_mel,
            mean=mean,
            std=std,
            max_seconds=LONGER * longest if self.max_seconds is None else self.max_seconds,
            reduction=self.reduction,
            steps_per_token=frames_per_token / self.reduction,
            depth=self.decoder_depth,
            heads=trunk.heads,
            ffn_dim=trunk.ffn_dim,
            dropout=trunk.dropout,
            prenet_dropout=self.prenet_dropout,
            frame_dropout=self.frame_dropout,
            guided_attention=self.guided_attention,
            sharpening=self.sharpening,
        )


@final
@dataclass(frozen=True)
class SeriesFrontend:
    """Settings for the tokens of a time series."""

    context: int = 336
    """Number of time steps that the model reads."""
    patch: int = 16
    """Number of time steps of a patch."""
    stride: int = 8
    """Step from one patch to the next, in time steps."""

    def build(self, trunk: TrunkConfig) -> SeriesTokenizer:
        """Create a tokenizer with the width, the positions and the dropout of the trunk."""
        return SeriesTokenizer(
            trunk.dim,
            context=self.context,
            patch=self.patch,
            stride=self.stride,
            positions=trunk.input_positions,
            dropout=trunk.dropout,
        )


@final
@dataclass(frozen=True)
class MaskedTextConfig:
    """Settings of a masked language model, which learns from texts without labels."""

    vocabulary: int = 4000
    """Number of subwords in the vocabulary; with start=RUN, the vocabulary of the trained model is used."""
    hidden_share: float = 0.15
    """Share of the subwords of a text that are hidden and predicted."""
    unit: Literal["subwords", "words"] = "subwords"
    """Kind of token: subwords for the recipes of texts, or words with their letters for token_classification."""
    objective: Literal["masked", "replaced", "spans"] = "masked"
    """masked (BERT) predicts hidden subwords, replaced (ELECTRA) finds false ones, and spans (BART) writes the text."""
    generator_dim: int | None = None
    """Number of features of a token in the generator of objective=replaced; None means dim / 2."""
    teacher: str | None = None
    """Trained model of objective=masked whose soft predictions are learned too (DistilBERT): a run or a model."""

    def build(
        self, source: Source, name: str, trunk: TrunkConfig, training: Training, *, residues: bool = False
    ) -> Task:
        """Create a task. The head predicts the hidden subwords with the tokenizer's embedding.

        Args:
            source: The texts.
            name: The name of the task.
            trunk: The settings of the trunk.
            training: The settings of the training.
            residues: True if each character of a text is a token, as in proteins. The tokenizer is that of the recipe
                `token_classification`.

        Raises:
            InputError: If a setting does not belong to the objective.
        """
        check_choice("objective", self.objective, ("masked", "replaced", "spans"))
        check_share("hidden_share", self.hidden_share)
        words = check_choice("unit", self.unit, ("subwords", "words")) == "words"
        if words and (residues or self.objective != "masked"):
            raise InputError("unit=words: only objective=masked hides words, and proteins have no words; leave it out")
        if self.teacher is not None and self.objective != "masked":
            raise InputError(f"teacher={self.teacher}: only objective=masked has a teacher; leave it out")
        if self.generator_dim is not None and self.objective != "replaced":
            raise InputError(
                f"generator_dim={self.generator_dim}: only objective=replaced has a generator; leave it out"
            )
        if self.teacher is not None and training.start is None:
            training = replace(training, start=self.teacher, start_tokenizers=True)  # The vocabularies must be equal.
        options: dict[str, Any] = {"positions": trunk.input_positions, "dropout": trunk.dropout}
        if residues:
            subwords = learn_word_vocabulary(source, name, self.vocabulary, training, level="character", extra=(MASK,))
            tokenizer = WordTokenizer(
                subwords, trunk.dim, split="characters", letters=0, lowercase=False, word_dropout=0.0, **options
            )
        elif words:
            subwords = learn_word_vocabulary(source, name, self.vocabulary, training, extra=(MASK,))
            tokenizer = WordTokenizer(subwords, trunk.dim, **options)
        else:
            subwords = learn_vocabulary(name, source, self.vocabulary, training, extra=(MASK,))
            tokenizer = SubwordTokenizer(subwords, trunk.dim, **options)
        if self.objective == "replaced":
            detector = ReplacedTokenDetectionHead(
                subwords,
                trunk.dim,
                embedding=tokenizer.embedding,
                generator_dim=self.generator_dim,
                generator_depth=trunk.depth,
                dropout=trunk.dropout,
            )
            hidden = MaskedTokens(subwords, self.hidden_share, mask_share=1.0, random_share=0.0)
            return Task(source, tokenizer, detector, objective=hidden)
        if self.objective == "spans":
            decoder = DecoderConfig(decoder_depth=trunk.depth, length_penalty=1.0)
            writer = decoder.build(subwords, trunk, tokenizer.embedding)
            return Task(source, tokenizer, writer, objective=MaskedSpans(subwords, self.hidden_share))
        head = MaskedLanguageModelingHead(subwords, trunk.dim, embedding=tokenizer.embedding)
        if self.teacher is not None:
            head.learn_from(_read_teacher(self.teacher))
        return Task(source, tokenizer, head, objective=MaskedTokens(subwords, self.hidden_share))


def _read_teacher(folder: str) -> Teacher:
    """Read a trained masked language model. Raises InputError if the model has another kind of head."""
    stored = read_model(find_earlier_model(folder))
    for task in stored.tasks.values():
        if isinstance(task.head, MaskedLanguageModelingHead):
            return Teacher(task.tokenizer, stored.trunk, task.head, stored.name, stored.sha256, stored.facts)
    raise InputError(f"teacher={folder}: this model predicts no hidden words; give a run of pretrain, objective=masked")


@final
@dataclass(frozen=True)
class MaskedPatchesConfig:
    """Settings of a masked autoencoder, which learns from pictures, sounds or series without labels."""

    hidden_patches: float = 0.75
    """Share of the patches or frames that are hidden from the trunk and predicted by the decoder."""
    decoder_depth: int = 2
    """Number of layers of the decoder that predicts the hidden patches or frames."""
    decoder_width: int | None = None
    """Number of features of a token in the decoder; None means about half of dim."""

    def build(
        self,
        source: Source,
        tokenizer: PatchTokenizer | AudioTokenizer | SeriesTokenizer,
        augmentation: Augmentation | None = None,
    ) -> Task:
        """Create a task, or raise InputError if the tokenizer's patches or frames cannot be hidden."""
        check_share("hidden_patches", self.hidden_patches)
        objective = MaskedPatches(tokenizer, self.hidden_patches)
        head = MaskedReconstructionHead(
            objective.num_values, tokenizer.dim, width=self.decoder_width, depth=self.decoder_depth
        )
        return Task(source, tokenizer, head, augmentation=augmentation, objective=objective)


LANGUAGES: dict[str, tuple[str, ...]] = {"embedded": ("en", "fr"), "multi30k": MULTI30K_LANGUAGES}
"""The languages of the data sets that have several pairs of languages."""


@final
@dataclass(frozen=True)
class ParallelTextConfig:
    """Settings for the files, the languages and the cleaning of text pairs."""

    data: str = "embedded"
    """Pairs: embedded (a grammar), multi30k, a file of tab-separated pairs, two files (a,b), .tmx, or parquet:DIR."""
    source: str = "en"
    """Language of the input, several languages such as en,de, or all."""
    target: str = "fr"
    """Language of the output; for several languages, such as de,fr or all, an input begins with its code <de>."""
    val: str | None = None
    """Validation pairs, in one of the formats of `data`; None means that pairs of `data` are held out."""
    test: str | None = None
    """Test pairs, or the year of multi30k's test pairs (2016, 2017); None means that pairs of `data` are held out."""
    extra: str | None = None
    """File with additional training pairs, in one of the formats of `data`."""
    length_ratio: float | None = None
    """Drop a training pair of your own files if the lengths of the two texts differ by more than this factor."""
    duplicates: Duplicates = "keep"
    """Keep or drop repeated training pairs of your own files."""
    examples: int | None = None
    """Number of training pairs of each pair of languages, drawn at random; None means all."""

    def build(self) -> Source:
        """Open the pairs, or raise InputError if an option does not apply to the data."""
        directions = self.directions
        if not self.codes:
            return self._build() if self.examples is None else draw_examples(self._build(), self.examples)
        if self.data not in LANGUAGES or self.extra:
            raise InputError(
                f"source={self.source}, target={self.target}: only data={' and data='.join(LANGUAGES)} without `extra` "
                "have several pairs of languages; give one source and one target"
            )
        return LanguagePairs(
            {(source, target): replace(self, source=source, target=target).build() for source, target in directions}
        )

    def _build(self) -> Source:
        if self.data.startswith(PACKED):
            given = {name: getattr(self, name) for name in ("val", "test", "extra", "length_ratio", "examples")}
            return open_packed(self.data, **given, duplicates=None if self.duplicates == "keep" else self.duplicates)
        if self.data.startswith(TABLES):
            given = {name: getattr(self, name) for name in ("val", "test", "extra", "length_ratio")}
            refuse_settings(self.data, **given, duplicates=None if self.duplicates == "keep" else self.duplicates)
            return ArrowTable(self.data, "pair", languages=(self.source, self.target))
        if self.data in ("embedded", "multi30k"):
            if not self.extra and (self.length_ratio is not None or self.duplicates == "drop"):
                raise InputError(
                    f"length_ratio and duplicates are for your own files only: leave both out with data={self.data}"
                )
            if self.val is not None or (self.test is not None and self.data == "embedded"):
                raise InputError(
                    f"data={self.data} has its own val and test splits: set val and test only with your own files, "
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
        return "languages" if self.codes else f"{self.source}-{self.target}"

    @property
    def language(self) -> str:
        """The code of the output language, or "mul" for several pairs of languages (ISO 639-2)."""
        return "mul" if self.codes else self.target

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the output languages, such as "<de>". A single pair of languages has no codes."""
        directions = self.directions
        is_single = directions == [(self.source, self.target)]
        return () if is_single else language_codes([target for _, target in directions])

    @property
    def directions(self) -> list[tuple[str, str]]:
        """The pairs of an input language and another output language, or raise InputError if there is no pair."""
        if not any("," in languages or languages == "all" for languages in (self.source, self.target)):
            return [(self.source, self.target)]
        sources, targets = (
            LANGUAGES.get(self.data, ()) if languages == "all" else tuple(dict.fromkeys(languages.split(",")))
            for languages in (self.source, self.target)
        )
        directions = [(source, target) for source in sources for target in targets if source != target]
        if not directions:
            raise InputError(f"source={self.source}, target={self.target}: give at least two different languages")
        return directions

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
    """Return the two files before and after the comma, or the only file if there is no comma."""
    source, comma, target = files.partition(",")
    return (source, target) if comma else files


@final
@dataclass(frozen=True)
class DecoderConfig:
    """Settings for the decoder of a translator, its training loss and its search."""

    decoder_depth: int = 4
    """Number of layers of the decoder."""
    tied: Literal["all", "source", "target", "none"] = "all"
    """Embeddings with shared weights: all, source (encoder and decoder), target (decoder and output), or none."""
    label_smoothing: float = 0.1
    """Share of the target probability that is spread over the vocabulary in training."""
    r_drop: float = 0.0
    """Weight of the R-Drop loss, which needs two passes per batch; 0 turns R-Drop off."""
    beam_width: int = 1
    """Width of the beam search; 1 means greedy search."""
    length_penalty: float = 1.2
    """Exponent p: a text's score is its log-probability divided by length ** p."""

    def build(
        self, vocabulary: Vocabulary, trunk: TrunkConfig, embedding: nn.Embedding | None, **others: Any
    ) -> TranslationHead:
        """Create a head whose blocks have the sizes of the trunk's blocks.

        Args:
            vocabulary: The vocabulary of the target texts.
            trunk: The settings of the trunk.
            embedding: See `options`.
            others: `language`, `scores` and `longest` (see `TextGenerationOptions`).

        Raises:
            InputError: If R-Drop would have no effect.
        """
        if self.r_drop and not trunk.dropout:
            raise InputError(f"r_drop={self.r_drop} has no effect with dropout=0: set dropout above 0, or set r_drop=0")
        return TranslationHead(
            vocabulary,
            trunk.dim,
            depth=self.decoder_depth,
            heads=trunk.heads,
            ffn_dim=trunk.ffn_dim,
            dropout=trunk.dropout,
            qk_norm=trunk.qk_norm,
            scaled_residual_init=trunk.scaled_residual_init,
            **self.options(embedding),
            **others,
        )

    def options(self, embedding: nn.Embedding | None) -> dict[str, Any]:
        """Return the options of every head that writes texts. The head shares the tokenizer's embedding if it is tied.

        Args:
            embedding: The embedding of the tokenizer, or None if the tokenizer has none of the vocabulary.
        """
        return {
            "label_smoothing": self.label_smoothing,
            "r_drop": self.r_drop,
            "beam_width": self.beam_width,
            "length_penalty": self.length_penalty,
            "embedding": embedding if self.tied in ("all", "source") else None,
            "tied": self.tied in ("all", "target"),
        }


@final
@dataclass(frozen=True)
class WordVectorConfig:
    """Settings of word vectors, which replace the learned embeddings of words."""

    vectors: str | None = None
    """Word vectors: glove in the data folder, a run of word_vectors, a text file, or ARRAY.npz,WORDS.txt."""
    train_vectors: bool = False
    """Train the word vectors, too."""

    def __post_init__(self) -> None:
        if self.train_vectors and self.vectors is None:
            raise InputError("train_vectors=true: only vectors=FILE gives word vectors; leave it out")

    def load(self, name: str, source: Source, training: Training) -> tuple[Vocabulary, Tensor]:
        """Return a vocabulary of words with their vectors (V, E), and print the share of words that have a vector.

        The vocabulary contains all words of the training inputs and of the vectors, in lower case if the vectors
        contain no capital letters. Words without a vector get random vectors. A loaded or resumed run reads the
        vocabulary and the share from the run's folder.

        Args:
            name: The name under which the run stores the vocabulary. The share is stored as "<name>-coverage".
            source: The texts, or sequences of words.
            training: The setting `bad_examples`.

        Raises:
            InputError: The vectors cannot be read, or none of them belongs to a word of the vocabulary.
        """
        assert self.vectors is not None
        files, trained = self.vectors, dict[str, Tensor]()
        if files == "glove":
            folder = data_folder("word_vectors")
            files = f"{folder / 'glove_100d_20k.npz'},{folder / 'glove_words.txt'}"
        elif files.startswith(HUB) or Path(files).is_dir():
            trained |= read_word_table(find_earlier_model(files))
        words = [*trained] or vector_words(files)

        def learn() -> Vocabulary:
            lowercase = all(word == word.lower() for word in words)
            texts = chain(_training_texts(source, training), words)
            return Vocabulary.fit(texts, size=MAX_VECTOR_WORDS, level="word", lowercase=lowercase)

        def cover() -> float:
            counts, known = count_training_words(vocabulary, source, training), {*words}
            has_vector = Tensor([token in known for token in vocabulary.tokens(range(len(vocabulary)))]).bool()
            occurs = counts > 0
            share, different = (
                100 * float(part[has_vector].sum() / part.sum()) for part in (counts.double(), occurs.double())
            )
            print_status(
                f"{name}: vectors={self.vectors} have {share:.1f} % of the words of train, "
                f"and {different:.1f} % of its {int(occurs.sum()):,} different words"
            )
            return share

        vocabulary = fitted(name, learn, source)
        fitted(f"{name}-coverage", cover, source)
        table = match_vectors(trained, vocabulary, files) if trained else load_vectors(files, vocabulary)
        return vocabulary, table


def learn_vocabulary(
    name: str,
    source: Source,
    size: int,
    training: Training,
    *,
    targets: bool = False,
    level: Level = "bpe",
    extra: Sequence[str] = (),
) -> Vocabulary:
    """Learn a vocabulary from the training inputs, or take over the vocabulary of a trained model.

    An input or a target is a text, a sequence of texts, or a mapping with texts. A run that starts from a trained model
    with texts takes over the vocabulary, so the tokenizer's weights keep their meaning. With `start_tokenizers=False`,
    the vocabulary is always learned. A loaded or resumed run reads the vocabulary from the run's folder.

    Args:
        name: The name under which the run stores the vocabulary (see `fitted`).
        source: The data set.
        size: The maximum number of entries of a learned vocabulary.
        training: The settings `start`, `start_tokenizers` and `bad_examples`.
        targets: Learn the target texts too.
        level: The kind of subword of a learned vocabulary.
        extra: The names of extra entries of a learned vocabulary, such as "<mask>".
    """

    def learn() -> Vocabulary:
        if (trained := _trained_vocabulary(name, training, SubwordTokenizer)) is not None:
            return trained
        train = readable_examples(
            source.split("train"), bad_examples=training.bad_examples, max_examples=MAX_VOCABULARY_TEXTS
        )
        pairs = (example if targets else (example.input,) for example in train)
        texts = (text for pair in pairs for part in pair for text in _texts_of(part))
        return Vocabulary.fit(texts, size=size, level=level, extra=extra)

    return fitted(name, learn, source)


def learn_words(name: str, source: Source, size: int, training: Training) -> Vocabulary:
    """Learn a vocabulary of words in lower case from the training inputs.

    Args:
        name: The name under which the run stores the vocabulary (see `fitted`).
        source: The texts.
        size: The maximum number of words.
        training: The setting `bad_examples`.
    """
    return fitted(
        name, lambda: Vocabulary.fit(_training_texts(source, training), size=size, level="word", lowercase=True)
    )


def count_training_words(vocabulary: Vocabulary, source: Source, training: Training) -> Tensor:
    """Return how often each word of a vocabulary occurs in the training inputs (V,).

    Args:
        vocabulary: The vocabulary with V words.
        source: The texts, or sequences of words.
        training: The setting `bad_examples`.
    """
    return count_words(vocabulary, _training_texts(source, training))


def _training_texts(source: Source, training: Training) -> Iterator[str]:
    """Yield the training inputs. The words of a sequence are joined."""
    train = readable_examples(
        source.split("train"), bad_examples=training.bad_examples, max_examples=MAX_VOCABULARY_TEXTS
    )
    return (" ".join(_texts_of(example.input)) for example in train)


def fitted_moments(source: LabeledSource) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of each number of the training targets, for a `RegressionHead`.

    A loaded or resumed run reads the numbers from the run's folder.
    """

    @cache
    def moments() -> tuple[list[float], list[float]]:
        train = source.split("train")
        return target_moments(target_of(train, index) for index in range(len(train)))

    mean, std = (
        [
            fitted(f"{source.name}-{name}-{k}", lambda k=k, part=part: moments()[part][k], source)
            for k in range(len(source.labels))
        ]
        for part, name in enumerate(("mean", "std"))
    )
    return mean, std


def load_tokenizer(name: str, trunk: TrunkConfig) -> PretrainedTextTokenizer:
    """Load the tokenizer of a pretrained model for text, named hf:FOLDER or hf:USER/NAME.

    Raises:
        InputError: The model has no such tokenizer, or another width than the trunk.
    """
    if not name.startswith(HF):
        raise InputError(f"tokenizer={name}: give hf:FOLDER or hf:USER/NAME, or leave the setting out")
    tokenizer = load_hf_tokenizer(name.removeprefix(HF), dropout=trunk.dropout)
    if tokenizer.dim != trunk.dim:
        raise InputError(f"dim={trunk.dim}, but tokenizer={name} has D = {tokenizer.dim}: set dim={tokenizer.dim}")
    return tokenizer


def _trained_vocabulary(name: str, training: Training, kind: type[Tokenizer]) -> Vocabulary | None:
    """Return the vocabulary of the trained model that a run starts from, or None if there is no such vocabulary."""
    if training.start is None or not training.start_tokenizers:
        return None
    return read_vocabulary(find_earlier_model(training.start), name, kind)


def _texts_of(part: str | Sequence[str] | Mapping[str, str]) -> Iterable[str]:
    """Return the texts of an input or a target."""
    if isinstance(part, str):
        return (part,)
    return part.values() if isinstance(part, Mapping) else part


def learn_word_vocabulary(
    source: Source, name: str, size: int, training: Training, *, level: Level = "bpe", extra: Sequence[str] = ()
) -> Vocabulary:
    """Learn the subwords of texts or sequences of words, in lower case, or the characters of texts with their case.

    The vocabulary of a trained model is taken over as in `learn_vocabulary`. A loaded or resumed run reads the
    vocabulary from the run's folder.

    Args:
        source: The data set.
        name: The name under which the run stores the vocabulary.
        size: The maximum number of entries of the vocabulary.
        training: The settings `start`, `start_tokenizers` and `bad_examples`.
        level: The kind of subword. Only "character" keeps the case.
        extra: The names of extra entries, such as "<mask>".
    """

    def learn() -> Vocabulary:
        if (trained := _trained_vocabulary(name, training, WordTokenizer)) is not None:
            return trained
        train = readable_examples(
            source.split("train"), bad_examples=training.bad_examples, max_examples=MAX_VOCABULARY_TEXTS
        )
        if level == "character":
            return Vocabulary.fit((example.input for example in train), size=size, level=level, extra=extra)
        texts = (" ".join(_texts_of(example.input)) for example in train)
        return Vocabulary.fit(map(str.lower, texts), size=size, level=level, extra=extra)

    return fitted(name, learn, source)
