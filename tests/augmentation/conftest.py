"""A seeded generator, by which every augmentation draws."""

from collections.abc import Callable

import pytest
import torch


@pytest.fixture
def seeded() -> Callable[..., torch.Generator]:
    """Return a function from a seed (default 0) to a new generator."""
    return lambda seed=0: torch.Generator().manual_seed(seed)
