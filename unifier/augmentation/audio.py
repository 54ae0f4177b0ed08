"""Augmentation of sounds: mixup, changes of speed, crops, frequency shifts, gain, equalizer and SpecAugment masks."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from unifier.augmentation.mixup import Mixup
from unifier.data.dataloader import Augmentation, Batch, TestTimeAugmentation
from unifier.data.storage import Crop
from unifier_tokenizers import NO_POSITION, InputError, WaveformTokenizer
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.errors import check_fraction
from unifier_tokenizers.patches import Tiles

EQ_KNOTS = 5
"""Number of evenly spaced frequencies for which `random_eq` draws a gain. Gains of all other frequencies are
interpolated."""


def augment_audio(
    tokenizer: AudioTokenizer,
    *,
    mixup: Mixup | None = None,
    speed_perturb: float = 0.0,
    crop: float | None = None,
    freq_shift: float = 0.0,
    gain: float = 0.0,
    random_eq: float = 0.0,
    time_masks: int = 0,
    time_width: float = 0.1,
    band_masks: int = 0,
    band_width: float = 0.2,
) -> Augmentation | None:
    """Return an augmentation of sounds, or None if no change is requested.

    The changes are applied in the order of the arguments.

    Args:
        tokenizer: Tokenizer of the sounds, after `fit`.
        mixup: Mixup of pairs of sounds. The second sound of a pair is repeated or shortened to the length of the first
            sound.
        speed_perturb: Largest relative change of speed. For example, 0.1 means up to 10 percent faster or slower.
        crop: Length in seconds to which longer sounds are cropped. None means no crop.
        freq_shift: Largest shift of a spectrogram in frequency, as a fraction of the number of bands (vocal tract
            length perturbation after Jaitly and Hinton 2013).
        gain: Largest change of the loudness in decibels.
        random_eq: Largest change of a band's loudness in decibels (FilterAugment: Nam et al. 2022).
        time_masks: Number of masked time intervals (SpecAugment: Park et al. 2019, section 2).
        time_width: Largest width of a time mask, as a fraction of the sound's length.
        band_masks: Number of masked frequency intervals.
        band_width: Largest width of a frequency mask, as a fraction of the number of bands.

    Raises:
        InputError: A number is out of range, or a change of frequency bands is requested for waveforms.
    """
    amounts = {
        "speed_perturb": speed_perturb,
        "gain": gain,
        "random_eq": random_eq,
        "time_masks": time_masks,
        "band_masks": band_masks,
    }
    for name, value in amounts.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name}={value}: give 0 or a number above 0")
    check_fraction("freq_shift", freq_shift)
    for name, value in (("time_width", time_width), ("band_width", band_width)):
        if not 0 < value <= 1:
            raise InputError(f"{name}={value}: give a fraction above 0 and at most 1")
    if crop is not None and not 0 < crop < math.inf:
        raise InputError(f"crop={crop}: give a number of seconds above 0")
    is_waveform = isinstance(tokenizer, WaveformTokenizer)
    for name, value in (("band_masks", band_masks), ("freq_shift", freq_shift), ("random_eq", random_eq)):
        if is_waveform and value:
            raise InputError(
                f"{name}={value}: a waveform has no frequency bands; choose a tokenizer of spectrogram frames"
            )
    if not (mixup or crop or freq_shift or any(amounts.values())):
        return None
    tiles = tokenizer.tiles
    one_band = math.ceil(1e4 / tiles.bands) / 1e4
    for name, value in (("freq_shift", freq_shift), ("band_width", band_width if band_masks else 0)):
        if 0 < value < one_band:
            raise InputError(
                f"{name}={value}: this share of {tiles.bands} bands is less than one band; give {one_band} or more"
            )
    side, step = tiles.patch[0], tiles.stride[0]
    return RandomAudioTransform(
        tiles=tiles,
        mean=torch.zeros(1) if is_waveform else tokenizer.norm.mean.cpu().clone(),
        example_mean=not is_waveform and tokenizer.norm.kind == "example",
        logarithmic=not is_waveform,
        mixup=mixup and replace(mixup, repeat=True),
        speed_perturb=speed_perturb,
        crop_frames=None if crop is None else max(round(crop / tokenizer.frame_step) - side, 0) // step * step + side,
        freq_shift=int(freq_shift * tiles.bands),
        gain=gain,
        random_eq=random_eq,
        time_masks=(time_masks, time_width),
        band_masks=(band_masks, band_width),
    )


def audio_tta(
    tokenizer: AudioTokenizer, num_crops: int, *, crop: float | None = None, freq_shift: float = 0.0
) -> TestTimeAugmentation | None:
    """Return the test-time augmentation of sounds, or None if no view would differ from the complete sound.

    Args:
        tokenizer: Tokenizer of the sounds, after `fit`.
        num_crops: Number of evenly spaced crops per sound. 1 means the complete sound. A sound that is shorter than
            `crop` is not cropped.
        crop: Length of a crop in seconds.
        freq_shift: Largest frequency shift in training. Each crop has two more views, shifted up and down by half of
            `freq_shift`, rounded up to whole bands.

    Raises:
        InputError: `num_crops` is below 1, or `num_crops` is above 1 but `crop` is not given.
    """
    if num_crops < 1 or (num_crops > 1 and crop is None):
        raise InputError(
            f"num_crops={num_crops}: give 1 for the complete sound, or more crops and their length in seconds, such as "
            "crop=5"
        )
    transform = augment_audio(tokenizer, crop=crop, freq_shift=freq_shift)
    if not isinstance(transform, RandomAudioTransform):
        return None
    max_length = transform.max_length() if num_crops > 1 else None
    half = (transform.freq_shift + 1) // 2
    return None if max_length is None and not half else AudioViews(tokenizer, num_crops, max_length, half)


@final
@dataclass(frozen=True)
class AudioViews(TestTimeAugmentation):
    """Crops of sounds, each with two copies that are shifted along the bands (see `audio_tta`)."""

    tokenizer: AudioTokenizer
    num_crops: int
    max_length: int | None
    """Number of tokens of a crop. None means the complete sound."""
    shift: int
    """Shift of the copies, in bands. With 0, a crop has no copies."""

    def __call__(self, batch: Batch) -> Iterator[Batch]:
        tiles = self.tokenizer.tiles
        for view in self._crops(batch):
            yield view
            if not self.shift:
                continue
            plane = tiles.join(view.values, view.mask.sum(1) // tiles.tiles_per_step)
            for shift in (self.shift, -self.shift):
                values = tiles.cut(shift_bands(plane, shift)).masked_fill_(~view.mask[:, None], 0)
                yield view._replace(values=values)

    def _crops(self, batch: Batch) -> Iterator[Batch]:
        if self.max_length is None:
            yield batch
            return
        per_step = self.tokenizer.tiles.tiles_per_step
        excess = (batch.mask.sum(1) - self.max_length).clamp(min=0) // per_step
        # All crops of a short sound are equal. A graph computes all crops, because a value must not choose its form.
        for index in range(self.num_crops if torch.compiler.is_compiling() or excess.any() else 1):
            start = (excess * index / (self.num_crops - 1)).round().long() * per_step
            yield crop_batch(batch, Crop(start, self.max_length))


def shift_bands(plane: Tensor, shift: Tensor | int) -> Tensor:
    """Shift planes (B, frames, bands) along the bands.

    Band i of the result is band i + `shift` of the plane. Bands outside the plane are replaced by the plane's outermost
    band. `shift` is an integer, or a tensor (B, 1) with a shift for each plane.
    """
    bands = (torch.arange(plane.shape[2], device=plane.device) + shift).clamp(0, plane.shape[2] - 1)
    return plane.gather(2, bands.expand(plane.shape[0], -1)[:, None].expand_as(plane))


def crop_batch(batch: Batch, crop: Crop) -> Batch:
    """Crop the tokens of each example in a batch."""
    columns = torch.arange(batch.mask.shape[1], device=batch.mask.device)[: crop.length]
    sources = crop.start[:, None] + columns
    mask = sources < batch.mask.sum(1, keepdim=True)
    sources = sources.where(mask, 0)
    parts = (batch.values, 0), (batch.positions, NO_POSITION)
    values, positions = (_crop_part(part, sources, mask, fill) for part, fill in parts)
    return batch._replace(values=values, positions=positions, mask=mask)


def _crop_part(part: Tensor, sources: Tensor, mask: Tensor, fill: int) -> Tensor:
    """Select the columns `sources` (B, n) of values or positions (B, ..., N), and fill columns outside the mask."""
    shape = len(part), *[1] * (part.ndim - 2), sources.shape[1]
    return part.gather(-1, sources.view(shape).expand(*part.shape[:-1], -1)).masked_fill_(~mask.view(shape), fill)


@final
@dataclass(frozen=True, kw_only=True)
class RandomAudioTransform(Augmentation):
    """Random changes of the spectrograms or waveforms in a batch, drawn separately for each example.

    The number of tokens never increases, because the end of a slowed example is removed. The tokens of a crop keep
    their positions in the complete example, so the model is trained on all positions.
    """

    tiles: Tiles
    mean: Tensor
    """Values that replace masked bands: 0 for waveforms, or the tokenizer's mean of each band for spectrograms.

    The tokenizer subtracts the mean, so the model receives 0 for a masked value.
    """
    example_mean: bool
    """If True, masked values are replaced by the example's mean, because the tokenizer subtracts the example's mean."""
    logarithmic: bool
    """True for spectrograms of the log power, False for waveforms."""
    mixup: Mixup | None
    speed_perturb: float
    crop_frames: int | None
    """Number of frames in a crop, rounded to whole tiles. None means no crop."""
    freq_shift: int
    """Largest frequency shift, in bands. Copies of the outermost band fill the empty bands."""
    gain: float
    random_eq: float
    time_masks: tuple[int, float]
    """Number of masked time intervals, and the largest width of an interval as a fraction of the number of frames."""
    band_masks: tuple[int, float]
    """Number of masked frequency intervals, and the largest width of an interval as a fraction of the number of
    bands."""

    def max_length(self) -> int | None:
        """Return the number of tokens in a crop, or None if examples are not cropped."""
        return None if self.crop_frames is None else self.tiles.num_steps(self.crop_frames) * self.tiles.tiles_per_step

    def crop(self, lengths: Tensor, generator: torch.Generator) -> Crop | None:
        """Draw a random window of each example. A window is long enough for a crop at the highest speed."""
        if self.crop_frames is None:
            return None
        tiles = self.tiles
        frames = math.ceil(self.crop_frames * (1 + self.speed_perturb)) + tiles.stride[0]
        window = tiles.num_steps(frames) * tiles.tiles_per_step
        excess = (lengths - window).clamp(min=0) // tiles.tiles_per_step
        return Crop(draw_up_to(excess, generator) * tiles.tiles_per_step, window) if excess.any() else None

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        tiles = self.tiles
        crop = self.crop(batch.mask.sum(1), generator)  # Batches from the data loader are already cropped.
        if crop is not None:
            batch = crop_batch(batch, crop)
        if self.mixup is not None:
            batch = self.mixup(batch, generator)
        steps = batch.mask.sum(1) // tiles.tiles_per_step
        plane, lengths = tiles.join(batch.values, steps), tiles.num_frames(steps)
        start = torch.zeros_like(lengths)
        if self.speed_perturb or self.crop_frames:
            max_frames = self.crop_frames or plane.shape[1]
            plane, lengths, start = stretch_and_crop(plane, lengths, self.speed_perturb, max_frames, generator)
            padding = torch.arange(plane.shape[1]) >= lengths[:, None]
            plane = plane.masked_fill_(padding[:, :, None], tiles.pad_value)
        if self.freq_shift:
            shift = draw_up_to(torch.full((len(plane), 1), 2 * self.freq_shift), generator) - self.freq_shift
            plane = shift_bands(plane, shift)
        if self.gain:
            decibels = self.gain * (2 * torch.rand(len(plane), 1, 1, generator=generator) - 1)
            if self.logarithmic:
                plane = (plane + decibels * (math.log(10) / 10)).clamp_(min=tiles.pad_value)
            else:
                plane = plane * 10 ** (decibels / 20)
        if self.random_eq:
            knots = self.random_eq * (2 * torch.rand(len(plane), 1, EQ_KNOTS, generator=generator) - 1)
            decibels = functional.interpolate(knots, tiles.bands, mode="linear", align_corners=True)
            plane = (plane + decibels * (math.log(10) / 10)).clamp_(min=tiles.pad_value)
        plane = self._mask(plane, lengths, generator)
        values, left = tiles.cut(plane), tiles.num_steps(lengths)
        columns = torch.arange(values.shape[-1])
        padding = columns >= (left * tiles.tiles_per_step)[:, None]
        if padding.any():
            values.masked_fill_(padding[:, None], 0)
        first = (start // tiles.stride[0]).minimum(steps - left) * tiles.tiles_per_step
        sources = (first[:, None] + columns).clamp(max=batch.mask.shape[1] - 1)
        positions = batch.positions.gather(2, sources[:, None].expand(-1, batch.positions.shape[1], -1))
        positions.masked_fill_(padding[:, None], NO_POSITION)
        return batch._replace(values=values, positions=positions, mask=~padding)

    def _mask(self, plane: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
        """Replace random time intervals and random frequency bands by the mean."""
        mean = self.mean
        if self.example_mean:
            real = (torch.arange(plane.shape[1]) < lengths[:, None])[:, :, None]
            mean = (plane * real).sum(1, keepdim=True) / lengths[:, None, None]
        if self.time_masks[0]:
            masked = draw_masks(lengths, plane.shape[1], *self.time_masks, generator)
            plane = mean.where(masked[:, :, None], plane)
        if self.band_masks[0]:
            bands = self.tiles.bands
            masked = draw_masks(torch.full_like(lengths, bands), bands, *self.band_masks, generator)
            plane = mean.where(masked[:, None], plane)
        return plane


def stretch_and_crop(
    plane: Tensor, lengths: Tensor, speed_perturb: float, max_frames: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Change the speed of each example at random by linear interpolation, and then crop each example at random.

    Args:
        plane: Planes (B, frames, bands).
        lengths: Numbers of frames (B,) without padding.
        speed_perturb: Largest relative change of speed.
        max_frames: Maximum number of frames in a changed plane.
        generator: Source of the random numbers.

    Returns:
        The changed planes, their numbers of frames (B,), and the index of each plane's first frame in the original
        plane (B,).
    """
    speed = torch.exp(
        (2 * torch.rand(len(lengths), dtype=torch.float64, generator=generator) - 1) * math.log1p(speed_perturb)
    )
    last = lengths - 1
    new_lengths = ((last / speed).long() + 1).minimum(lengths).clamp(max=max_frames)
    start = draw_up_to((last - speed * (new_lengths - 1)).long().clamp(min=0), generator)
    frames = start[:, None] + speed[:, None] * torch.arange(int(new_lengths.max()))
    examples, before = torch.arange(len(plane))[:, None], frames.long().minimum(last[:, None])
    stretched = plane[examples, before]
    if speed_perturb:
        after = (before + 1).minimum(last[:, None])
        weight = (frames - before).clamp(max=1).to(plane.dtype)[:, :, None]
        stretched = stretched.lerp(plane[examples, after], weight)
    return stretched, new_lengths, start


def draw_masks(lengths: Tensor, size: int, count: int, share: float, generator: torch.Generator) -> Tensor:
    """Draw random intervals in each example.

    Args:
        lengths: Lengths (B,) of the examples.
        size: Length of the padded batch.
        count: Number of intervals per example. Intervals may overlap.
        share: Largest length of an interval, as a fraction of the example's length.
        generator: Source of the random numbers.

    Returns:
        A mask (B, size) bool, True for positions inside an interval.
    """
    limits = lengths[:, None].expand(-1, count)
    width = draw_up_to((limits * share).long(), generator)
    start = draw_up_to(limits - width, generator)
    indices = torch.arange(size)
    return ((indices >= start[:, :, None]) & (indices < (start + width)[:, :, None])).any(1)


def draw_up_to(maximum: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a uniformly distributed integer from 0 to `maximum` (inclusive) for each entry of `maximum`."""
    return (torch.rand(maximum.shape, dtype=torch.float64, generator=generator) * (maximum + 1)).long()
