"""Augmentation of sounds: stretching, crops, pitch shifts, gain, masks; pieces to average over."""

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
"""Bands, evenly spaced, that `equalize` makes louder or softer by numbers of their own."""


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
    """What is done to batches of a fitted tokenizer's columns, in this order; None where all of it is off.

    `mixup` mixes sounds, a shorter one `repeat`ed, and of a long one only what its piece is cut from. `stretch` is the
    share by which a sound is made faster or slower at most, `crop` the seconds that are left of a longer one, `shift`
    the share of the bands by which all it holds is moved up or down at most, as by another throat (after Jaitly and
    Hinton 2013), `gain` the decibels by which it is made louder or softer at most, `equalize` those by which each of
    `KNOTS` bands is and, in between, the others, as by another microphone (after FilterAugment: Nam et al. 2022).
    So many masks then hide a stretch of at most `time_width` of the sound, or at most `band_width` of the bands
    (SpecAugment: Park et al. 2019, section 2).
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
            raise InputError(f"{name}={value}: 0 or more is needed")
    check_fraction("freq_shift", freq_shift)
    for name, value in (("time_width", time_width), ("band_width", band_width)):
        if not 0 < value <= 1:
            raise InputError(f"{name}={value}: a share, above 0 and at most 1, is expected")
    if crop is not None and not 0 < crop < math.inf:
        raise InputError(f"crop={crop}: a number of seconds above 0 is needed")
    learned = isinstance(tokenizer, WaveformTokenizer)
    for name, value in (("band_masks", band_masks), ("freq_shift", freq_shift), ("random_eq", random_eq)):
        if learned and value:
            raise InputError(f"{name}={value}: a waveform has no bands; take a tokenizer of frames")
    if not (mixup or crop or freq_shift or any(amounts.values())):
        return None
    tiles = tokenizer.tiles
    least = math.ceil(1e4 / tiles.bands) / 1e4
    for name, value in (("freq_shift", freq_shift), ("band_width", band_width if band_masks else 0)):
        if 0 < value < least:
            raise InputError(f"{name}={value}: less than one of {tiles.bands} bands; take {least} or more")
    side, step = tiles.patch[0], tiles.stride[0]
    return RandomAudioTransform(
        tiles=tiles,
        mean=torch.zeros(1) if learned else tokenizer.norm.mean.cpu().clone(),
        own_mean=not learned and tokenizer.norm.kind == "example",
        logarithmic=not learned,
        mixup=mixup and replace(mixup, repeat=True),
        speed_perturb=speed_perturb,
        longest=None if crop is None else max(round(crop / tokenizer.step) - side, 0) // step * step + side,
        freq_shift=int(freq_shift * tiles.bands),
        gain=gain,
        random_eq=random_eq,
        time_masks=(time_masks, time_width),
        band_masks=(band_masks, band_width),
    )


def audio_tta(
    tokenizer: AudioTokenizer, num_crops: int, *, crop: float | None = None, freq_shift: float = 0.0
) -> TestTimeAugmentation | None:
    """`count` pieces of each sound for evaluation, `crop` seconds each, evenly spaced; None where it is one, the whole.

    A sound that is no longer than a piece is each of them. Where training moves sounds by `shift`, each is read as it
    is, and moved up and down by half of that, rounded up to bands. Raises InputError for several pieces of no length.
    """
    if num_crops < 1 or (num_crops > 1 and crop is None):
        raise InputError(
            f"num_crops={num_crops}: 1 is the whole sound, and several are pieces of crop seconds, such as crop=5"
        )
    change = augment_audio(tokenizer, crop=crop, freq_shift=freq_shift)
    if not isinstance(change, RandomAudioTransform):
        return None
    most, half, tiles = change.max_length() if num_crops > 1 else None, (change.freq_shift + 1) // 2, tokenizer.tiles
    if most is None and not half:
        return None

    def pieces(batch: Batch) -> Iterator[Batch]:
        if most is None:
            yield batch
            return
        longer = (batch.mask.sum(1) - most).clamp(min=0) // tiles.tiles_per_step
        for piece in range(num_crops if longer.any() else 1):  # all pieces of short sounds are one
            yield random_window(
                batch, Crop((longer * piece / (num_crops - 1)).round().long() * tiles.tiles_per_step, most)
            )

    def seen(batch: Batch) -> Iterator[Batch]:
        for piece in pieces(batch):
            yield piece
            if not half:
                continue
            plane = tiles.join(piece.values, piece.mask.sum(1) // tiles.tiles_per_step)
            for by in (half, -half):
                yield piece._replace(values=tiles.cut(shift_bands(plane, by)).masked_fill_(~piece.mask[:, None], 0))

    return seen


def shift_bands(plane: Tensor, by: Tensor | int) -> Tensor:
    """Planes (B, frames, bands), of which each band takes the one that lies `by` (B, 1) bands above it, or the last."""
    bands = (torch.arange(plane.shape[2], device=plane.device) + by).clamp(0, plane.shape[2] - 1)
    return plane.gather(2, bands.expand(len(plane), -1)[:, None].expand_as(plane))


def random_window(batch: Batch, piece: Crop) -> Batch:
    """A piece of each example's columns."""
    columns = torch.arange(min(piece.most, batch.mask.shape[1]), device=batch.mask.device)
    places = piece.start[:, None] + columns
    mask = places < batch.mask.sum(1, keepdim=True)
    places, hidden = places.where(mask, 0)[:, None], ~mask[:, None]
    values = batch.values.gather(2, places.expand(-1, batch.values.shape[1], -1))
    positions = batch.positions.gather(2, places.expand(-1, batch.positions.shape[1], -1))
    return batch._replace(
        values=values.masked_fill_(hidden, 0), positions=positions.masked_fill_(hidden, NO_POSITION), mask=mask
    )


@final
@dataclass(frozen=True, kw_only=True)
class RandomAudioTransform(Augmentation):
    """Changes to the spectrograms or waveforms that a batch of columns shows, each example's by its own numbers.

    No example has more columns than before: one that is slower loses what would reach past its length. Those that are
    left of it keep their positions, so that every place an uncut example has is learned.
    """

    tiles: Tiles
    mean: Tensor
    """Fill value of masked regions, per band: the tokenizer's mean, which normalization maps to 0; of a waveform, 0."""
    own_mean: bool
    """Whether that is the example's own, as its columns are made normal by theirs."""
    logarithmic: bool
    """Whether the plane holds log power, not samples."""
    mixup: Mixup | None
    speed_perturb: float
    longest: int | None
    """The most frames that are left: whole tiles of them."""
    freq_shift: int
    """The most bands by which a spectrogram is moved; what comes in is the outermost band again."""
    gain: float
    random_eq: float
    time_masks: tuple[int, float]
    """How many, and the share of the frames that each hides at most."""
    band_masks: tuple[int, float]

    def max_length(self) -> int | None:
        """Return the number of tokens in a crop, or None if examples are not cropped."""
        return None if self.longest is None else self.tiles.num_steps(self.longest) * self.tiles.tiles_per_step

    def crop(self, lengths: Tensor, generator: torch.Generator) -> Crop | None:
        """Draw a window of each example that is long enough to make a crop of it, also if it is sped up."""
        if self.longest is None:
            return None
        tiles = self.tiles
        frames = math.ceil(self.longest * (1 + self.speed_perturb)) + tiles.stride[0]
        most = tiles.num_steps(frames) * tiles.tiles_per_step
        longer = (lengths - most).clamp(min=0) // tiles.tiles_per_step
        return Crop(draw_up_to(longer, generator) * tiles.tiles_per_step, most) if longer.any() else None

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        tiles = self.tiles
        crop = self.crop(batch.mask.sum(1), generator)  # This is None if the data loader has cropped already.
        if crop is not None:
            batch = random_window(batch, crop)
        if self.mixup is not None:
            batch = self.mixup(batch, generator)
        times = batch.mask.sum(1) // tiles.tiles_per_step
        plane, lengths = tiles.join(batch.values, times), tiles.num_frames(times)
        start = torch.zeros_like(lengths)
        if self.speed_perturb or self.longest:
            longest = self.longest or plane.shape[1]
            plane, lengths, start = stretch_and_crop(plane, lengths, self.speed_perturb, longest, generator)
            past = torch.arange(plane.shape[1]) >= lengths[:, None]
            plane = plane.masked_fill_(past[:, :, None], tiles.pad_value)
        if self.freq_shift:
            moved = draw_up_to(torch.full((len(plane), 1), 2 * self.freq_shift), generator) - self.freq_shift
            plane = shift_bands(plane, moved)
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
        mean = self.mean
        if self.own_mean:
            real = (torch.arange(plane.shape[1]) < lengths[:, None])[:, :, None]
            mean = (plane * real).sum(1, keepdim=True) / lengths[:, None, None]
        if self.time_masks[0]:
            hidden = draw_masks(lengths, plane.shape[1], *self.time_masks, generator)
            plane = mean.where(hidden[:, :, None], plane)
        if self.band_masks[0]:
            hidden = draw_masks(torch.full_like(lengths, tiles.bands), tiles.bands, *self.band_masks, generator)
            plane = mean.where(hidden[:, None], plane)
        values, left = tiles.cut(plane), tiles.num_steps(lengths)
        columns = torch.arange(values.shape[-1])
        padding = columns >= (left * tiles.tiles_per_step)[:, None]
        if padding.any():
            values.masked_fill_(padding[:, None], 0)
        first = (start // tiles.stride[0]).minimum(times - left) * tiles.tiles_per_step
        places = (first[:, None] + columns).clamp(max=batch.mask.shape[1] - 1)
        positions = batch.positions.gather(2, places[:, None].expand(-1, batch.positions.shape[1], -1))
        positions.masked_fill_(padding[:, None], NO_POSITION)
        return batch._replace(values=values, positions=positions, mask=~padding)


def stretch_and_crop(
    plane: Tensor, lengths: Tensor, stretch: float, longest: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Planes (B, frames, bands) of `lengths` (B,) frames, faster or slower by the share `stretch` and cut to `longest`.

    Frames between frames are interpolated. Returns planes, their lengths, and the frames (B,) that they start at.
    """
    speed = torch.exp(
        (2 * torch.rand(len(lengths), dtype=torch.float64, generator=generator) - 1) * math.log1p(stretch)
    )
    last = lengths - 1
    left = ((last / speed).long() + 1).minimum(lengths).clamp(max=longest)
    start = draw_up_to((last - speed * (left - 1)).long().clamp(min=0), generator)
    at = start[:, None] + speed[:, None] * torch.arange(int(left.max()))
    each, before = torch.arange(len(plane))[:, None], at.long().minimum(last[:, None])
    found = plane[each, before]
    if stretch:
        after = (before + 1).minimum(last[:, None])
        found = found.lerp(plane[each, after], (at - before).clamp(max=1).to(plane.dtype)[:, :, None])
    return found, left, start


def draw_masks(lengths: Tensor, size: int, count: int, share: float, generator: torch.Generator) -> Tensor:
    """Where `count` stretches lie, each at most a `share` of its example's length (B,): (B, size) bool."""
    most = lengths[:, None].expand(-1, count)
    width = draw_up_to((most * share).long(), generator)
    start = draw_up_to(most - width, generator)
    place = torch.arange(size)
    return ((place >= start[:, :, None]) & (place < (start + width)[:, :, None])).any(1)


def draw_up_to(most: Tensor, generator: torch.Generator) -> Tensor:
    """Whole numbers from 0 to each of `most`, all equally likely."""
    return (torch.rand(most.shape, dtype=torch.float64, generator=generator) * (most + 1)).long()
