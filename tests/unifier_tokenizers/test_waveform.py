"""Filters that learn on the waveform: the contract, where tones are heard, and that the filters do learn."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchaudio.functional import melscale_fbanks

from unifier_tokenizers import Audio, InputError, WaveformTokenizer, check_tokenizer
from unifier_tokenizers.audio import POWER_FLOOR, mel_filter_bank

D, F, RATE = 12, 20, 8000
SHAPE: dict[str, Any] = {"rate": RATE, "window": 0.032, "hop": 0.016, "bands": F}
"""256 samples a window and 128 a hop."""


def noise(samples: int, rate: int = RATE, channels: int = 0, seed: int = 0) -> Audio:
    shape = (channels, samples) if channels else (samples,)
    return Audio(torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.1, rate)


def tone(frequency: float, rate: int = RATE) -> Audio:
    return Audio(torch.sin(2 * math.pi * frequency * torch.arange(rate // 2) / rate), rate)


SOUNDS = [noise(1000), noise(2570, seed=1), noise(1000, seed=2), noise(5000, 16000, seed=3), noise(4410, 11025, 2)]


@pytest.mark.parametrize("positions", ["none", "sinusoid", "learned"])
@pytest.mark.parametrize("stack", [1, 3])
def test_every_configuration_keeps_the_contract(positions: Any, stack: int) -> None:
    check_tokenizer(WaveformTokenizer(D, **SHAPE, stack=stack, positions=positions, dropout=0.1), SOUNDS)


def test_columns_are_stretches_of_the_waveform() -> None:
    sound = noise(2570)
    waveform = torch.as_tensor(sound.waveform)
    values, positions = WaveformTokenizer(D, **SHAPE, stack=3).encode(sound)
    assert values.shape == (256 + 2 * 128, 7)
    assert positions.tolist() == [list(range(7))]
    for column, stretch in enumerate(values.T):
        there = waveform[column * 384 :][:512]
        assert torch.equal(stretch[: len(there)], there)
        assert not stretch[len(there) :].any(), "the last stretch is filled with silence"


def test_a_column_is_the_same_frames_in_a_stack_and_alone() -> None:
    sound = noise(2560)
    alone, stacked = (WaveformTokenizer(D, **SHAPE, stack=stack).spectrogram(sound) for stack in (1, 3))
    torch.testing.assert_close(stacked[:, : alone.shape[1]], alone)


def test_pitches_are_the_peaks_of_a_mel_filter_bank() -> None:
    tokenizer = WaveformTokenizer(D, **SHAPE)
    peer = melscale_fbanks(RATE // 2 + 1, 0, RATE / 2, F, RATE)  # a row for each Hz
    for band, pitch in enumerate(peer.argmax(0).tolist()):
        assert tokenizer.spectrogram(tone(pitch)).mean(1).argmax() == band


def test_power_is_that_of_a_fourier_transform() -> None:
    bank = mel_filter_bank(RATE, 256, F)
    pitches = 700 * torch.expm1(torch.linspace(0, math.log1p(RATE / 2 / 700), F + 2)[1:-1]).double()
    frame = torch.as_tensor(noise(256).waveform).double()
    turning = torch.exp(-2j * math.pi * torch.arange(256)[:, None] * pitches / RATE)
    expected = (frame[:, None] * torch.hann_window(256)[:, None] * turning).sum(0).abs() ** 2
    cosine, sine = (frame @ bank.double()).chunk(2)
    torch.testing.assert_close(cosine**2 + sine**2, expected, rtol=1e-3, atol=1e-5)
    found = WaveformTokenizer(D, **SHAPE).spectrogram(noise(256))[:, 0].double()
    torch.testing.assert_close(found, (expected + POWER_FLOOR).log(), rtol=1e-3, atol=1e-3)


def test_the_filters_learn() -> None:
    """A bank of one filter, whose pitch lies between two tones, comes to let one of them through alone."""
    tokenizer = WaveformTokenizer(
        1, sample_rate=RATE, win_length=0.032, hop_length=0.032, n_filters=1, positions="none"
    )
    pitch = 700 * (math.sqrt(1 + RATE / 2 / 700) - 1)
    torch.nn.init.ones_(tokenizer.project.out.weight)
    optimizer = torch.optim.Adam([tokenizer.bank], 0.02)

    def apart() -> Tensor:
        return (tokenizer(tone(pitch - 20)) - tokenizer(tone(pitch + 20))).mean()

    assert apart().abs() < 0.1
    for _ in range(30):
        optimizer.zero_grad()
        (-apart()).backward()
        optimizer.step()
    assert apart() > 1


def test_fit_makes_mean_0_and_std_1() -> None:
    tokenizer, seen = WaveformTokenizer(D, **SHAPE), list[Tensor]()
    assert tokenizer.fit(SOUNDS) is tokenizer
    tokenizer.normal.register_forward_hook(lambda *given: seen.append(given[2].detach().flatten()))
    for sound in SOUNDS:
        tokenizer(sound)
    normal = torch.cat(seen)
    assert normal.mean().item() == pytest.approx(0, abs=1e-3)
    assert normal.std().item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("normalize", ["whole", "band"])
def test_features_are_as_exact_under_autocast(normalize: Any) -> None:
    tokenizer, seen = WaveformTokenizer(D, **SHAPE, normalize=normalize).fit(SOUNDS), list[Tensor]()
    tokenizer.normal.register_forward_hook(lambda *given: seen.append(given[2].detach()))
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            tokenizer(noise(2570))
    torch.testing.assert_close(seen[1], seen[0])


def test_coordinates_are_the_seconds_that_a_click_is_heard_at() -> None:
    tokenizer = WaveformTokenizer(D, **SHAPE, stack=2)
    waveform = torch.zeros(4000)
    waveform[1000:1008] = 1.0
    units = tokenizer.encode(Audio(waveform, RATE))
    (seconds,) = tokenizer.position_values(units)
    nearest = int((seconds - 1004 / RATE).abs().argmin())
    assert units.values[:, nearest].abs().sum() == units.values.abs().sum(0).max()


def test_silence_is_the_floor_everywhere() -> None:
    found = WaveformTokenizer(D, **SHAPE).spectrogram(Audio(torch.zeros(1000), RATE))
    assert (found == torch.tensor(POWER_FLOOR).log()).all()


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"stack": 0}, "stack=0, bands=20: at least 1"),
        ({"hop": 0.0}, "leave no sample"),
        ({"bands": 0}, "at least 1"),
        ({"window": 0.01, "hop": 0.02}, r"a hop of 0\.02 s skips what lies between windows of 0\.01 s"),
    ],
)
def test_configurations_that_cannot_be(configuration: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        WaveformTokenizer(D, **{**SHAPE, **configuration})


def test_what_is_no_sound_and_what_is_too_short() -> None:
    tokenizer: Any = WaveformTokenizer(D, **SHAPE)
    with pytest.raises(InputError, match=r"a Sound\(waveform, rate\) is expected, not Tensor"):
        tokenizer.encode(torch.zeros(1000))
    with pytest.raises(InputError, match=r"a sound of 0\.032 s is shorter than one window \(0\.032 s\)"):
        tokenizer.encode(noise(255))
    assert tokenizer(noise(256)).shape == (D, 1)
