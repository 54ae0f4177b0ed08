"""A head that writes a spectrogram, several frames per step, from the tokens of a text: speech synthesis."""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.cepstral_distortion import cepstral_distortion
from unifier.heads.head import IGNORE_INDEX, count_examples
from unifier.heads.summed_metrics import SummedHead, percent
from unifier.nn.attention import KVCache, build_attention_mask
from unifier.nn.block import Block, Norm, init_weights
from unifier.nn.feed_forward import Activation
from unifier.nn.linear import Linear
from unifier.nn.precision import LayerNorm, in_float32, to_compute_dtype
from unifier.trunks.transformer import default_heads
from unifier.trunks.trunk import check_depth
from unifier_tokenizers import Audio, Dropout, InputError, PositionalEncoding, Tokens
from unifier_tokenizers.errors import check_fraction
from unifier_tokenizers.log_mel import LogMel

GUIDE_WIDTH = 0.2
"""Width g of the diagonal in which guided attention has a small loss (Tachibana et al. 2018)."""

END_WEIGHT = 5.0
"""Weight of the step that ends a sound in the loss of the end. Only one step of a sound is the end."""

KERNEL_SIZE, NUM_CONVOLUTIONS = 5, 3
"""Number of frames that a convolution of the post-net reads, and number of its convolutions."""


@final
class Speech(NamedTuple):
    """A generated spectrogram."""

    spectrogram: Tensor
    """The natural logarithms of the power of the mel bands (F, frames)."""
    attention: Tensor
    """The attention (steps, N) from each step to the tokens of the text. Each row sums to 1."""
    ended: bool
    """True if the head ended the sound. False if the sound reached the maximum length."""


@final
class PreNet(nn.Module):
    """Two layers with dropout between the last frame and the decoder (Wang et al. 2017, section 3.2).

    As in Tacotron 2 (Shen et al. 2018, section 2.2), dropout stays on in evaluation. There, the dropped entries depend
    only on the step, so equal texts give equal sounds, alone and in a batch.
    """

    keep: Tensor

    def __init__(self, bands: int, width: int, dropout: float, steps: int) -> None:
        """Build the layers.

        Args:
            bands: F, the number of bands of a frame.
            width: The number of features of the output.
            dropout: The dropout probability of both layers.
            steps: The number of steps after which the dropped entries of evaluation repeat.
        """
        super().__init__()
        self.layers = nn.ModuleList([Linear(bands, width), Linear(width, width)])
        self.dropout = Dropout(dropout)
        drawn = torch.rand(len(self.layers), steps, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("keep", (drawn >= dropout) / (1 - dropout), persistent=False)

    def forward(self, frames: Tensor, start: int) -> Tensor:
        """Return the features (B, T, width) of frames (B, T, F) before the steps from `start` on."""
        index = torch.arange(start, start + frames.shape[1], device=frames.device) % self.keep.shape[1]
        x = to_compute_dtype(frames)
        for layer, keep in zip(self.layers, self.keep, strict=True):
            x = torch.relu(layer(x))
            x = self.dropout(x) if self.training else x * keep[index].to(x.dtype)
        return x


@final
class PostNet(nn.Module):
    """Convolutions that correct a spectrogram from the frames before and after (Shen et al. 2018, section 2.2)."""

    def __init__(self, bands: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(bands, bands, KERNEL_SIZE, padding=KERNEL_SIZE // 2) for _ in range(NUM_CONVOLUTIONS)
        )
        self.dropout = Dropout(dropout)
        init_weights(self)

    def forward(self, frames: Tensor, real: Tensor) -> Tensor:
        """Return the correction (B, L, F) of frames (B, L, F). `real` (B, L) is False for padding."""
        x = to_compute_dtype(frames).mT
        for number, layer in enumerate(self.layers, start=1):
            x = layer(x * real[:, None].to(x.dtype))  # Zeros follow the last frame, as in an input without padding.
            if number < NUM_CONVOLUTIONS:
                x = self.dropout(torch.tanh(x))
        return x.mT.float()


@final
class SpectrogramDecoderHead(SummedHead):
    """A transformer decoder that writes r frames of a log-mel spectrogram per step, and when the sound ends.

    A target is an `Audio`. A prediction is a `Speech`, and `to_sound` makes it audible. Each step reads the last frame
    of the step before through a pre-net, and attends to the tokens of the text. A post-net corrects all frames at the
    end (Li et al. 2019, Neural Speech Synthesis with Transformer Network).

    The loss of a sound has three terms. The first is the mean absolute error of the normalized frames, before and after
    the post-net. The second is the cross-entropy of the end. The third is the loss of guided attention, which keeps
    half of the attention heads of each layer near the diagonal, because a text is spoken from left to right.
    """

    lower_is_better = frozenset({"mcd_sl", "mcd", "seconds_error", "unfinished"})
    max_score = None
    task_tag = "text-to-speech"

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        dim: int,
        *,
        log_mel: LogMel,
        mean: Sequence[float],
        std: Sequence[float],
        max_seconds: float,
        reduction: int = 5,
        steps_per_token: float = 1.0,
        depth: int = 3,
        heads: int | None = None,
        ffn_dim: int | None = None,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.1,
        prenet_dropout: float = 0.5,
        frame_dropout: float = 0.4,
        guided_attention: float = 1.0,
        sharpening: float = 1.2,
    ) -> None:
        """Build the head.

        Args:
            dim: D, the number of features of a token.
            log_mel: The spectrogram of a sound, with F bands.
            mean: The mean of each band over the train split (see `spectrogram_moments`).
            std: The standard deviation of each band over the train split.
            max_seconds: The maximum length of a generated sound, in seconds.
            reduction: r, the number of frames per step.
            steps_per_token: The typical number of steps per token of a text. The position of a step is divided by this
                number, so steps and tokens at the same place have similar positions (Ping et al. 2018).
            depth: Number of blocks, at least 1.
            heads: `Transformer` explains the arguments from `heads` to `activation`.
            dropout: The dropout probability in the blocks and in the post-net.
            prenet_dropout: The dropout probability in the pre-net, in training and in evaluation.
            frame_dropout: The probability that a step of training reads the mean frame in place of the last frame. Then
                the decoder must read the text (Liu et al. 2019, Maximizing Mutual Information for Tacotron).
            guided_attention: The weight of the loss of guided attention. 0 turns guided attention off.
            sharpening: The factor of the distance from the mean frame in `to_sound`. A decoder predicts means of
                recordings, which are too smooth (Wang et al. 2017, section 3.4). 1 changes nothing.
        """
        super().__init__()
        check_depth(depth, 1)
        bands = log_mel.n_mels
        if not len(mean) == len(std) == bands or not min(std) > 0:
            raise InputError(f"{len(mean)} means, {len(std)} deviations: give {bands} of each, and deviations above 0")
        if reduction < 1 or not log_mel.frame_seconds <= max_seconds < math.inf:
            raise InputError(
                f"reduction={reduction}, max_seconds={max_seconds}: give at least 1 frame per step, and a finite "
                f"length of at least one frame ({log_mel.frame_seconds:g} s)"
            )
        if not 0 < steps_per_token < math.inf:
            raise InputError(f"steps_per_token={steps_per_token}: a finite number above 0 is needed")
        if not 0 <= guided_attention < math.inf:
            raise InputError(f"guided_attention={guided_attention}: a finite number of at least 0 is needed")
        if not 0 < sharpening < math.inf:
            raise InputError(f"sharpening={sharpening}: a finite number above 0 is needed")
        self.dim, self.log_mel, self.reduction, self.guided_attention = dim, log_mel, reduction, guided_attention
        self.steps_per_token, self.sharpening = steps_per_token, sharpening
        self.register_buffer("mean", torch.tensor([*mean], dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor([*std], dtype=torch.float32), persistent=False)
        self.max_steps = math.ceil(max_seconds / log_mel.frame_seconds / reduction)
        self.prenet = PreNet(bands, dim, check_fraction("prenet_dropout", prenet_dropout), self.max_steps)
        self.encoding = PositionalEncoding("sinusoid", dim, ())
        self.dropout = Dropout(dropout)
        self.frame_dropout = Dropout(check_fraction("frame_dropout", frame_dropout))
        heads = default_heads(dim) if heads is None else heads
        ffn_dim = 4 * dim if ffn_dim is None else ffn_dim
        self.blocks = nn.ModuleList(
            Block(dim, heads, ffn_dim, cross=True, norm=norm, activation=activation, dropout=dropout)
            for _ in range(depth)
        )
        self.norm = LayerNorm(dim) if norm == "pre" else nn.Identity()
        self.frames, self.end = nn.Linear(dim, reduction * bands), nn.Linear(dim, 1)
        self.postnet = PostNet(bands, dropout)

    def encode(self, target: object) -> Tensor:
        """Return the log-mel spectrogram (F, frames) of an `Audio`."""
        if not isinstance(target, Audio):
            raise InputError(f"the target is a {type(target).__name__}: an Audio(waveform, sample_rate) is expected")
        return self.log_mel.spectrogram(target)

    def hidden_states(
        self,
        tokens: Tokens,
        previous: Tensor,
        caches: list[tuple[KVCache, KVCache]] | None = None,
        start: int = 0,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the output (B, T, D) of the last block.

        Args:
            tokens: The trunk's tokens (B, D, N).
            previous: The normalized frame (B, T, F) before each step. With caches, T counts only the new steps.
            caches: For each block, one cache for self-attention and one cache for cross-attention.
            start: The number of the first step.
            weights: A list to which the cross-attention (B, H, T, N) of each block is appended.
        """
        steps = previous.shape[1]
        positions = torch.arange(start, start + steps, device=previous.device)[None, None] / self.steps_per_token
        x = self.dropout(self.encoding(self.prenet(previous, start).mT, positions)).mT
        mask = torch.ones(steps, steps, dtype=torch.bool, device=x.device).tril() if steps > 1 else None
        memory, memory_mask = tokens.matrix.mT, build_attention_mask(tokens.mask, "bidirectional")
        for number, block in enumerate(self.blocks):
            block_caches = caches[number] if caches else None
            x = block(x, mask, memory=memory, memory_mask=memory_mask, caches=block_caches, weights=weights)
        return self.norm(x)

    def teacher_forced(
        self, tokens: Tokens, target: Tensor, weights: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the decoder on the frames of the target (teacher forcing).

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: The log-mel spectrograms (B, F, L), padded with `IGNORE_INDEX`.
            weights: See `hidden_states`.

        Returns:
            The hidden states (B, T, D), the normalized frames (B, T * r, F) of the target, and their mask (B, T * r),
            which is False for padding. T is L / r, rounded up.
        """
        padded = functional.pad(target, (0, -target.shape[2] % self.reduction), value=IGNORE_INDEX)
        real = padded[:, 0] != IGNORE_INDEX
        frames = ((padded.mT - self.mean) / self.std).masked_fill(~real[:, :, None], 0)
        previous = functional.pad(frames[:, self.reduction - 1 :: self.reduction], (0, 0, 1, -1))
        if self.training:  # A normalized frame of 0 is the mean frame.
            previous = previous * (self.frame_dropout(torch.ones_like(previous[:, :, :1])) > 0)
        return self.hidden_states(tokens, previous, weights=weights), frames, real

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the loss, averaged over the examples. The target (B, F, L) is padded with `IGNORE_INDEX`."""
        weights: list[Tensor] | None = [] if self.guided_attention else None
        hidden, frames, real = self.teacher_forced(tokens, target, weights)
        coarse = in_float32(self.frames, hidden).view_as(frames)
        fine = coarse + self.postnet(coarse, real)
        loss = _masked_mean((coarse - frames).abs().mean(2) + (fine - frames).abs().mean(2), real)
        steps = real[:, :: self.reduction]
        is_last = (steps & ~functional.pad(steps[:, 1:], (0, 1))).float()
        ends = functional.binary_cross_entropy_with_logits(
            in_float32(self.end, hidden)[:, :, 0], is_last, reduction="none", pos_weight=is_last.new_tensor(END_WEIGHT)
        )
        loss = loss + _masked_mean(ends, steps)
        if weights is not None:
            distance = guide(tokens.mask, steps)
            loss = loss + self.guided_attention * _masked_mean((self._guided(weights) * distance).sum(2), steps)
        return loss.mean()

    def _guided(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the attention (B, T, N) of the guided heads, averaged over the heads and the blocks."""
        return torch.stack([layer[:, : max(layer.shape[1] // 2, 1)].float().mean(1) for layer in weights]).mean(0)

    def target_counts(self, target: Tensor) -> Tensor:
        return count_examples(target)

    @torch.no_grad()
    def predict(self, tokens: Tokens) -> list[Speech]:
        """Generate one sound per example, step by step, until the probability of the end is above one half."""
        caches = [(KVCache(grows=True), KVCache(grows=False)) for _ in self.blocks]
        count, bands = len(tokens.mask), self.log_mel.n_mels
        previous = tokens.matrix.new_zeros(count, 1, bands, dtype=torch.float32)
        lengths = torch.zeros(count, dtype=torch.long, device=previous.device)
        running = torch.ones(count, dtype=torch.bool, device=previous.device)
        groups, attention = list[Tensor](), list[Tensor]()
        for step in range(self.max_steps):
            weights = list[Tensor]()
            hidden = self.hidden_states(tokens, previous, caches, step, weights)
            groups.append(in_float32(self.frames, hidden).view(count, self.reduction, bands))
            attention.append(self._guided(weights))
            previous = groups[-1][:, -1:]
            lengths += running
            running &= in_float32(self.end, hidden)[:, 0, 0] <= 0
            if not running.any():
                break
        coarse = torch.cat(groups, 1)
        real = torch.arange(coarse.shape[1], device=lengths.device) < lengths[:, None] * self.reduction
        spectrograms = ((coarse + self.postnet(coarse, real)) * self.std + self.mean).mT.cpu()
        paths, sizes = torch.cat(attention, 1).cpu(), tokens.mask.sum(1).tolist()
        return [
            Speech(spectrogram[:, : n * self.reduction], path[:n, :size], not unfinished)
            for spectrogram, path, n, size, unfinished in zip(
                spectrograms, paths, lengths.tolist(), sizes, running.tolist(), strict=True
            )
        ]

    def to_sound(self, speech: Speech) -> Audio:
        """Return the sound of a prediction, whose frames are moved away from the mean frame by `sharpening`."""
        mean = self.mean.cpu()[:, None]
        return self.log_mel.sound(mean + self.sharpening * (speech.spectrogram - mean))

    def statistics(self, predictions: Sequence[Speech], targets: Sequence[Audio]) -> NDArray[np.float64]:
        """Return the statistics (n, 7) of n sounds.

        The first columns are 1, the mel-cepstral distortion times the ratio of the lengths, and the distortion alone.
        Then follow the error of the length in seconds, and 1 for a sound without an end. The last columns count the
        steps that attend to an earlier token than the step before, and all steps after the first.
        """
        rows = list[list[float]]()
        for speech, target in zip(predictions, targets, strict=True):
            true = self.encode(target)
            shorter, longer = sorted((speech.spectrogram.shape[1], true.shape[1]))
            distortion = cepstral_distortion(speech.spectrogram.numpy(), true.numpy())
            path = speech.attention.argmax(1)
            rows.append(
                [
                    1.0,
                    distortion * longer / shorter,
                    distortion,
                    (longer - shorter) * self.log_mel.frame_seconds,
                    float(not speech.ended),
                    int((path[1:] < path[:-1]).sum()),
                    len(path) - 1,
                ]
            )
        return np.array(rows)

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics.

        "mcd" is the mel-cepstral distortion after time warping, in dB. Time warping hides a wrong length, so "mcd_sl"
        is the distortion times the ratio of the longer to the shorter sound (MCD-DTW-SL, Chen et al. 2022).
        "seconds_error" is the mean error of the length. "unfinished" is the share of sounds without an end, and
        "monotonic" is the share of steps whose attention does not move back, in percent.
        """
        return {
            "mcd_sl": float(total[1] / total[0]),
            "mcd": float(total[2] / total[0]),
            "seconds_error": float(total[3] / total[0]),
            "unfinished": percent(total[4], total[0]),
            "monotonic": 100 - percent(total[5], total[6]),
        }

    def example_score(self, prediction: Speech, target: Audio) -> tuple[float, float]:
        return float(self.statistics([prediction], [target])[0, 1]), 1.0

    def describe(self, prediction: Speech) -> str:
        seconds = prediction.spectrogram.shape[1] * self.log_mel.frame_seconds
        return f"{seconds:.2f} s{'' if prediction.ended else ', without an end'}"

    def describe_target(self, target: Audio) -> str:
        return f"{np.shape(target.waveform)[-1] / target.sample_rate:.2f} s"

    def describe_task(self, noun: str) -> str:
        return f"writes the log-mel spectrogram of a sound for {noun}."

    def describe_answer(self) -> str:
        return (
            f"The model writes {self.reduction} frames of {1000 * self.log_mel.frame_seconds:g} ms per step until the "
            "logit of the end is above 0. The frames are multiplied by `std`, and `mean` is added (arguments of the "
            "head in config.json). For the sound, the distance from `mean` is multiplied by `sharpening`, and the "
            "phases are found by the method of Griffin and Lim."
        )


def guide(tokens: Tensor, steps: Tensor) -> Tensor:
    """Return the loss (B, T, N) of attention far from the diagonal (Tachibana et al. 2018).

    Args:
        tokens: The mask (B, N) of the tokens of the text.
        steps: The mask (B, T) of the steps of the decoder.
    """
    rows, columns = (
        (torch.arange(mask.shape[1], device=mask.device) + 0.5) / mask.sum(1, keepdim=True) for mask in (steps, tokens)
    )
    return 1 - torch.exp(-((rows[:, :, None] - columns[:, None]) ** 2) / (2 * GUIDE_WIDTH**2))


def spectrogram_moments(spectrograms: Sequence[Tensor]) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of each band of log-mel spectrograms (F, frames)."""
    std, mean = torch.std_mean(torch.cat([*spectrograms], 1).double(), 1)
    # A band without energy in all sounds would have a deviation of 0.
    return mean.tolist(), std.clamp(min=1e-2).tolist()


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean (B,) of values (B, T) where the mask (B, T) is True."""
    return (values * mask).sum(1) / mask.sum(1)
