"""Changed sounds: each by its own numbers, by the generator's alone, and what is padding stays padding."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchaudio.functional import mask_along_axis_iid

from unifier.augmentation.audio import RandomAudioTransform, audio_tta, augment_audio, draw_masks
from unifier.augmentation.mixup import Mixup
from unifier.data.dataloader import Augmentation, Batch, BudgetUnit, TrainDataLoader, trained_lengths
from unifier.data.encoding import EncodedSplit
from unifier_tokenizers import NO_POSITION, Audio, FrameTokenizer, WaveformTokenizer, pad_columns
from unifier_tokenizers.audio import POWER_FLOOR, AudioTokenizer
from unifier_tokenizers.patches import Tiles

RATE, F, D = 8000, 20, 12
SHAPE: dict[str, Any] = {"sample_rate": 8000, "win_length": 0.032, "hop_length": 0.016}
MEL: dict[str, Any] = {**SHAPE, "n_mels": 20}
FILTERS: dict[str, Any] = {**SHAPE, "n_filters": 20}
TOKENIZERS: dict[str, AudioTokenizer] = {
    "frames": FrameTokenizer(D, **MEL),
    "stacks": FrameTokenizer(D, **MEL, stack=4),
    "patches": FrameTokenizer(D, **MEL, patch=(4, 5)),
    "overlapping": FrameTokenizer(D, **MEL, patch=(5, 6), stride=(2, 4)),
    "waveform": WaveformTokenizer(D, **FILTERS),
    "stretches": WaveformTokenizer(D, **FILTERS, stack=3),
}
CHANGES: list[dict[str, Any]] = [
    {"time_masks": 3},
    {"band_masks": 2},
    {"freq_shift": 0.2, "random_eq": 6.0},
    {"gain": 6.0},
    {"crop": 0.7},
    {"speed_perturb": 0.3},
    {"speed_perturb": 0.3, "crop": 0.7, "gain": 6.0, "time_masks": 2},
]


def noise(samples: int, seed: int) -> Audio:
    return Audio(torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.1, RATE)


SOUNDS = [noise(samples, seed) for seed, samples in enumerate((16000, 9000, 16000, 256, 4000, 16000))]


def batch_of(tokenizer: AudioTokenizer, sounds: list[Audio]) -> Batch:
    values, positions, mask = pad_columns([tokenizer.encode(sound) for sound in sounds])
    places = torch.arange(len(sounds))
    return Batch(values, positions, mask, places + 3, places)


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def changing(tokenizer: AudioTokenizer, **given: Any) -> Augmentation:
    found = augment_audio(tokenizer, **given)
    assert found is not None
    return found


def planes(tokenizer: AudioTokenizer, batch: Batch) -> list[Tensor]:
    """What each example's columns show: (frames, bands)."""
    times = batch.mask.sum(1) // tokenizer.tiles.tiles_per_step
    joined, lengths = tokenizer.tiles.join(batch.values, times), tokenizer.tiles.num_frames(times).tolist()
    return [plane[:length] for plane, length in zip(joined, lengths, strict=True)]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_changed_batch_is_a_batch_and_the_generator_alone_decides_it(kind: str, change: dict[str, Any]) -> None:
    tokenizer = TOKENIZERS[kind]
    if isinstance(tokenizer, WaveformTokenizer) and change.keys() & {"band_masks", "freq_shift"}:
        return
    batch = batch_of(tokenizer, SOUNDS)
    before, random = Batch(*(tensor.clone() for tensor in batch)), torch.get_rng_state()
    augment = changing(tokenizer, **change)
    found, again, other = augment(batch, drawn(1)), augment(batch, drawn(1)), augment(batch, drawn(2))
    assert all(torch.equal(one, two) for one, two in zip(found, again, strict=True))
    assert found.values.shape != other.values.shape or not torch.equal(found.values, other.values)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(one, two) for one, two in zip(batch, before, strict=True)), "what is given stays as it is"
    assert torch.equal(found.target, batch.target)
    assert torch.equal(found.example_indices, batch.example_indices)
    columns = found.mask.sum(1)
    assert torch.equal(found.mask, torch.arange(found.mask.shape[1]) < columns[:, None])
    assert int(columns.max()) == found.mask.shape[1], "the batch is as wide as its longest example"
    assert (columns <= batch.mask.sum(1)).all()
    assert not (columns % tokenizer.tiles.tiles_per_step).any()
    padding = ~found.mask[:, None]
    assert not found.values.masked_select(padding).any()
    assert torch.equal((found.positions == NO_POSITION).all(1), ~found.mask)
    assert not (found.positions == NO_POSITION).any(1)[found.mask].any()
    assert (found.positions.amax(2) <= batch.positions.amax(2)).all(), "no place that an encoding may not have"
    assert found.values.dtype == torch.float32
    assert found.values.isfinite().all()
    for plane, values, real in zip(planes(tokenizer, found), found.values, found.mask, strict=True):
        assert torch.equal(tokenizer.tiles.cut(plane), values[:, real]), "overlapping tiles show the same"
    assert tokenizer.embed(found.values, found.positions).shape == (len(SOUNDS), D, found.mask.shape[1])


@pytest.mark.parametrize("normalize", ["whole", "band"])
@pytest.mark.parametrize("shape", [{}, {"stack": 4}, {"patch": (5, 8), "stride": (2, 4)}], ids=str)
def test_masks_hide_whole_frames_and_whole_bands_by_what_normal_makes_0(shape: Any, normalize: Any) -> None:
    tokenizer = FrameTokenizer(D, **MEL, **shape, normalize=normalize).fit(SOUNDS)
    batch = batch_of(tokenizer, SOUNDS[:3])
    found = changing(tokenizer, time_masks=2, time_width=0.2, band_masks=1, band_width=0.5)(batch, drawn(3))
    assert torch.equal(found.positions, batch.positions)
    hidden = 0
    for plane, before in zip(planes(tokenizer, found), planes(tokenizer, batch), strict=True):
        changed = plane != before
        frames, bands = changed.float().mean(1) > 0.9, changed.float().mean(0) > 0.9
        assert torch.equal(changed, (frames[:, None] | bands) & changed)
        assert torch.equal(plane[changed], tokenizer.norm.mean.expand_as(plane)[changed])
        assert int(frames.sum()) <= 2 * 0.2 * len(plane)
        assert int(bands.sum()) <= 0.5 * F
        hidden += int(changed.sum())
    assert hidden
    tiles, frames = tokenizer.tiles, int(tokenizer.tiles.num_frames(torch.tensor(7)))
    power = tiles.cut(tokenizer.norm.mean.expand(frames, -1)).T[None].unflatten(2, tiles.patch)
    positions = tokenizer.encode(noise(256 + (frames - 1) * 128, 0)).positions[None]
    assert not tokenizer.norm(power, positions).any()


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_masks_hide_as_much_as_torchaudios(share: float) -> None:
    examples, size = 4000, 50
    ours = draw_masks(torch.full((examples,), size), size, 1, share, drawn(0))
    torch.manual_seed(0)
    peer = mask_along_axis_iid(torch.ones(examples, 1, 3, size), round(share * size) + 1, 0.0, 3) == 0
    assert ours.float().mean().item() == pytest.approx(peer.float().mean().item(), rel=0.05)
    assert ours.float().mean(0).argmax() in range(size // 5, size * 4 // 5), "more often the middle than the edges"
    assert ours.sum(1).max() == share * size
    edges = ours.int().diff(dim=1).ne(0).sum(1)
    assert edges.max() <= 2, "one stretch"
    assert ours[:, 0].any()
    assert ours[:, -1].any()


def test_masks_lie_within_their_own_example() -> None:
    lengths = torch.tensor([50, 10, 1, 4])
    found = torch.stack([draw_masks(lengths, 50, 2, 0.5, drawn(seed)) for seed in range(200)])
    for b, length in enumerate(lengths.tolist()):
        assert not found[:, b, length:].any()
        assert found[:, b].any() == (length > 1)
        assert found[:, b].sum(1).max() <= 2 * (length // 2)
    assert len({tuple(mask.tolist()) for mask in draw_masks(torch.full((20,), 50), 50, 1, 0.5, drawn(0))}) > 15


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_crop_is_a_piece_of_the_sound_where_its_positions_say(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    batch = batch_of(tokenizer, SOUNDS)
    found = changing(tokenizer, crop=0.7)(batch, drawn(0))
    most = round(0.7 / tokenizer.step)
    firsts = found.positions[:, 0, 0].tolist()
    pieces = zip(planes(tokenizer, found), planes(tokenizer, batch), firsts, strict=True)
    for piece, whole, first in pieces:
        if len(whole) <= most:
            assert torch.equal(piece, whole)
            continue
        assert most - tokenizer.tiles.stride[0] < len(piece) <= most
        steps = range(tokenizer.tiles.stride[0])
        starts = [first * len(steps) + step for step in steps]
        assert any(torch.equal(piece, whole[start : start + len(piece)]) for start in starts)
    assert len(set(firsts)) > 3, "each example has a place of its own"
    axes = found.positions.shape[1]
    for own in found.positions:
        real = own[:, own[0] != NO_POSITION]
        places = torch.cartesian_prod(real[0].unique(), torch.arange(tokenizer.tiles.tiles_per_step)).T[:axes]
        assert torch.equal(real, places.view_as(real))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_batches_are_planned_by_what_a_crop_leaves(kind: str) -> None:
    tokenizer, own = TOKENIZERS[kind], changing(TOKENIZERS[kind], crop=0.7)
    units = [tokenizer.encode(sound) for sound in SOUNDS]
    split = EncodedSplit(units, [torch.tensor(0)] * len(units), range(len(units)))
    read = own(batch_of(tokenizer, SOUNDS), drawn(0)).mask.sum(1)
    assert trained_lengths(split, own)[:, 0].tolist() == read.tolist()
    assert trained_lengths(split, changing(tokenizer, gain=1.0)).tolist() == split.lengths().tolist()
    budget: dict[BudgetUnit, float] = {"tokens": 4 * int(read.sum())}
    batches = TrainDataLoader({"a": split}, max_tokens=int(read.max()) * 3, seed=0, budget=budget, augment={"a": own})
    sizes = [batch.mask.shape for _, batch in batches]
    assert max(size[0] for size in sizes) >= 3
    assert sum(int(batch.mask.sum()) for _, batch in batches) == budget["tokens"]


def test_of_a_song_no_more_is_put_together_than_a_piece_is_cut_from(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, frames, join = TOKENIZERS["stacks"], list[int](), Tiles.join
    monkeypatch.setattr(Tiles, "join", lambda *given: (frames.append(given[1].shape[2] * 4), join(*given))[1])  # pyright: ignore
    changing(tokenizer, crop=0.64, speed_perturb=0.2)(batch_of(tokenizer, [noise(80000, 0), noise(90000, 1)]), drawn(0))
    assert 40 * 1.2 < frames[0] < 40 * 1.2 + 8


def test_a_crop_begins_everywhere_and_ends_everywhere() -> None:
    tokenizer = TOKENIZERS["frames"]
    batch = batch_of(tokenizer, [noise(256 + 9 * 128, 0)] * 200)
    found = changing(tokenizer, crop=4 * 0.016)(batch, drawn(0))
    assert found.mask.shape[1] == 4
    assert set(found.positions[:, 0, 0].tolist()) == set(range(10 - 4 + 1))


def test_a_crop_of_next_to_nothing_is_one_column_and_a_long_one_changes_nothing() -> None:
    tokenizer = TOKENIZERS["stacks"]
    batch = batch_of(tokenizer, SOUNDS)
    assert (changing(tokenizer, crop=0.001)(batch, drawn(0)).mask.sum(1) == 1).all()
    found = changing(tokenizer, crop=100.0)(batch, drawn(0))
    assert all(torch.equal(one, two) for one, two in zip(found, batch, strict=True))


@pytest.mark.parametrize("kind", ["frames", "stacks", "overlapping"])
def test_a_shift_moves_all_that_a_sound_holds_by_as_many_bands(kind: str) -> None:
    tokenizer, most = TOKENIZERS[kind], 4
    batch = batch_of(tokenizer, [SOUNDS[0]] * 60)
    found = changing(tokenizer, freq_shift=0.2)(batch, drawn(0))
    before = planes(tokenizer, batch)[0]
    low, high = before[:, :1].expand(-1, most), before[:, -1:].expand(-1, most)
    wide = torch.cat([low, before, high], dim=1)
    moved = [wide[:, most - by : most - by + F] for by in range(-most, most + 1)]
    ways = {[torch.equal(after, one) for one in moved].index(True) for after in planes(tokenizer, found)}
    assert ways == set(range(2 * most + 1))


@pytest.mark.parametrize("kind", ["frames", "stretches"])
def test_gain_is_that_of_the_waveform(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    sounds = [SOUNDS[0], SOUNDS[2], SOUNDS[5]]
    batch = batch_of(tokenizer, sounds)
    found = changing(tokenizer, gain=6.0)(batch, drawn(0))
    decibels: list[float] = []
    for sound, after, before in zip(sounds, planes(tokenizer, found), planes(tokenizer, batch), strict=True):
        difference = (after - before).median() * 10 / math.log(10) if kind == "frames" else 0
        decibels.append(float(difference) if kind == "frames" else 20 * math.log10((after / before).nanmedian()))
        louder = Audio(torch.as_tensor(sound.waveform) * 10 ** (decibels[-1] / 20), RATE)
        torch.testing.assert_close(after, planes(tokenizer, batch_of(tokenizer, [louder]))[0], atol=1e-3, rtol=1e-3)
    assert len(set(decibels)) == 3
    assert all(abs(each) <= 6 for each in decibels)


def test_what_is_below_the_floor_is_silence_however_soft_it_is_made() -> None:
    tokenizer = TOKENIZERS["frames"]
    silent = batch_of(tokenizer, [Audio(torch.zeros(4000), RATE)] * 20)
    values = changing(tokenizer, gain=6.0)(silent, drawn(0)).values
    assert values.min() == torch.tensor(POWER_FLOOR).log()


def ramps(tokenizer: AudioTokenizer, lengths: list[int]) -> Batch:
    """Sounds whose frames hold their own number, in all bands."""
    sounds = [noise(256 + (length - 1) * 128, 0) for length in lengths]
    batch = batch_of(tokenizer, sounds)
    times = batch.mask.sum(1) // tokenizer.tiles.tiles_per_step
    frames = torch.arange(int(tokenizer.tiles.num_frames(times).max())).float()
    plane = frames[None, :, None].expand(len(lengths), -1, tokenizer.tiles.bands)
    values = tokenizer.tiles.cut(plane).masked_fill(~batch.mask[:, None], 0)
    return batch._replace(values=values)


@pytest.mark.parametrize("kind", ["frames", "stacks", "overlapping", "waveform"])
def test_stretching_reads_between_frames_at_an_even_speed(kind: str) -> None:
    tokenizer, share = TOKENIZERS[kind], 0.25
    batch = ramps(tokenizer, [60, 60, 33, 1, 60, 60])
    found = changing(tokenizer, speed_perturb=share)(batch, drawn(0))
    speeds: list[float] = []
    silence = tokenizer.tiles.pad_value
    for after, before, first in zip(
        planes(tokenizer, found), planes(tokenizer, batch), found.positions[:, 0, 0].tolist(), strict=True
    ):
        assert (after == after[:, :1]).all()
        read = after[:, 0]
        if silence:
            read = read[read != silence]  # the last tile may reach further than the sound
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
def test_views_are_pieces_from_the_beginning_to_the_end(kind: str) -> None:
    tokenizer, own = TOKENIZERS[kind], changing(TOKENIZERS[kind], crop=0.7)
    assert isinstance(own, RandomAudioTransform)
    views, batch = audio_tta(tokenizer, 3, crop=0.7), batch_of(tokenizer, SOUNDS)
    assert views is not None
    pieces = list(views(batch))
    assert len(pieces) == 3
    lengths = batch.mask.sum(1)
    for piece in pieces:
        assert torch.equal(piece.mask.sum(1), lengths.clamp(max=own.max_length()))
        assert torch.equal(piece.example_indices, batch.example_indices)
        for b in range(len(SOUNDS)):
            real, first = piece.mask[b], int(piece.positions[b, 0, 0]) * tokenizer.tiles.tiles_per_step
            within = slice(first, first + int(real.sum()))
            assert torch.equal(piece.values[b][:, real], batch.values[b][:, within])
            assert torch.equal(piece.positions[b][:, real], batch.positions[b][:, within])
            assert not piece.values[b][:, ~real].any()
            assert (piece.positions[b][:, ~real] == NO_POSITION).all()
    starts = torch.stack([piece.positions[:, 0, 0] for piece in pieces])
    assert (starts[0] == 0).all()
    assert torch.equal(starts[-1] * tokenizer.tiles.tiles_per_step, (lengths - pieces[-1].mask.sum(1)))
    assert len(set(starts[:, 0].tolist())) == 3


@pytest.mark.parametrize(("most", "half"), [(4, 2), (3, 2), (1, 1)])
@pytest.mark.parametrize("kind", [kind for kind, one in TOKENIZERS.items() if isinstance(one, FrameTokenizer)])
def test_views_are_moved_both_ways_by_half_of_what_training_moves(kind: str, most: int, half: int) -> None:
    views, batch = audio_tta(TOKENIZERS[kind], 1, freq_shift=most / F), batch_of(TOKENIZERS[kind], SOUNDS)
    assert views is not None
    for view, by in zip(views(batch), (0, half, -half), strict=True):
        assert torch.equal(view.mask, batch.mask)
        assert not view.values.mT[~batch.mask].any()
        for plane, before in zip(planes(TOKENIZERS[kind], view), planes(TOKENIZERS[kind], batch), strict=True):
            assert torch.equal(plane, before[:, (torch.arange(F) + by).clamp(0, F - 1)])


def test_what_is_hidden_of_a_quiet_sound_is_nothing_by_its_own_mean() -> None:
    tokenizer = FrameTokenizer(D, **MEL, normalize="example").fit(SOUNDS[:1])
    batch = batch_of(tokenizer, [Audio(SOUNDS[0].waveform * 0.01, RATE)] * 8)
    found = changing(tokenizer, time_masks=2, band_masks=1)(batch, drawn(0))
    for plane, before in zip(planes(tokenizer, found), planes(tokenizer, batch), strict=True):
        hidden = plane != before
        assert hidden.any()
        torch.testing.assert_close(plane[hidden], before.mean(0).expand_as(before)[hidden], atol=0.5, rtol=0)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_sounds_of_unlike_length_are_mixed_before_anything_else_is_done(kind: str) -> None:
    """So that every piece of them holds as much of either as its target says."""
    tokenizer = TOKENIZERS[kind]
    batch = batch_of(tokenizer, [noise(12000, 0), noise(5000, 1)])
    batch = batch._replace(
        values=(batch.example_indices[:, None, None] + 1.0).expand_as(batch.values) * batch.mask[:, None]
    )
    mixed = 0
    for seed in range(8):
        found = changing(tokenizer, mixup=Mixup(9, 1.0), crop=0.3)(batch, drawn(seed))
        for plane, label in zip(planes(tokenizer, found), found.target[:, 3:5, 0], strict=True):
            torch.testing.assert_close(plane, (label * torch.tensor([1.0, 2.0])).sum().expand_as(plane))
        mixed += int((found.target > 0).sum(1).eq(2).sum())
    assert mixed >= 4
