"""A small vocabulary and random tokens for the tests of all heads."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import NO_POSITION, Tokens, Vocabulary
from unifier_tokenizers.subwords import EOS

D, LENGTHS = 12, (9, 3, 5)
TEXTS = ["ein Mann sieht zwei Hunde", "ein Hund", "zwei Hunde sehen"]


Module = TypeVar("Module", bound=nn.Module)


def randomize(module: Module, std: float = 0.7) -> Module:
    """Draw weights large enough for different outputs, and return the module in evaluation mode."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module.eval()


def replace_column(vocabulary: Vocabulary, ids: Tensor, column: int) -> Tensor:
    """Return ids (B, L) with other words in one column."""
    other = ids.clone()
    other[:, column] = (ids[:, column] - 3) % (len(vocabulary) - 4) + 4
    return other


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary.fit(TEXTS, size=100, level="word")


@pytest.fixture
def target(vocabulary: Vocabulary) -> Tensor:
    """Return the ids (3, L) of three texts, padded."""
    ids = [torch.tensor([*vocabulary.encode(text), EOS]) for text in TEXTS]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=IGNORE_INDEX)


@pytest.fixture
def random_tokens() -> Callable[..., Tokens]:
    """Return a function from the examples' lengths to Tokens (B, 12, N), padded to the longest example."""

    def draw(lengths: tuple[int, ...] = LENGTHS) -> Tokens:
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        positions = torch.arange(max(lengths)).expand(len(lengths), 1, -1).masked_fill(~mask[:, None], NO_POSITION)
        return Tokens(torch.randn(len(lengths), D, max(lengths)), mask, positions)

    return draw


@pytest.fixture
def tokens(random_tokens: Callable[..., Tokens]) -> Tokens:
    """Return three random examples of different lengths."""
    return random_tokens()


@pytest.fixture(scope="session")
def single() -> Callable[[Tokens, int], Tokens]:
    """Return a function that takes one example out of a batch, without its padding."""

    def take(tokens: Tokens, b: int) -> Tokens:
        length = int(tokens.mask[b].sum())
        return Tokens(*(part[b : b + 1, ..., :length] for part in tokens))

    return take


@pytest.fixture
def hidden_target(tokens: Tokens) -> Tensor:
    """Return the ids (3, N) of one to three hidden tokens per example."""
    target = torch.full(tokens.mask.shape, IGNORE_INDEX)
    target[0, [1, 4, 8]], target[1, 2], target[2, [0, 4]] = torch.tensor([5, 6, 7]), 8, torch.tensor([9, 5])
    return target
