"""Log power is brought to mean 0 and spread 1: of all bands, of each band, or of each band in its example."""

import math
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from unifier_tokenizers import Audio, FrameTokenizer, InputError, Tokenizer, WaveformTokenizer, check_tokenizer
from unifier_tokenizers.normalization import SpectrogramNorm

RATE, F, D = 8000, 20, 12
SHAPE: dict[str, Any] = {"rate": RATE, "window": 0.032, "hop": 0.016, "bands": F}


def noise(samples: int, seed: int) -> Audio:
    """Noise that is louder, and rather in low than in high bands, the higher the seed."""
    white = torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.02 * (seed + 1)
    return Audio(white + seed * white.roll(1), RATE)


SOUNDS = [noise(samples, seed) for seed, samples in enumerate((1280, 2560, 1280, 5120))]
SHAPES: list[dict[str, Any]] = [{}, {"stack": 4}, {"patch": (4, 5)}, {"patch": (4, 6), "stride": (2, 4)}]


def projected(tokenizer: FrameTokenizer, sound: Audio) -> Tensor:
    """What of a sound goes into the linear map: (N, numbers of a column)."""
    seen: list[Tensor] = []
    with tokenizer.project.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()[0].flatten(1))):
        tokenizer(sound)
    return seen[0]


@pytest.mark.parametrize("kind", ["whole", "band", "example"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kind_keeps_the_contract_in_every_shape(kind: Any, shape: dict[str, Any]) -> None:
    check_tokenizer(FrameTokenizer(D, **SHAPE, **shape, normalize=kind).fit(SOUNDS), SOUNDS)


@pytest.mark.parametrize("kind", ["band", "example"])
def test_the_learned_bank_is_made_normal_too(kind: Any) -> None:
    check_tokenizer(WaveformTokenizer(D, **SHAPE, stack=2, normalize=kind).fit(SOUNDS), SOUNDS)


def test_each_band_has_mean_0_and_spread_1_over_the_sounds_it_was_fitted_to() -> None:
    tokenizer = FrameTokenizer(D, **SHAPE, normalize="band").fit(SOUNDS)
    normal = torch.cat([projected(tokenizer, sound) for sound in SOUNDS])
    assert normal.mean(0).abs().max() < 1e-4
    assert (normal.std(0) - 1).abs().max() < 1e-4
    whole = torch.cat([projected(FrameTokenizer(D, **SHAPE).fit(SOUNDS), sound) for sound in SOUNDS])
    assert whole.mean(0).abs().max() > 0.1, "one mean for all bands leaves each its own"


def test_each_band_of_each_sound_has_mean_0_however_loud_it_is() -> None:
    tokenizer = FrameTokenizer(D, **SHAPE, normalize="example").fit(SOUNDS)
    louder = [Audio(torch.as_tensor(sound.waveform) * 2, RATE) for sound in SOUNDS]
    for sound, twice in zip(SOUNDS, louder, strict=True):
        normal = projected(tokenizer, sound)
        assert normal.mean(0).abs().max() < 1e-4
        torch.testing.assert_close(projected(tokenizer, twice), normal, atol=1e-4, rtol=0)
    normal = torch.cat([projected(tokenizer, sound) for sound in SOUNDS])
    assert (normal.std(0) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["whole", "band"])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_stacks_and_patches_are_cut_from_the_same_normal_spectrogram(kind: Any, shape: dict[str, Any]) -> None:
    plain = projected(FrameTokenizer(D, **SHAPE, normalize=kind).fit(SOUNDS), SOUNDS[1])  # frames, bands
    tokenizer = FrameTokenizer(D, **SHAPE, **shape, normalize=kind).fit(SOUNDS)
    times = torch.tensor([tokenizer.encode(SOUNDS[1]).values.shape[1] // tokenizer.tiles.across])
    (joined,) = tokenizer.tiles.join(projected(tokenizer, SOUNDS[1]).T[None], times)
    assert torch.equal(joined[: len(plain)], plain)


def test_patches_of_an_example_have_its_own_bands_means() -> None:
    plain = projected(FrameTokenizer(D, **SHAPE, normalize="example").fit(SOUNDS), SOUNDS[1])
    tokenizer = FrameTokenizer(D, **SHAPE, patch=(1, 5), normalize="example").fit(SOUNDS)
    (joined,) = tokenizer.tiles.join(projected(tokenizer, SOUNDS[1]).T[None], torch.tensor([len(plain)]))
    torch.testing.assert_close(joined, plain, atol=1e-5, rtol=0)


def test_a_band_that_is_silent_where_it_was_fitted_is_not_blown_up() -> None:
    normal = SpectrogramNorm("band", 2, 2, 2)
    loud = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)) * 3
    normal.fit([torch.cat([loud, torch.full_like(loud, math.log(1e-6))])])
    assert normal.std[0] == pytest.approx(loud.std().item())
    assert normal.std[1] > normal.std[0] / 10


@pytest.mark.parametrize("kind", ["whole", "band", "example"])
def test_statistics_are_those_of_all_sounds_together_and_one_is_held_at_a_time(kind: Any) -> None:
    tokenizer = FrameTokenizer(D, **SHAPE, normalize=kind)
    held: list[weakref.ref[Tensor]] = []
    most = 0

    def spectrograms() -> Iterator[Tensor]:
        nonlocal most
        for sound in SOUNDS:
            power = tokenizer.spectrogram(sound)
            held.append(weakref.ref(power))
            yield power
            del power
            most = max(most, sum(one() is not None for one in held))

    tokenizer.normal.fit(spectrograms())
    assert most <= 1
    given = [tokenizer.spectrogram(sound) for sound in SOUNDS]
    together = torch.cat(given, 1)
    mean = together.mean().expand(F) if kind == "whole" else together.mean(1)
    less = torch.cat([one - one.mean(1, keepdim=True) for one in given], 1) if kind == "example" else together
    std = together.std().expand(F) if kind == "whole" else less.std(1)
    torch.testing.assert_close(tokenizer.normal.mean, mean)
    torch.testing.assert_close(tokenizer.normal.std, std)


def test_no_sound_has_no_mean() -> None:
    with pytest.raises(InputError, match="a mean cannot be taken from no sound: give it at least one"):
        FrameTokenizer(D, **SHAPE).fit([])


def test_one_frame_is_enough_to_fit_to() -> None:
    normal = SpectrogramNorm("band", 2, 2, 2)
    normal.fit([torch.tensor([[1.0], [3.0]])])
    assert normal.mean.tolist() == [1, 3]
    assert normal.std.isfinite().all()


def test_no_such_kind() -> None:
    with pytest.raises(InputError, match="no normalize 'batch': choose one of whole, band, example"):
        FrameTokenizer(D, normalize="batch")  # pyright: ignore[reportArgumentType]


def test_what_was_fitted_is_saved() -> None:
    tokenizer: Tokenizer = FrameTokenizer(D, **SHAPE, normalize="band").fit(SOUNDS)
    fresh = FrameTokenizer(D, **SHAPE, normalize="band")
    fresh.load_state_dict(tokenizer.state_dict())
    assert torch.equal(fresh(SOUNDS[0]), tokenizer(SOUNDS[0]))
