"""Random tokens for the tests of every trunk."""

from collections.abc import Callable

import pytest
import torch

from unifier_tokenizers import NO_POSITION, Tokens


@pytest.fixture
def random_tokens() -> Callable[..., Tokens]:
    """Return a function from the examples' lengths to Tokens (B, 12, N), padded to the longest example."""

    def draw(lengths: list[int], axes: int = 1) -> Tokens:
        columns = max(lengths)
        mask = torch.arange(columns) < torch.tensor(lengths)[:, None]
        positions = torch.arange(columns).expand(len(lengths), axes, -1).masked_fill(~mask[:, None], NO_POSITION)
        return Tokens(torch.randn(len(lengths), 12, columns), mask, positions)

    return draw
