"""Sounds that several files of tests read."""

import math
from collections.abc import Callable

import pytest
import torch

from unifier_tokenizers import Audio


@pytest.fixture(scope="session")
def make_noise() -> Callable[..., Audio]:
    """Return a function that draws white noise from a seed."""

    def noise(samples: int, sample_rate: int = 8000, channels: int = 0, seed: int = 0) -> Audio:
        shape = (channels, samples) if channels else (samples,)
        return Audio(torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.1, sample_rate)

    return noise


@pytest.fixture(scope="session")
def make_tone() -> Callable[..., Audio]:
    """Return a function that makes half a second of a sine wave."""

    def tone(frequency: float, sample_rate: int = 8000) -> Audio:
        times = torch.arange(sample_rate // 2) / sample_rate
        return Audio(torch.sin(2 * math.pi * frequency * times), sample_rate)

    return tone


@pytest.fixture(scope="session")
def sounds(make_noise: Callable[..., Audio]) -> list[Audio]:
    """Return sounds of several lengths, sample rates and channels."""
    return [
        *[make_noise(1000), make_noise(2570, seed=1), make_noise(1000, seed=2)],
        *[make_noise(5000, 16000, seed=3), make_noise(4410, 11025, channels=2), make_noise(900, 4000, channels=1)],
    ]
