"""The tokenizer for samples of sound keeps the contract, and its codes are those of the mu-law formula."""

import math
from typing import Any

import pytest
import torch

from unifier_tokenizers import Audio, InputError, check_tokenizer
from unifier_tokenizers.samples import NUM_CODES, SampleTokenizer

WAVES = torch.randn(3, 12).clamp(-1, 1) * torch.tensor([[1.0], [0.1], [0.01]])


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
def test_contract(positions: Any) -> None:
    sounds = [Audio(wave[: 12 - k], 8000) for k, wave in enumerate(WAVES)]
    check_tokenizer(SampleTokenizer(8, positions=positions), sounds)


def test_codes_equal_the_formula() -> None:
    begin, *codes = SampleTokenizer(8).encode(Audio(WAVES[0], 8000)).values.tolist()
    assert begin == NUM_CODES
    for sample, code in zip(WAVES[0].tolist(), codes, strict=True):
        compressed = math.copysign(math.log1p(255 * abs(sample)) / math.log(256), sample)
        assert code == pytest.approx((compressed + 1) / 2 * 255, abs=0.51)


def test_sound_of_codes_has_these_codes() -> None:
    tokenizer = SampleTokenizer(8, sample_rate=4000)
    sound = tokenizer.to_sound(codes := torch.arange(NUM_CODES))
    assert sound.sample_rate == 4000
    assert torch.equal(tokenizer.encode(sound).values[1:].long(), codes)


@pytest.mark.parametrize("raw", ["a.wav", Audio(torch.zeros(0), 8000), Audio(torch.tensor([math.nan]), 8000)])
def test_other_input_is_refused(raw: Any) -> None:
    with pytest.raises(InputError):
        SampleTokenizer(8).encode(raw)
    with pytest.raises(InputError, match="sample_rate=0"):
        SampleTokenizer(8, sample_rate=0)
