"""What may be asked of changed sounds, and what is said of the rest."""

import math
from typing import Any

import pytest
import torch

from unifier.augmentation.audio import EQ_KNOTS, audio_tta, augment_audio
from unifier.data.dataloader import Batch
from unifier_tokenizers import Audio, FrameTokenizer, InputError, WaveformTokenizer, pad_columns

FRAMES, WAVEFORM = (
    FrameTokenizer(12, sample_rate=8000, n_mels=20),
    WaveformTokenizer(12, sample_rate=8000, n_filters=20),
)


def test_all_off_is_nothing() -> None:
    assert augment_audio(FRAMES) is None
    assert augment_audio(FRAMES, time_width=0.5, band_width=0.5) is None


def test_pieces_need_a_length() -> None:
    assert audio_tta(FRAMES, 1) is None
    assert audio_tta(FRAMES, 1, crop=0.7) is None
    assert audio_tta(WAVEFORM, 1) is None
    for count, crop in ((3, None), (0, 0.7)):
        with pytest.raises(InputError, match=f"num_crops={count}: 1 is the whole sound"):
            audio_tta(FRAMES, count, crop=crop)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speed_perturb": -0.1}, "speed_perturb=-0.1: 0 or more"),
        ({"freq_shift": 1.0}, "freq_shift=1.0: a number from 0 to below 1"),
        ({"freq_shift": 0.01}, f"freq_shift=0.01: less than one of {FRAMES.tiles.bands} bands"),
        ({"band_masks": 1, "band_width": 0.01}, f"band_width=0.01: less than one of {FRAMES.tiles.bands} bands"),
        ({"gain": math.inf}, "gain=inf: 0 or more"),
        ({"random_eq": -1.0}, "random_eq=-1.0: 0 or more"),
        ({"time_masks": -1}, "time_masks=-1: 0 or more"),
        ({"crop": 0.0}, "crop=0.0: a number of seconds above 0"),
        ({"band_width": 0.0}, "band_width=0.0: a share, above 0 and at most 1"),
        ({"time_width": 1.5}, "time_width=1.5: a share, above 0 and at most 1"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        augment_audio(FRAMES, **given)


@pytest.mark.parametrize("bands", [30, 48, 49, 64, 80])
def test_the_least_share_of_bands_that_is_named_can_be_taken(bands: int) -> None:
    tokenizer = FrameTokenizer(12, sample_rate=8000, n_mels=bands)
    with pytest.raises(InputError, match=r"take 0\.0\d+ or more") as error:
        augment_audio(tokenizer, freq_shift=0.001)
    assert augment_audio(tokenizer, freq_shift=float(str(error.value).split()[-3]))


@pytest.mark.parametrize("given", [{"band_masks": 2}, {"freq_shift": 0.1}, {"random_eq": 6.0}], ids=str)
def test_a_waveform_has_no_bands_to_change(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a waveform has no bands"):
        augment_audio(WAVEFORM, **given)


def test_a_waveform_is_not_seen_moved() -> None:
    with pytest.raises(InputError, match="a waveform has no bands"):
        audio_tta(WAVEFORM, 1, freq_shift=0.1)


def test_an_equalizer_makes_each_band_louder_or_softer_at_all_times_and_like_its_neighbors() -> None:
    tokenizer = FrameTokenizer(12, sample_rate=8000, n_mels=4 * EQ_KNOTS + 1 - 4)  # three between each two knots
    sounds = [Audio(0.1 * torch.randn(4000, generator=torch.Generator().manual_seed(seed)), 8000) for seed in range(8)]
    values, positions, mask = pad_columns([tokenizer.encode(sound) for sound in sounds])
    batch = Batch(values, positions, mask, torch.arange(8), torch.arange(8))
    change = augment_audio(tokenizer, random_eq=6.0)
    assert change is not None
    difference = (change(batch, torch.Generator().manual_seed(0)).values - values) * 10 / math.log(10)  # B, bands, N
    torch.testing.assert_close(difference, difference[:, :, :1].expand_as(difference), atol=1e-3, rtol=0)
    curve = difference[:, :, 0]
    knots = curve[:, ::4]
    assert knots.abs().max() <= 6
    assert knots.abs().max() > 4
    assert len({round(float(one), 3) for one in knots.flatten()}) == 8 * EQ_KNOTS
    torch.testing.assert_close(curve[:, 2::4], (knots[:, 1:] + knots[:, :-1]) / 2, atol=1e-3, rtol=0)
