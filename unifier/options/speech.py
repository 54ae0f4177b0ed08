"""Settings of generated speech."""

from dataclasses import dataclass
from functools import cache
from typing import final

from unifier.data.source import Source, name_of, readable_examples
from unifier.experiment import fitted
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead, spectrogram_moments
from unifier.options.trunk import TrunkConfig
from unifier_tokenizers import Tokenizer
from unifier_tokenizers.log_mel import LogMel

MAX_FITTED_SOUNDS = 200
"""The largest number of sounds for the mean and the standard deviation of the bands, evenly spaced in the split."""
LONGER = 1.25
"""The maximum length of a generated sound, relative to the longest of the sounds that are read for the mean."""


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
