"""Log-mel frames and learned filters: the contract, torchaudio's spectrogram, any sample rate, and bad input."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torchaudio
from torch import Tensor
from torch.nn import functional
from torchaudio.functional import melscale_fbanks
from torchaudio.transforms import MelSpectrogram

from unifier_tokenizers import Audio, FrameTokenizer, InputError, WaveformTokenizer, audio, check_tokenizer
from unifier_tokenizers.audio import (
    MAX_RATIO_TERM,
    POWER_FLOOR,
    RATIO_TOLERANCE,
    gabor_filters,
    resample,
    resampling_ratio,
)

Make = Callable[..., Audio]
Kind = type[FrameTokenizer] | type[WaveformTokenizer]

D, F, RATE = 12, 20, 8000
TIMING: dict[str, Any] = {"sample_rate": RATE, "win_length": 0.032, "hop_length": 0.016}
"""256 samples per window and 128 per hop."""
FRAMES: dict[str, Any] = {**TIMING, "n_mels": F}
FILTERS: dict[str, Any] = {**TIMING, "n_filters": F}
KINDS = [FrameTokenizer, WaveformTokenizer]
FRAME_SETTINGS: list[dict[str, Any]] = [
    *[{}, {"positions": "none"}, {"positions": "learned"}, {"stack": 3}, {"stack": 4, "stem": "strided"}],
    {"stack": 8, "stem": "pooled", "positions": "learned", "normalize": "example"},
    *[{"stack": 50, "positions": "learned", "dropout": 0.1}, {"patch": (4, 5)}],
    {"patch": (4, 6), "stride": (2, 4), "positions": "learned"},
    {"patch": (3, 20), "stride": (1, 20), "positions": "none"},
]
COMMON_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000)


def frame_tokenizer(**settings: Any) -> FrameTokenizer:
    return FrameTokenizer(D, **(FRAMES | settings))


def waveform_tokenizer(**settings: Any) -> WaveformTokenizer:
    return WaveformTokenizer(D, **(FILTERS | settings))


def make(kind: Kind, **settings: Any) -> FrameTokenizer | WaveformTokenizer:
    return (frame_tokenizer if kind is FrameTokenizer else waveform_tokenizer)(**settings)


def normalized(tokenizer: FrameTokenizer | WaveformTokenizer, sounds: list[Audio]) -> Tensor:
    """Return all log power after normalization."""
    outputs: list[Tensor] = []
    with tokenizer.norm.register_forward_hook(lambda *call: outputs.append(call[2].detach().flatten())):
        for sound in sounds:
            tokenizer(sound)
    return torch.cat(outputs)


@pytest.mark.slow
@pytest.mark.parametrize("settings", FRAME_SETTINGS, ids=str)
def test_frames_keep_contract(settings: dict[str, Any], sounds: list[Audio]) -> None:
    check_tokenizer(frame_tokenizer(**settings), sounds)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["none", "sinusoid", "learned"])
@pytest.mark.parametrize("stack", [1, 3])
def test_waveform_keeps_contract(positions: str, stack: int, sounds: list[Audio]) -> None:
    check_tokenizer(waveform_tokenizer(stack=stack, positions=positions, dropout=0.1), sounds[:5])


def test_defaults_keep_contract(make_noise: Make, make_tone: Make) -> None:
    check_tokenizer(
        FrameTokenizer(D), [make_noise(4000, 16000), make_noise(9000, 22050, seed=1), make_tone(440, 44100)]
    )


def test_spectrogram_is_torchaudios(make_noise: Make) -> None:
    peer = MelSpectrogram(RATE, n_fft=256, win_length=256, hop_length=128, n_mels=F, center=False)
    sound = make_noise(2000)
    expected = peer(torch.as_tensor(sound.waveform)).clamp(min=POWER_FLOOR).log()
    torch.testing.assert_close(frame_tokenizer().spectrogram(sound), expected)


def test_frames_are_stacks_and_patches(make_noise: Make) -> None:
    sound, silence = make_noise(2570), math.log(POWER_FLOOR)
    frames = frame_tokenizer().spectrogram(sound).T
    values, positions = frame_tokenizer().encode(sound)
    assert torch.equal(values, frames.T)
    assert torch.equal(positions, torch.arange(len(frames))[None])
    stacked, _ = frame_tokenizer(stack=4).encode(sound)
    assert stacked.shape == (4 * F, math.ceil(len(frames) / 4))
    flat = stacked.T.reshape(-1, F)
    assert torch.equal(flat[: len(frames)], frames)
    assert (flat[len(frames) :] == silence).all(), "silence must fill the last stack"
    patches, positions = frame_tokenizer(patch=(4, 6), stride=(2, 4)).encode(sound)
    padded = functional.pad(frames, (0, 6, 0, 4), value=silence)
    for patch, (time, band) in zip(patches.T, positions.T.tolist(), strict=True):
        assert torch.equal(patch.view(4, 6), padded[time * 2 :, band * 4 :][:4, :6])
    times, bands = (positions.amax(1) + 1).tolist()
    assert (times - 2) * 2 + 4 < len(frames) <= (times - 1) * 2 + 4
    assert (bands - 2) * 4 + 6 < F <= (bands - 1) * 4 + 6


def test_waveform_tokens_are_stretches(make_noise: Make) -> None:
    sound = make_noise(2570)
    values, positions = waveform_tokenizer(stack=3).encode(sound)
    assert (values.shape, positions.tolist()) == ((256 + 2 * 128, 7), [list(range(7))])
    for token, stretch in enumerate(values.T):
        samples = torch.as_tensor(sound.waveform)[token * 384 :][:512]
        assert torch.equal(stretch[: len(samples)], samples)
        assert not stretch[len(samples) :].any(), "silence must fill the last stretch"
    single, stacked = (waveform_tokenizer(stack=stack).spectrogram(make_noise(2560)) for stack in (1, 3))
    torch.testing.assert_close(stacked[:, : single.shape[1]], single)


@pytest.mark.parametrize("target_rate", COMMON_RATES)
def test_ratio_common_rates_exact(target_rate: int) -> None:
    assert all(resampling_ratio(rate, target_rate) == Fraction(rate, target_rate) for rate in COMMON_RATES)


@pytest.mark.parametrize("rate", [1, 7, 7919, 8001, 15999, 22051, 44056, 44101, 47999, 96001, 191_999, 1_000_003])
@pytest.mark.parametrize("target_rate", [8000, 16000, 44100])
def test_ratio_other_rates_simple_and_near(rate: int, target_rate: int) -> None:
    ratio = resampling_ratio(rate, target_rate)
    assert abs(ratio / Fraction(rate, target_rate) - 1) <= RATIO_TOLERANCE
    assert ratio.numerator * ratio.denominator <= MAX_RATIO_TERM**2


@pytest.mark.parametrize("rate", [44101, 96001])
def test_resample_odd_rate_uses_small_filter(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the terms of the ratio; the filter of the exact ratio would need gigabytes."""
    terms: list[tuple[int, int]] = []
    original = torchaudio.functional.resample

    def recorded(waveform: Tensor, orig_freq: int, new_freq: int) -> Tensor:
        terms.append((orig_freq, new_freq))
        return original(waveform, orig_freq, new_freq)

    monkeypatch.setattr(torchaudio.functional, "resample", recorded)
    values = FrameTokenizer(8).encode(Audio(torch.randn(30 * rate), rate)).values
    assert values.shape[1] == pytest.approx(3000, rel=0.002)
    assert max(terms[0]) <= MAX_RATIO_TERM


@pytest.mark.parametrize("frequency", [300.0, 1000.0, 2500.0])
@pytest.mark.parametrize("rate", [11025, 16000, 44100, 44101, 96000, 96001])
def test_tone_keeps_peak_at_any_rate(frequency: float, rate: int, make_tone: Make) -> None:
    tokenizer = frame_tokenizer()
    native, resampled = (tokenizer.spectrogram(make_tone(frequency, each)).exp().mean(1) for each in (RATE, rate))
    assert native.argmax() == resampled.argmax()
    assert resampled.max() / native.max() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("gains", "offset", "noise", "kept"),
    [
        *[((1.0, -1.0), 0.0, 0.0, 0), ((1.0, -1.0), 0.3, 0.0, 0), ((1.0, -0.9), 0.0, 0.01, 0)],
        *[((0.5, -0.6), 0.0, 0.0, 1), ((1.0, -1.0, 1.0, -1.0), 0.0, 0.0, 0), ((0.0, 0.7, -0.7), 0.0, 0.0, 1)],
        *[((1.0, 0.0), 0.0, 0.0, None), ((1.0, 0.9), 0.0, 0.01, None), ((1.0, -0.4), 0.0, 0.0, None)],
        *[((0.0, 0.0), 0.3, 0.0, None), ((0.0, 0.0), 0.0, 0.1, None), ((0.0, 0.0), 0.0, 0.0, None)],
    ],
)
def test_cancelling_channels_leave_the_loudest(
    gains: tuple[float, ...], offset: float, noise: float, kept: int | None, make_tone: Make
) -> None:
    tone = torch.as_tensor(make_tone(440.0).waveform)
    channels = torch.tensor(gains)[:, None] * tone + offset
    channels += noise * torch.randn(channels.shape, generator=torch.Generator().manual_seed(0))
    expected = channels.mean(0) if kept is None else channels[kept]
    assert torch.equal(resample(Audio(channels, RATE), RATE, 1), expected)


def test_resample_refuses_sounds_that_grow_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MAX_ADDED_SAMPLES", 800)
    assert len(resample(Audio(torch.zeros(800), RATE), 2 * RATE, 1)) == 1600
    with pytest.raises(InputError, match="100 Hz"):
        resample(Audio(torch.zeros(11), 100), RATE, 1)


def test_tones_peak_in_order_without_aliasing(make_tone: Make) -> None:
    tokenizer = frame_tokenizer()
    peaks = [int(tokenizer.spectrogram(make_tone(f)).mean(1).argmax()) for f in (200, 500, 1000, 2000, 3500)]
    assert peaks == sorted(set(peaks))
    above_nyquist = tokenizer.spectrogram(make_tone(6000, 16000)).exp()[:, 4:-4]
    assert above_nyquist.max() < 1e-2 * tokenizer.spectrogram(make_tone(2000, 16000)).exp().max()


def test_waveform_kinds_give_equal_units(make_noise: Make) -> None:
    tokenizer = frame_tokenizer()
    stereo = make_noise(1500, channels=2).waveform
    assert isinstance(stereo, Tensor)
    mono = stereo.mean(0)
    read_only = mono.numpy().copy()
    read_only.setflags(write=False)
    expected = tokenizer.encode(Audio(mono, RATE)).values
    kinds: list[Any] = [stereo, mono[None], mono.numpy(), read_only, mono.double().numpy(), mono.flip(0).numpy()[::-1]]
    for waveform in kinds:
        assert torch.equal(tokenizer.encode(Audio(waveform, RATE)).values, expected)
    rate: Any = np.float64(RATE)
    assert torch.equal(tokenizer.encode(Audio(mono, rate)).values, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_silence_is_power_floor(kind: Kind) -> None:
    power = make(kind).spectrogram(Audio(torch.zeros(1000), RATE))
    assert (power == torch.tensor(POWER_FLOOR).log()).all()


def test_one_window_is_one_token(make_noise: Make) -> None:
    sound = make_noise(256)
    assert frame_tokenizer()(sound).shape == waveform_tokenizer()(sound).shape == (D, 1)
    assert frame_tokenizer(patch=(8, 5))(sound).shape == (D, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (Audio(torch.full((1000,), math.nan), RATE), "NaN"),
        (Audio(torch.full((2, 1000), math.inf), RATE), "infinite"),
        (Audio(torch.zeros(1, 2, 1000), RATE), r"\(1, 2, 1000\)"),
        (Audio(np.zeros((1000, 2)), RATE), r"\(1000, 2\)"),
        (Audio(torch.zeros(0, 1000), RATE), r"\(0, 1000\)"),
        (Audio(torch.zeros(1000), 0), "0 Hz"),
        (Audio(torch.zeros(1000), -8000), "-8000 Hz"),
        (Audio(torch.zeros(1000), 8000.5), r"8000\.5 Hz"),  # pyright: ignore[reportArgumentType]
        (Audio(np.zeros(1000, np.int16), RATE), "torch.int16"),  # pyright: ignore[reportArgumentType]
        (torch.zeros(1000), "not Tensor"),
        *[(Audio(torch.zeros(n), rate), r"0\.032 s") for n in (1, 2, 200, 255) for rate in (RATE, 44100)],
        (Audio(torch.zeros(0), RATE), r"\(0,\)"),
    ],
    ids=str,
)
def test_invalid_sound_refused(raw: Any, message: str, kind: Kind) -> None:
    with pytest.raises(InputError, match=message) as error:
        make(kind).encode(raw)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (FrameTokenizer, {"patch": (2, 4), "stack": 2}, "stack or patch"),
        (FrameTokenizer, {"stride": (1, 1)}, r"stride=\(1, 1\)"),
        (FrameTokenizer, {"stack": 0}, "stack=0"),
        (FrameTokenizer, {"patch": (2, 4), "stride": (0, 4)}, r"stride=\(0, 4\)"),
        (FrameTokenizer, {"patch": (0, 4)}, r"patch=\(0, 4\)"),
        (FrameTokenizer, {"hop_length": 0.0}, r"hop_length=0\.0"),
        (FrameTokenizer, {"win_length": 0.00001}, "win_length=1e-05"),
        (FrameTokenizer, {"patch": (2, 4), "stride": (3, 4)}, r"stride=\(3, 4\)"),
        (FrameTokenizer, {"patch": (2, F + 1)}, f"{F + 1} .*n_mels={F}"),
        (FrameTokenizer, {"normalize": "batch"}, "normalize 'batch'"),
        (FrameTokenizer, {"positions": "sine"}, "positions 'sine'"),
        (FrameTokenizer, {"stack": 6, "stem": "pooled"}, ": 6 "),
        (FrameTokenizer, {"patch": (8, 8), "stem": "pooled"}, "stem=pooled"),
        (WaveformTokenizer, {"stack": 4, "stem": "plain"}, "stem 'plain'"),
        (WaveformTokenizer, {"stack": 0}, "stack=0"),
        (WaveformTokenizer, {"hop_length": 0.0}, r"hop_length=0\.0"),
        (WaveformTokenizer, {"n_filters": 0}, "n_filters=0"),
        (WaveformTokenizer, {"win_length": 0.01, "hop_length": 0.02}, r"hop_length=0\.02"),
    ],
)
def test_invalid_setting_refused(kind: Kind, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(kind, **settings)


@pytest.mark.parametrize(("kind", "near"), [(FrameTokenizer, 1e-4), (WaveformTokenizer, 1e-3)])
def test_fit_gives_mean_0_and_std_1(kind: Kind, near: float, sounds: list[Audio]) -> None:
    tokenizer = make(kind)
    assert tokenizer.fit(sounds) is tokenizer
    power = normalized(tokenizer, sounds)
    assert power.mean().item() == pytest.approx(0, abs=near)
    assert power.std().item() == pytest.approx(1, abs=near)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(FrameTokenizer, {"stack": 2}), (FrameTokenizer, {"patch": (2, 5)}), (WaveformTokenizer, {"stack": 2})],
)
def test_positions_are_seconds(kind: Kind, settings: dict[str, Any]) -> None:
    tokenizer, waveform = make(kind, **settings), torch.zeros(4000)
    waveform[1000:1008] = 1.0
    units = tokenizer.encode(Audio(waveform, RATE))
    (seconds,) = tokenizer.position_values(units)
    loudness = units.values.logsumexp(0) if kind is FrameTokenizer else units.values.abs().sum(0)
    loudness -= loudness.min()
    assert abs(float((seconds * loudness).sum() / loudness.sum()) - 1004 / RATE) < TIMING["hop_length"] / 2


def test_filter_pitches_are_mel_peaks(make_tone: Make) -> None:
    tokenizer = waveform_tokenizer()
    peer = melscale_fbanks(RATE // 2 + 1, 0, RATE / 2, F, RATE)  # One row per Hz.
    for band, pitch in enumerate(peer.argmax(0).tolist()):
        assert tokenizer.spectrogram(make_tone(pitch)).mean(1).argmax() == band


def test_filter_power_is_fourier_transform(make_noise: Make) -> None:
    pitches = 700 * torch.expm1(torch.linspace(0, math.log1p(RATE / 2 / 700), F + 2)[1:-1]).double()
    sound = make_noise(256)
    frame = torch.as_tensor(sound.waveform).double()
    rotation = torch.exp(-2j * math.pi * torch.arange(256)[:, None] * pitches / RATE)
    expected = (frame[:, None] * torch.hann_window(256)[:, None] * rotation).sum(0).abs() ** 2
    cosine, sine = (frame @ gabor_filters(RATE, 256, F).double()).chunk(2)
    torch.testing.assert_close(cosine**2 + sine**2, expected, rtol=1e-3, atol=1e-5)
    power = waveform_tokenizer().spectrogram(sound)[:, 0].double()
    torch.testing.assert_close(power, (expected + POWER_FLOOR).log(), rtol=1e-3, atol=1e-3)


def test_filter_learns_to_separate_tones(make_tone: Make) -> None:
    """A single filter starts between two tones and learns to pass only one of them."""
    tokenizer = waveform_tokenizer(hop_length=0.032, n_filters=1, positions="none")
    pitch = 700 * (math.sqrt(1 + RATE / 2 / 700) - 1)
    torch.nn.init.ones_(tokenizer.project.out.weight)

    def separation() -> Tensor:
        return (tokenizer(make_tone(pitch - 20)) - tokenizer(make_tone(pitch + 20))).mean()

    assert separation().abs() < 0.1
    for _ in range(30):
        (gradient,) = torch.autograd.grad(separation(), tokenizer.bank)
        tokenizer.bank.data += 0.02 * gradient.sign()
    assert separation() > 1


@pytest.mark.parametrize("normalize", ["whole", "band"])
def test_waveform_power_exact_under_autocast(normalize: str, sounds: list[Audio], make_noise: Make) -> None:
    tokenizer = waveform_tokenizer(normalize=normalize).fit(sounds)
    exact = normalized(tokenizer, [make_noise(2570)])
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(normalized(tokenizer, [make_noise(2570)]), exact)
