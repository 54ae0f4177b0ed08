"""Sounds become columns: every configuration, any rate, torchaudio's spectrogram, and clear words for bad ones."""

import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchaudio.transforms import MelSpectrogram

from unifier_tokenizers import Audio, FrameTokenizer, InputError, check_tokenizer
from unifier_tokenizers.audio import MAX_RATIO_TERM, POWER_FLOOR, RATIO_TOLERANCE, resampling_ratio

D, F, RATE = 12, 20, 8000
SHAPE: dict[str, Any] = {"rate": RATE, "window": 0.032, "hop": 0.016, "bands": F}
"""256 samples a window and 128 a hop."""


def noise(samples: int, rate: int = RATE, channels: int = 0, seed: int = 0) -> Audio:
    shape = (channels, samples) if channels else (samples,)
    return Audio(torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.1, rate)


def tone(frequency: float, rate: int, seconds: float = 0.5) -> Audio:
    return Audio(torch.sin(2 * math.pi * frequency * torch.arange(int(seconds * rate)) / rate), rate)


SOUNDS = [
    noise(1000),
    noise(2570, seed=1),
    noise(1000, seed=2),
    noise(5000, 16000, seed=3),
    noise(4410, 11025, channels=2),
    noise(900, 4000, channels=1),
]
CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"positions": "none"},
    {"positions": "learned"},
    {"stack": 3},
    {"stack": 4, "stem": "strided"},
    {"stack": 8, "stem": "pooled", "positions": "learned", "normalize": "example"},
    {"stack": 50, "positions": "learned", "dropout": 0.1},
    {"patch": (4, 5)},
    {"patch": (4, 6), "stride": (2, 4), "positions": "learned"},
    {"patch": (3, 20), "stride": (1, 20), "positions": "none"},
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_every_configuration_keeps_the_contract(configuration: dict[str, Any]) -> None:
    check_tokenizer(FrameTokenizer(D, **SHAPE, **configuration), SOUNDS)


def test_the_defaults_keep_the_contract() -> None:
    check_tokenizer(FrameTokenizer(D), [noise(4000, 16000), noise(9000, 22050, seed=1), tone(440, 44100)])


def test_the_spectrogram_is_torchaudios() -> None:
    peer = MelSpectrogram(RATE, n_fft=256, win_length=256, hop_length=128, n_mels=F, center=False)
    sound = noise(2000)
    expected = peer(torch.as_tensor(sound.waveform)).clamp(min=POWER_FLOOR).log()
    torch.testing.assert_close(FrameTokenizer(D, **SHAPE).spectrogram(sound), expected)


def test_columns_are_stacks_and_patches_of_the_spectrogram() -> None:
    sound = noise(2570)
    frames = FrameTokenizer(D, **SHAPE).spectrogram(sound).T
    plain, places = FrameTokenizer(D, **SHAPE).encode(sound)
    assert torch.equal(plain, frames.T)
    assert torch.equal(places, torch.arange(len(frames))[None])
    stacked, _ = FrameTokenizer(D, **SHAPE, stack=4).encode(sound)
    assert stacked.shape == (4 * F, math.ceil(len(frames) / 4))
    laid_out = stacked.T.reshape(-1, F)
    assert torch.equal(laid_out[: len(frames)], frames)
    assert (laid_out[len(frames) :] == math.log(POWER_FLOOR)).all(), "the last stack is filled with silence"
    patches, places = FrameTokenizer(D, **SHAPE, patch=(4, 6), stride=(2, 4)).encode(sound)
    padded = torch.nn.functional.pad(frames, (0, 6, 0, 4), value=math.log(POWER_FLOOR))
    for patch, (time, band) in zip(patches.T, places.T.tolist(), strict=True):
        assert torch.equal(patch.view(4, 6), padded[time * 2 :, band * 4 :][:4, :6])
    times, bands = (places.amax(1) + 1).tolist()
    assert (times - 2) * 2 + 4 < len(frames) <= (times - 1) * 2 + 4, "all frames are there, and no column too many"
    assert (bands - 2) * 4 + 6 < F <= (bands - 1) * 4 + 6


COMMON = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000)


@pytest.mark.parametrize("new", COMMON)
def test_common_rates_are_resampled_exactly(new: int) -> None:
    assert all(resampling_ratio(old, new) == Fraction(old, new) for old in COMMON)


@pytest.mark.parametrize("old", [1, 7, 7919, 8001, 15999, 22051, 44056, 44101, 47999, 96001, 191_999, 1_000_003])
@pytest.mark.parametrize("new", [8000, 16000, 44100])
def test_any_other_rates_have_a_simple_ratio_near_by(old: int, new: int) -> None:
    ratio = resampling_ratio(old, new)
    assert abs(ratio / Fraction(old, new) - 1) <= RATIO_TOLERANCE
    assert ratio.numerator * ratio.denominator <= MAX_RATIO_TERM**2


@pytest.mark.parametrize("rate", [44101, 96001])
def test_no_rate_takes_long_or_much_memory(rate: int) -> None:
    """In a process of its own, whose most memory is its own; exactly, each of these takes gigabytes."""
    script = f"""
import resource, time, torch
from unifier_tokenizers import FrameTokenizer, Sound
tokenizer, sound = FrameTokenizer(8), Sound(torch.randn(30 * {rate}), {rate})
tokenizer.encode(Sound(torch.randn(16000), 16000))
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
frames = tokenizer.encode(sound).values.shape[1]
print(frames, time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    frames, seconds, kibibytes = map(float, told.split())
    assert frames == pytest.approx(3000, rel=0.002)
    assert seconds < 5
    assert kibibytes < 200 * 1024


@pytest.mark.parametrize("frequency", [300.0, 1000.0, 2500.0])
@pytest.mark.parametrize("rate", [11025, 16000, 44100, 44101, 96000, 96001])
def test_a_tone_keeps_its_peak_at_any_rate(frequency: float, rate: int) -> None:
    tokenizer = FrameTokenizer(D, **SHAPE)
    at_home, resampled = (tokenizer.spectrogram(tone(frequency, each)).exp().mean(1) for each in (RATE, rate))
    assert at_home.argmax() == resampled.argmax()
    assert resampled.max() / at_home.max() == pytest.approx(1, abs=0.1)


def test_higher_tones_peak_higher() -> None:
    tokenizer = FrameTokenizer(D, **SHAPE)
    peaks = [int(tokenizer.spectrogram(tone(f, RATE)).mean(1).argmax()) for f in (200, 500, 1000, 2000, 3500)]
    assert peaks == sorted(set(peaks))


def test_what_is_above_half_the_rate_is_filtered_not_folded() -> None:
    tokenizer = FrameTokenizer(D, **SHAPE)
    middle = tokenizer.spectrogram(tone(6000, 16000)).exp()[:, 4:-4]
    assert middle.max() < 1e-2 * tokenizer.spectrogram(tone(2000, 16000)).exp().max()


def test_channels_are_averaged_and_kinds_of_waveforms_agree() -> None:
    tokenizer = FrameTokenizer(D, **SHAPE)
    stereo = noise(1500, channels=2).waveform
    assert isinstance(stereo, Tensor)
    mono = stereo.mean(0)
    fixed = mono.numpy().copy()
    fixed.setflags(write=False)
    kinds: list[Any] = [stereo, mono[None], mono.numpy(), fixed, mono.double().numpy(), mono.flip(0).numpy()[::-1]]
    for waveform in kinds:
        assert torch.equal(tokenizer.encode(Audio(waveform, RATE)).values, tokenizer.encode(Audio(mono, RATE)).values)
    assert torch.equal(
        tokenizer.encode(Audio(mono, np.float64(RATE))).values,  # pyright: ignore[reportArgumentType]
        tokenizer.encode(Audio(mono, RATE)).values,
    )


def test_silence_is_the_floor_everywhere() -> None:
    values = FrameTokenizer(D, **SHAPE).encode(Audio(torch.zeros(1000), RATE)).values
    assert (values == torch.tensor(POWER_FLOOR).log()).all()


@pytest.mark.parametrize("rate", [RATE, 44100])
@pytest.mark.parametrize("samples", [0, 1, 2, 200])
def test_a_sound_shorter_than_a_window(samples: int, rate: int) -> None:
    with pytest.raises(InputError, match=r"shorter than one window \(0\.032 s\)|not one of shape \(0,\)") as error:
        FrameTokenizer(D, **SHAPE).encode(Audio(torch.zeros(samples), rate))
    assert "\n" not in str(error.value)


def test_one_window_is_one_column() -> None:
    assert FrameTokenizer(D, **SHAPE)(noise(256)).shape == (D, 1)
    assert FrameTokenizer(D, **SHAPE, patch=(8, 5))(noise(256)).shape == (D, 4)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (Audio(torch.full((1000,), math.nan), RATE), "samples that are not numbers"),
        (Audio(torch.full((2, 1000), math.inf), RATE), "samples that are not numbers"),
        (Audio(torch.zeros(1, 2, 1000), RATE), r"not one of shape \(1, 2, 1000\)"),
        (Audio(np.zeros((1000, 2)), RATE), r"\(channels, samples\) .* not one of shape \(1000, 2\)"),
        (Audio(torch.zeros(0, 1000), RATE), r"not one of shape \(0, 1000\)"),
        (Audio(torch.zeros(1000), 0), "at 0 Hz"),
        (Audio(torch.zeros(1000), -8000), "at -8000 Hz"),
        (Audio(torch.zeros(1000), 8000.5), "at a whole rate above 0 Hz"),  # pyright: ignore[reportArgumentType]
        (Audio(np.zeros(1000, np.int16), RATE), "floats in -1 to 1, not torch.int16"),  # pyright: ignore[reportArgumentType]
        (torch.zeros(1000), r"a Sound\(waveform, rate\) is expected, not Tensor"),
    ],
    ids=str,
)
def test_what_is_no_sound(raw: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        FrameTokenizer(D, **SHAPE).encode(raw)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"patch": (2, 4), "stack": 2}, "stack or patch, not both"),
        ({"stride": (1, 1)}, "without a patch there is nothing to move"),
        ({"stack": 0}, "stack=0: a column has at least 1 frame"),
        ({"patch": (2, 4), "stride": (0, 4)}, r"stride=\(0, 4\): a step has at least"),
        ({"patch": (0, 4)}, r"patch=\(0, 4\): a column has at least"),
        ({"hop": 0.0}, "leave no sample"),
        ({"window": 0.00001}, "leave no sample"),
        ({"patch": (2, 4), "stride": (3, 4)}, r"a stride of \(3, 4\) skips parts of a patch"),
        ({"patch": (2, F + 1)}, f"{F + 1} bands does not fit a spectrogram of {F}"),
    ],
)
def test_configurations_that_cannot_be(configuration: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        FrameTokenizer(D, **{**SHAPE, **configuration})


def test_a_sound_longer_than_the_learned_positions_names_the_way_out() -> None:
    tokenizer = FrameTokenizer(D, **SHAPE, positions="learned", length=6)
    tokenizer.encode(noise(256 + 5 * 128))
    with pytest.raises(InputError, match=r"7 places on axis 0 and only 6 learned positions: .*larger length"):
        tokenizer.encode(noise(256 + 6 * 128))


def test_fit_makes_mean_0_and_std_1() -> None:
    tokenizer, seen = FrameTokenizer(D, **SHAPE), list[Tensor]()
    assert tokenizer.fit(SOUNDS) is tokenizer
    tokenizer.normal.register_forward_hook(lambda *given: seen.append(given[2].detach().flatten()))
    for sound in SOUNDS:
        tokenizer(sound)
    normal = torch.cat(seen)
    assert normal.mean().item() == pytest.approx(0, abs=1e-4)
    assert normal.std().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("shape", [{"stack": 2}, {"patch": (2, 5)}], ids=str)
def test_coordinates_are_the_seconds_that_a_click_is_heard_at(shape: dict[str, Any]) -> None:
    tokenizer = FrameTokenizer(D, **SHAPE, **shape)
    waveform = torch.zeros(4000)
    waveform[1000:1008] = 1.0
    units = tokenizer.encode(Audio(waveform, RATE))
    (seconds,) = tokenizer.position_values(units)
    loud = units.values.logsumexp(0)
    heard = (seconds * (loud - loud.min())).sum() / (loud - loud.min()).sum()
    assert abs(float(heard) - 1004 / RATE) < SHAPE["hop"] / 2
