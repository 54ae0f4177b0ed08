"""What may be asked of changed sounds, and what is said of the rest."""

import math
from typing import Any

import pytest

from unifier.data.augmenting.sound import augment_sounds, view_sounds
from unifier_tokenizers import FrameTokenizer, InputError, WaveformTokenizer

FRAMES, WAVEFORM = FrameTokenizer(12, rate=8000, bands=20), WaveformTokenizer(12, rate=8000, bands=20)


def test_all_off_is_nothing() -> None:
    assert augment_sounds(FRAMES) is None
    assert augment_sounds(FRAMES, time_width=0.5, band_width=0.5) is None


def test_pieces_need_a_length() -> None:
    assert view_sounds(FRAMES, 1) is None
    assert view_sounds(FRAMES, 1, crop=0.7) is None
    assert view_sounds(WAVEFORM, 1) is None
    for count, crop in ((3, None), (0, 0.7)):
        with pytest.raises(InputError, match=f"crops={count}: 1 is the whole sound"):
            view_sounds(FRAMES, count, crop=crop)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stretch": -0.1}, "stretch=-0.1: 0 or more"),
        ({"shift": 1.0}, "shift=1.0: a number from 0 to below 1"),
        ({"shift": 0.01}, f"shift=0.01: less than one of {FRAMES.tiles.bands} bands"),
        ({"band_masks": 1, "band_width": 0.01}, f"band_width=0.01: less than one of {FRAMES.tiles.bands} bands"),
        ({"gain": math.inf}, "gain=inf: 0 or more"),
        ({"time_masks": -1}, "time_masks=-1: 0 or more"),
        ({"crop": 0.0}, "crop=0.0: a number of seconds above 0"),
        ({"band_width": 0.0}, "band_width=0.0: a share, above 0 and at most 1"),
        ({"time_width": 1.5}, "time_width=1.5: a share, above 0 and at most 1"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        augment_sounds(FRAMES, **given)


@pytest.mark.parametrize("given", [{"band_masks": 2}, {"shift": 0.1}], ids=str)
def test_a_waveform_has_no_bands_to_change(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a waveform has no bands"):
        augment_sounds(WAVEFORM, **given)


def test_a_waveform_is_not_seen_moved() -> None:
    with pytest.raises(InputError, match="a waveform has no bands"):
        view_sounds(WAVEFORM, 1, shift=0.1)
