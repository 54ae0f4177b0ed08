"""Changed sounds: each by its own draw, decided by the generator alone, and padding stays padding."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torchaudio.functional import mask_along_axis_iid

from unifier.augmentation.audio import EQ_KNOTS, RandomAudioTransform, audio_tta, augment_audio, draw_masks
from unifier.augmentation.mixup import Compose, Mixup
from unifier.data.dataloader import Augmentation, Batch, BudgetUnit, TrainDataLoader, trained_lengths
from unifier.data.encoding import EncodedSplit
from unifier.data.storage import Crop
from unifier_tokenizers import NO_POSITION, Audio, FrameTokenizer, InputError, WaveformTokenizer, pad_columns
from unifier_tokenizers.audio import POWER_FLOOR, AudioTokenizer
from unifier_tokenizers.patches import Tiles

RATE, F, D = 8000, 20, 12
SHAPE: dict[str, Any] = {"sample_rate": RATE, "win_length": 0.032, "hop_length": 0.016}
MEL: dict[str, Any] = {**SHAPE, "n_mels": F}
FILTERS: dict[str, Any] = {**SHAPE, "n_filters": F}
TOKENIZERS: dict[str, AudioTokenizer] = {
    "frames": FrameTokenizer(D, **MEL),
    "stacks": FrameTokenizer(D, **MEL, stack=4),
    "patches": FrameTokenizer(D, **MEL, patch=(4, 5)),
    "overlapping": FrameTokenizer(D, **MEL, patch=(5, 6), stride=(2, 4)),
    "waveform": WaveformTokenizer(D, **FILTERS),
    "stretches": WaveformTokenizer(D, **FILTERS, stack=3),
}
SETTINGS: list[dict[str, Any]] = [
    *[{"time_masks": 3}, {"band_masks": 2}, {"freq_shift": 0.2, "random_eq": 6.0}, {"gain": 6.0}],
    *[{"crop": 0.7}, {"speed_perturb": 0.3}, {"speed_perturb": 0.3, "crop": 0.7, "gain": 6.0, "time_masks": 2}],
]
CASES = [
    pytest.param(kind, settings, id=f"{kind}-{settings}")
    for kind in TOKENIZERS
    for settings in SETTINGS
    if kind not in ("waveform", "stretches") or not settings.keys() & {"band_masks", "freq_shift"}
]

Seeded = Callable[..., torch.Generator]


def noise(samples: int, seed: int) -> Audio:
    return Audio(torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.1, RATE)


SOUNDS = [noise(samples, seed) for seed, samples in enumerate((16000, 9000, 16000, 256, 4000, 16000))]


def make_batch(tokenizer: AudioTokenizer, sounds: list[Audio]) -> Batch:
    indices = torch.arange(len(sounds))
    return Batch(*pad_columns([tokenizer.encode(sound) for sound in sounds]), indices + 3, indices)


def augmentation_of(tokenizer: AudioTokenizer, **settings: Any) -> Augmentation:
    augmentation = augment_audio(tokenizer, **settings)
    assert augmentation is not None
    return augmentation


def planes(tokenizer: AudioTokenizer, batch: Batch) -> list[Tensor]:
    """Return each example's plane (frames, bands)."""
    steps = batch.mask.sum(1) // tokenizer.tiles.tiles_per_step
    joined, lengths = tokenizer.tiles.join(batch.values, steps), tokenizer.tiles.num_frames(steps).tolist()
    return [plane[:length] for plane, length in zip(joined, lengths, strict=True)]


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_augment_audio_contract(kind: str, settings: dict[str, Any], seeded: Seeded) -> None:
    tokenizer = TOKENIZERS[kind]
    batch = make_batch(tokenizer, SOUNDS)
    before, state = Batch(*(tensor.clone() for tensor in batch)), torch.get_rng_state()
    augmentation = augmentation_of(tokenizer, **settings)
    after, again, other = (augmentation(batch, seeded(seed)) for seed in (1, 1, 2))
    assert all(map(torch.equal, after, again))
    assert after.values.shape != other.values.shape or not torch.equal(after.values, other.values)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, batch, before)), "the input is not changed"
    assert torch.equal(after.target, batch.target)
    assert torch.equal(after.example_indices, batch.example_indices)
    lengths = after.mask.sum(1)
    assert torch.equal(after.mask, torch.arange(after.mask.shape[1]) < lengths[:, None])
    assert int(lengths.max()) == after.mask.shape[1], "the batch is as wide as its longest example"
    assert (lengths <= batch.mask.sum(1)).all()
    assert not (lengths % tokenizer.tiles.tiles_per_step).any()
    assert not after.values.masked_select(~after.mask[:, None]).any()
    assert torch.equal((after.positions == NO_POSITION).all(1), ~after.mask)
    assert not (after.positions == NO_POSITION).any(1)[after.mask].any()
    assert (after.positions.amax(2) <= batch.positions.amax(2)).all()
    assert after.values.dtype == torch.float32
    assert after.values.isfinite().all()
    for plane, values, real in zip(planes(tokenizer, after), after.values, after.mask, strict=True):
        assert torch.equal(tokenizer.tiles.cut(plane), values[:, real]), "overlapping tiles agree"
    assert tokenizer.embed(after.values, after.positions).shape == (len(SOUNDS), D, after.mask.shape[1])


def test_augment_audio_off_is_none() -> None:
    assert augment_audio(TOKENIZERS["frames"]) is None
    assert augment_audio(TOKENIZERS["frames"], time_width=0.5, band_width=0.5) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *[({"speed_perturb": -0.1}, "speed_perturb=-0.1"), ({"freq_shift": 1.0}, "freq_shift=1.0")],
        ({"freq_shift": 0.01}, f"freq_shift=0.01.*{F} bands"),
        ({"band_masks": 1, "band_width": 0.01}, f"band_width=0.01.*{F} bands"),
        *[({"gain": math.inf}, "gain=inf"), ({"random_eq": -1.0}, "random_eq=-1.0")],
        *[({"time_masks": -1}, "time_masks=-1"), ({"crop": 0.0}, "crop=0.0")],
        *[({"band_width": 0.0}, "band_width=0.0"), ({"time_width": 1.5}, "time_width=1.5")],
    ],
)
def test_augment_audio_refuses_numbers(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        augment_audio(TOKENIZERS["frames"], **settings)


@pytest.mark.parametrize("settings", [{"band_masks": 2}, {"freq_shift": 0.1}, {"random_eq": 6.0}], ids=str)
def test_waveform_refuses_changes_of_bands(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(settings))}=.*waveform"):
        augment_audio(TOKENIZERS["waveform"], **settings)
    with pytest.raises(InputError, match=r"freq_shift=0\.1.*waveform"):
        audio_tta(TOKENIZERS["waveform"], 1, freq_shift=0.1)


@pytest.mark.parametrize("bands", [30, 48, 49, 64, 80])
def test_smallest_freq_shift_in_message_works(bands: int) -> None:
    tokenizer = FrameTokenizer(12, sample_rate=8000, n_mels=bands)
    with pytest.raises(InputError, match=r"freq_shift=0\.001.*0\.0\d+ or more") as error:
        augment_audio(tokenizer, freq_shift=0.001)
    assert augment_audio(tokenizer, freq_shift=float(str(error.value).split()[-3]))


@pytest.mark.parametrize("normalize", ["whole", "band"])
@pytest.mark.parametrize("shape", [{}, {"stack": 4}, {"patch": (5, 8), "stride": (2, 4)}], ids=str)
def test_masks_cover_frames_and_bands(shape: Any, normalize: Any, seeded: Seeded) -> None:
    tokenizer = FrameTokenizer(D, **MEL, **shape, normalize=normalize).fit(SOUNDS)
    batch = make_batch(tokenizer, SOUNDS[:3])
    masks = {"time_masks": 2, "time_width": 0.2, "band_masks": 1, "band_width": 0.5}
    after = augmentation_of(tokenizer, **masks)(batch, seeded(3))
    assert torch.equal(after.positions, batch.positions)
    masked = 0
    for plane, before in zip(planes(tokenizer, after), planes(tokenizer, batch), strict=True):
        changed = plane != before
        frames, bands = changed.float().mean(1) > 0.9, changed.float().mean(0) > 0.9
        assert torch.equal(changed, (frames[:, None] | bands) & changed)
        assert torch.equal(plane[changed], tokenizer.norm.mean.expand_as(plane)[changed])
        assert int(frames.sum()) <= 2 * 0.2 * len(plane)
        assert int(bands.sum()) <= 0.5 * F
        masked += int(changed.sum())
    assert masked
    tiles, frames = tokenizer.tiles, int(tokenizer.tiles.num_frames(torch.tensor(7)))
    power = tiles.cut(tokenizer.norm.mean.expand(frames, -1)).T[None].unflatten(2, tiles.patch)
    positions = tokenizer.encode(noise(256 + (frames - 1) * 128, 0)).positions[None]
    assert not tokenizer.norm(power, positions).any(), "the fill value is normalized to 0"


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_draw_masks_equals_torchaudio(share: float, seeded: Seeded) -> None:
    examples, size = 4000, 50
    masks = draw_masks(torch.full((examples,), size), size, 1, share, seeded())
    torch.manual_seed(0)
    reference = mask_along_axis_iid(torch.ones(examples, 1, 3, size), round(share * size) + 1, 0.0, 3) == 0
    assert masks.float().mean().item() == pytest.approx(reference.float().mean().item(), rel=0.05)
    assert masks.float().mean(0).argmax() in range(size // 5, size * 4 // 5), "the middle is masked most often"
    assert masks.sum(1).max() == share * size
    assert masks.int().diff(dim=1).ne(0).sum(1).max() <= 2, "one interval"
    assert masks[:, 0].any()
    assert masks[:, -1].any()


def test_draw_masks_stay_inside_example(seeded: Seeded) -> None:
    lengths = torch.tensor([50, 10, 1, 4])
    masks = torch.stack([draw_masks(lengths, 50, 2, 0.5, seeded(seed)) for seed in range(200)])
    for b, length in enumerate(lengths.tolist()):
        assert not masks[:, b, length:].any()
        assert masks[:, b].any() == (length > 1)
        assert masks[:, b].sum(1).max() <= 2 * (length // 2)
    assert len({tuple(mask.tolist()) for mask in draw_masks(torch.full((20,), 50), 50, 1, 0.5, seeded())}) > 15


def test_mask_fill_is_example_mean(seeded: Seeded) -> None:
    tokenizer = FrameTokenizer(D, **MEL, normalize="example").fit(SOUNDS[:1])
    batch = make_batch(tokenizer, [Audio(SOUNDS[0].waveform * 0.01, RATE)] * 8)
    after = augmentation_of(tokenizer, time_masks=2, band_masks=1)(batch, seeded())
    for plane, before in zip(planes(tokenizer, after), planes(tokenizer, batch), strict=True):
        masked = plane != before
        assert masked.any()
        torch.testing.assert_close(plane[masked], before.mean(0).expand_as(before)[masked], atol=0.5, rtol=0)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_crop_is_window_at_its_positions(kind: str, seeded: Seeded) -> None:
    tokenizer = TOKENIZERS[kind]
    batch = make_batch(tokenizer, SOUNDS)
    after = augmentation_of(tokenizer, crop=0.7)(batch, seeded())
    limit, stride = round(0.7 / tokenizer.frame_step), tokenizer.tiles.stride[0]
    firsts = after.positions[:, 0, 0].tolist()
    for crop, whole, first in zip(planes(tokenizer, after), planes(tokenizer, batch), firsts, strict=True):
        if len(whole) <= limit:
            assert torch.equal(crop, whole)
            continue
        assert limit - stride < len(crop) <= limit
        starts = [first * stride + offset for offset in range(stride)]
        assert any(torch.equal(crop, whole[start : start + len(crop)]) for start in starts)
    assert len(set(firsts)) > 3, "each example has its own crop"
    for positions in after.positions:
        real = positions[:, positions[0] != NO_POSITION]
        grid = torch.cartesian_prod(real[0].unique(), torch.arange(tokenizer.tiles.tiles_per_step)).T[: len(real)]
        assert torch.equal(real, grid.view_as(real))


def test_crop_starts_everywhere(seeded: Seeded) -> None:
    tokenizer = TOKENIZERS["frames"]
    after = augmentation_of(tokenizer, crop=4 * 0.016)(make_batch(tokenizer, [noise(256 + 9 * 128, 0)] * 200), seeded())
    assert (after.mask.shape[1], set(after.positions[:, 0, 0].tolist())) == (4, set(range(10 - 4 + 1)))


def test_crop_extreme_lengths(seeded: Seeded) -> None:
    tokenizer = TOKENIZERS["stacks"]
    batch = make_batch(tokenizer, SOUNDS)
    assert (augmentation_of(tokenizer, crop=0.001)(batch, seeded()).mask.sum(1) == 1).all()
    assert all(map(torch.equal, augmentation_of(tokenizer, crop=100.0)(batch, seeded()), batch))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_batches_are_planned_by_cropped_length(kind: str, seeded: Seeded) -> None:
    tokenizer, augmentation = TOKENIZERS[kind], augmentation_of(TOKENIZERS[kind], crop=0.7)
    split = EncodedSplit([tokenizer.encode(sound) for sound in SOUNDS], [torch.tensor(0)] * len(SOUNDS), range(6))
    lengths = augmentation(make_batch(tokenizer, SOUNDS), seeded()).mask.sum(1)
    assert trained_lengths(split, augmentation)[:, 0].tolist() == lengths.tolist()
    assert trained_lengths(split, augmentation_of(tokenizer, gain=1.0)).tolist() == split.lengths().tolist()
    budget: dict[BudgetUnit, float] = {"tokens": 4 * int(lengths.sum())}
    max_tokens = int(lengths.max()) * 3
    loader = TrainDataLoader({"a": split}, max_tokens=max_tokens, seed=0, budget=budget, augment={"a": augmentation})
    masks = [batch.mask for _, batch in loader]
    assert max(len(mask) for mask in masks) >= 3
    assert sum(int(mask.sum()) for mask in masks) == budget["tokens"]


class Uncropped(Augmentation):
    """Hides the crop of an augmentation from the data loader, and records the widths of the batches."""

    def __init__(self, augmentation: Augmentation) -> None:
        self.augmentation, self.widths = augmentation, list[int]()

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        self.widths.append(batch.mask.shape[1])
        return self.augmentation(batch, generator)

    def max_length(self) -> int | None:
        return self.augmentation.max_length()


class Cropped(Uncropped):
    """Shows it."""

    def crop(self, lengths: Tensor, generator: torch.Generator) -> Crop | None:
        return self.augmentation.crop(lengths, generator)


@pytest.mark.parametrize("kind", ["stacks", "overlapping", "stretches"])
def test_loader_gathers_only_crops(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    sounds = [noise(samples, 0) for samples in (30000, 2000, 20000, 16000, 25000, 3000)]
    split = EncodedSplit([tokenizer.encode(sound) for sound in sounds], [torch.tensor(k) for k in range(6)], range(6))
    settings = {"speed_perturb": 0.2, "crop": 0.5, "gain": 3.0, "time_masks": 1}
    augmentation = augmentation_of(tokenizer, mixup=Mixup(6, 0.5), **settings)
    limit = augmentation.max_length()
    assert limit is not None
    whole, cropped = Uncropped(augmentation), Cropped(augmentation)
    loaders = [
        TrainDataLoader({"a": split}, max_tokens=3 * limit, seed=0, budget={"steps": 8}, augment={"a": wrapped})
        for wrapped in (whole, cropped)
    ]
    for (_, batch), (_, same) in zip(*loaders, strict=True):
        assert all(map(torch.equal, batch, same))
    assert max(whole.widths) == split.lengths()[:, 0].max()
    assert max(cropped.widths) < 1.5 * limit + 2 * tokenizer.tiles.tiles_per_step


def test_compose_crops_by_first_augmentation(seeded: Seeded) -> None:
    crop, gain = (augmentation_of(TOKENIZERS["stacks"], **settings) for settings in ({"crop": 0.5}, {"gain": 3.0}))
    window = Compose(crop, gain).crop(torch.tensor([200, 300]), seeded())
    assert window is not None
    assert window.start.ge(0).all()
    assert Compose(gain, crop).crop(torch.tensor([200, 300]), seeded()) is None, "the first needs whole examples"


def test_only_window_of_song_is_joined(monkeypatch: pytest.MonkeyPatch, seeded: Seeded) -> None:
    tokenizer, frames, join = TOKENIZERS["stacks"], list[int](), Tiles.join
    monkeypatch.setattr(Tiles, "join", lambda *args: (frames.append(args[1].shape[2] * 4), join(*args))[1])  # pyright: ignore
    batch = make_batch(tokenizer, [noise(80000, 0), noise(90000, 1)])
    augmentation_of(tokenizer, crop=0.64, speed_perturb=0.2)(batch, seeded())
    assert 40 * 1.2 < frames[0] < 40 * 1.2 + 8


@pytest.mark.parametrize("kind", ["frames", "stacks", "overlapping"])
def test_freq_shift_moves_all_bands(kind: str, seeded: Seeded) -> None:
    tokenizer, limit = TOKENIZERS[kind], 4
    batch = make_batch(tokenizer, [SOUNDS[0]] * 60)
    after = augmentation_of(tokenizer, freq_shift=0.2)(batch, seeded())
    before = planes(tokenizer, batch)[0]
    low, high = before[:, :1].expand(-1, limit), before[:, -1:].expand(-1, limit)
    wide = torch.cat([low, before, high], dim=1)
    shifted = [wide[:, limit - shift : limit - shift + F] for shift in range(-limit, limit + 1)]
    shifts = {[torch.equal(plane, option) for option in shifted].index(True) for plane in planes(tokenizer, after)}
    assert shifts == set(range(2 * limit + 1))


@pytest.mark.parametrize("kind", ["frames", "stretches"])
def test_gain_equals_louder_waveform(kind: str, seeded: Seeded) -> None:
    tokenizer = TOKENIZERS[kind]
    sounds = [SOUNDS[0], SOUNDS[2], SOUNDS[5]]
    batch = make_batch(tokenizer, sounds)
    louder = augmentation_of(tokenizer, gain=6.0)(batch, seeded())
    decibels: list[float] = []
    for sound, after, before in zip(sounds, planes(tokenizer, louder), planes(tokenizer, batch), strict=True):
        difference = (after - before).median() * 10 / math.log(10) if kind == "frames" else 0
        decibels.append(float(difference) if kind == "frames" else 20 * math.log10((after / before).nanmedian()))
        scaled = Audio(torch.as_tensor(sound.waveform) * 10 ** (decibels[-1] / 20), RATE)
        torch.testing.assert_close(after, planes(tokenizer, make_batch(tokenizer, [scaled]))[0], atol=1e-3, rtol=1e-3)
    assert len(set(decibels)) == 3
    assert all(abs(gain) <= 6 for gain in decibels)


def test_gain_keeps_power_floor(seeded: Seeded) -> None:
    silent = make_batch(TOKENIZERS["frames"], [Audio(torch.zeros(4000), RATE)] * 20)
    values = augmentation_of(TOKENIZERS["frames"], gain=6.0)(silent, seeded()).values
    assert values.min() == torch.tensor(POWER_FLOOR).log()


def test_random_eq_interpolates_bands(seeded: Seeded) -> None:
    tokenizer = FrameTokenizer(12, sample_rate=8000, n_mels=4 * EQ_KNOTS - 3)  # Three bands between two knots.
    batch = make_batch(tokenizer, [noise(4000, seed) for seed in range(8)])
    changed = augmentation_of(tokenizer, random_eq=6.0)(batch, seeded()).values
    decibels = (changed - batch.values) * 10 / math.log(10)  # (B, bands, N)
    torch.testing.assert_close(decibels, decibels[:, :, :1].expand_as(decibels), atol=1e-3, rtol=0)
    curve = decibels[:, :, 0]
    knots = curve[:, ::4]
    assert 4 < knots.abs().max() <= 6
    assert len({round(float(knot), 3) for knot in knots.flatten()}) == 8 * EQ_KNOTS
    torch.testing.assert_close(curve[:, 2::4], (knots[:, 1:] + knots[:, :-1]) / 2, atol=1e-3, rtol=0)


def ramps(tokenizer: AudioTokenizer, lengths: list[int]) -> Batch:
    """Return sounds whose frames hold their index in all bands."""
    batch = make_batch(tokenizer, [noise(256 + (length - 1) * 128, 0) for length in lengths])
    steps = batch.mask.sum(1) // tokenizer.tiles.tiles_per_step
    frames = torch.arange(int(tokenizer.tiles.num_frames(steps).max())).float()
    plane = frames[None, :, None].expand(len(lengths), -1, tokenizer.tiles.bands)
    return batch._replace(values=tokenizer.tiles.cut(plane).masked_fill(~batch.mask[:, None], 0))


@pytest.mark.parametrize("kind", ["frames", "stacks", "overlapping", "waveform"])
def test_speed_perturb_reads_at_constant_speed(kind: str, seeded: Seeded) -> None:
    tokenizer, share = TOKENIZERS[kind], 0.25
    batch = ramps(tokenizer, [60, 60, 33, 1, 60, 60])
    after = augmentation_of(tokenizer, speed_perturb=share)(batch, seeded())
    firsts, pad_value = after.positions[:, 0, 0].tolist(), tokenizer.tiles.pad_value
    speeds: list[float] = []
    for plane, before, first in zip(planes(tokenizer, after), planes(tokenizer, batch), firsts, strict=True):
        assert (plane == plane[:, :1]).all()
        read = plane[:, 0]
        if pad_value:
            read = read[read != pad_value]  # The last tile may reach beyond the sound.
        elif len(read.diff()) and (cut := (read.diff() < 0).nonzero()).numel():
            read = read[: int(cut[0]) + 1]
        assert float(read[0]) >= 0
        assert float(read[-1]) <= len(before) - 1 + 1e-3
        assert abs(first - float(read[0]) // tokenizer.tiles.stride[0]) <= 1
        if len(read) < 3:
            continue
        speed = float(read[-1] - read[0]) / (len(read) - 1)
        torch.testing.assert_close(read, read[0] + speed * torch.arange(len(read)), atol=1e-2, rtol=1e-4)
        assert 1 / (1 + share) - 1e-3 < speed < 1 + share + 1e-3
        assert len(read) == min(len(before), int((len(before) - 1) / speed + 1e-3) + 1)
        speeds.append(speed)
    assert min(speeds) < 1 < max(speeds)
    assert len(set(speeds)) == len(speeds)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_mixup_precedes_crop(kind: str, seeded: Seeded) -> None:
    """Every crop then has as much of each sound as its target has of each label."""
    tokenizer = TOKENIZERS[kind]
    batch = make_batch(tokenizer, [noise(12000, 0), noise(5000, 1)])
    constant = (batch.example_indices[:, None, None] + 1.0).expand_as(batch.values) * batch.mask[:, None]
    batch, augmentation = batch._replace(values=constant), augmentation_of(tokenizer, mixup=Mixup(9, 1.0), crop=0.3)
    mixed = 0
    for seed in range(8):
        after = augmentation(batch, seeded(seed))
        for plane, label in zip(planes(tokenizer, after), after.target[:, 3:5, 0], strict=True):
            torch.testing.assert_close(plane, (label * torch.tensor([1.0, 2.0])).sum().expand_as(plane))
        mixed += int((after.target > 0).sum(1).eq(2).sum())
    assert mixed >= 4


def test_audio_tta_one_view_is_none() -> None:
    frames, waveform = TOKENIZERS["frames"], TOKENIZERS["waveform"]
    assert [audio_tta(frames, 1), audio_tta(frames, 1, crop=0.7), audio_tta(waveform, 1)] == [None] * 3
    for count, crop in ((3, None), (0, 0.7)):
        with pytest.raises(InputError, match=f"num_crops={count}"):
            audio_tta(frames, count, crop=crop)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_audio_tta_crops_span_sound(kind: str) -> None:
    tokenizer, transform = TOKENIZERS[kind], augmentation_of(TOKENIZERS[kind], crop=0.7)
    assert isinstance(transform, RandomAudioTransform)
    tta, batch = audio_tta(tokenizer, 3, crop=0.7), make_batch(tokenizer, SOUNDS)
    assert tta is not None
    crops = list(tta(batch))
    assert len(crops) == 3
    lengths, per_step = batch.mask.sum(1), tokenizer.tiles.tiles_per_step
    for crop in crops:
        assert torch.equal(crop.mask.sum(1), lengths.clamp(max=transform.max_length()))
        assert torch.equal(crop.example_indices, batch.example_indices)
        for b in range(len(SOUNDS)):
            real, first = crop.mask[b], int(crop.positions[b, 0, 0]) * per_step
            window = slice(first, first + int(real.sum()))
            assert torch.equal(crop.values[b][:, real], batch.values[b][:, window])
            assert torch.equal(crop.positions[b][:, real], batch.positions[b][:, window])
            assert not crop.values[b][:, ~real].any()
            assert (crop.positions[b][:, ~real] == NO_POSITION).all()
    starts = torch.stack([crop.positions[:, 0, 0] for crop in crops])
    assert (starts[0] == 0).all()
    assert torch.equal(starts[-1] * per_step, (lengths - crops[-1].mask.sum(1)))
    assert len(set(starts[:, 0].tolist())) == 3


@pytest.mark.parametrize(("most", "half"), [(4, 2), (3, 2), (1, 1)])
@pytest.mark.parametrize("kind", ["frames", "stacks", "patches", "overlapping"])
def test_audio_tta_shifts_by_half(kind: str, most: int, half: int) -> None:
    tokenizer = TOKENIZERS[kind]
    tta, batch = audio_tta(tokenizer, 1, freq_shift=most / F), make_batch(tokenizer, SOUNDS)
    assert tta is not None
    for view, shift in zip(tta(batch), (0, half, -half), strict=True):
        assert torch.equal(view.mask, batch.mask)
        assert not view.values.mT[~batch.mask].any()
        for plane, before in zip(planes(tokenizer, view), planes(tokenizer, batch), strict=True):
            assert torch.equal(plane, before[:, (torch.arange(F) + shift).clamp(0, F - 1)])
