import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from unifier_tokenizers import Audio, FrameTokenizer, InputError, WaveformTokenizer, check_tokenizer
from unifier_tokenizers.normalization import SpectrogramNorm

Make = Callable[..., Audio]

RATE, F, D = 8000, 20, 12
TIMING: dict[str, Any] = {"sample_rate": RATE, "win_length": 0.032, "hop_length": 0.016}
SHAPES: list[dict[str, Any]] = [{}, {"stack": 4}, {"patch": (4, 5)}, {"patch": (4, 6), "stride": (2, 4)}]


def make(**settings: Any) -> FrameTokenizer:
    return FrameTokenizer(D, **TIMING, n_mels=F, **settings)


@pytest.fixture(scope="module")
def colored(make_noise: Make) -> list[Audio]:
    """Return noise that gets louder, and lower in pitch, with its index."""

    def color(seed: int, samples: int) -> Audio:
        white = torch.as_tensor(make_noise(samples, seed=seed).waveform) * 0.2 * (seed + 1)
        return Audio(white + seed * white.roll(1), RATE)

    return [color(seed, samples) for seed, samples in enumerate((1280, 2560, 1280, 5120))]


def normalized(tokenizer: FrameTokenizer, sound: Audio) -> Tensor:
    """Return the input of the linear map (N, numbers of a token)."""
    inputs: list[Tensor] = []
    with tokenizer.project.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()[0].flatten(1))):
        tokenizer(sound)
    return inputs[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "band", "example"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kind_and_shape_keeps_contract(kind: str, shape: dict[str, Any], colored: list[Audio]) -> None:
    check_tokenizer(make(**shape, normalize=kind).fit(colored), colored)


@pytest.mark.parametrize("kind", ["band", "example"])
def test_learned_filters_keep_contract(kind: Any, colored: list[Audio]) -> None:
    check_tokenizer(WaveformTokenizer(D, **TIMING, n_filters=F, stack=2, normalize=kind).fit(colored), colored)


def test_band_gives_each_band_mean_0_std_1(colored: list[Audio]) -> None:
    tokenizer = make(normalize="band").fit(colored)
    power = torch.cat([normalized(tokenizer, sound) for sound in colored])
    assert power.mean(0).abs().max() < 1e-4
    assert (power.std(0) - 1).abs().max() < 1e-4
    whole = make().fit(colored)
    power = torch.cat([normalized(whole, sound) for sound in colored])
    assert power.mean(0).abs().max() > 0.1, "one mean for all bands must leave each band its own"


def test_example_removes_loudness(colored: list[Audio]) -> None:
    tokenizer = make(normalize="example").fit(colored)
    powers = [normalized(tokenizer, sound) for sound in colored]
    for sound, power in zip(colored, powers, strict=True):
        assert power.mean(0).abs().max() < 1e-4
        louder = Audio(torch.as_tensor(sound.waveform) * 2, RATE)
        torch.testing.assert_close(normalized(tokenizer, louder), power, atol=1e-4, rtol=0)
    assert (torch.cat(powers).std(0) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["whole", "band"])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_tiles_share_normalized_spectrogram(kind: str, shape: dict[str, Any], colored: list[Audio]) -> None:
    plain = normalized(make(normalize=kind).fit(colored), colored[1])  # frames, bands
    tokenizer = make(**shape, normalize=kind).fit(colored)
    steps = torch.tensor([tokenizer.encode(colored[1]).values.shape[1] // tokenizer.tiles.tiles_per_step])
    (joined,) = tokenizer.tiles.join(normalized(tokenizer, colored[1]).T[None], steps)
    assert torch.equal(joined[: len(plain)], plain)


def test_example_patches_use_band_means(colored: list[Audio]) -> None:
    plain = normalized(make(normalize="example").fit(colored), colored[1])
    tokenizer = make(patch=(1, 5), normalize="example").fit(colored)
    (joined,) = tokenizer.tiles.join(normalized(tokenizer, colored[1]).T[None], torch.tensor([len(plain)]))
    torch.testing.assert_close(joined, plain, atol=1e-5, rtol=0)


def test_fit_silent_band_is_not_amplified() -> None:
    norm = SpectrogramNorm("band", 2, 2, 2)
    loud = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)) * 3
    norm.fit([torch.cat([loud, torch.full_like(loud, math.log(1e-6))])])
    assert norm.std[0] == pytest.approx(loud.std().item())
    assert norm.std[1] > norm.std[0] / 10


@pytest.mark.parametrize("kind", ["whole", "band", "example"])
def test_fit_streams_statistics_of_all_sounds(kind: str, colored: list[Audio]) -> None:
    tokenizer = make(normalize=kind)
    references: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def spectrograms() -> Iterator[Tensor]:
        for sound in colored:
            power = tokenizer.spectrogram(sound)
            references.append(weakref.ref(power))
            yield power
            del power
            alive.append(sum(reference() is not None for reference in references))

    tokenizer.norm.fit(spectrograms())
    assert max(alive) <= 1
    powers = [tokenizer.spectrogram(sound) for sound in colored]
    joined = torch.cat(powers, 1)
    mean = joined.mean().expand(F) if kind == "whole" else joined.mean(1)
    centered = torch.cat([power - power.mean(1, keepdim=True) for power in powers], 1) if kind == "example" else joined
    std = joined.std().expand(F) if kind == "whole" else centered.std(1)
    torch.testing.assert_close(tokenizer.norm.mean, mean)
    torch.testing.assert_close(tokenizer.norm.std, std)


def test_fit_one_frame_is_finite_and_none_refused() -> None:
    norm = SpectrogramNorm("band", 2, 2, 2)
    norm.fit([torch.tensor([[1.0], [3.0]])])
    assert norm.mean.tolist() == [1, 3]
    assert norm.std.isfinite().all()
    with pytest.raises(InputError, match="no sound"):
        norm.fit([])


def test_fit_is_saved_in_state_dict(colored: list[Audio]) -> None:
    fitted, fresh = make(normalize="band").fit(colored), make(normalize="band")
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh(colored[0]), fitted(colored[0]))
