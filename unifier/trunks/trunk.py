"""The contract of a trunk: columns in, columns out, whatever modality they came from."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unifier.nn.attention import AttentionMode
from unifier_tokenizers import InputError, Tokens


class Trunk(nn.Module, ABC):
    """Reads a batch of columns; knows no modality, and no order but what the columns themselves tell.

    Parameters drawn inside `drawn_from_seed_alone` depend only on the seed, not on what was built before.
    """

    dim: int
    """D, the rows of the columns it reads and gives back."""

    pretrained = False
    """Whether its first weights are no random ones, so that it is no control of others."""

    @abstractmethod
    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        """Tokens (B, D, N) -> Tokens (B, D, N) with the same mask and positions; padding is seen by no column."""

    def forward_first_token(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        """The first column alone (B, D, 1), such as a class token's; a trunk that finds it for less says how."""
        return Tokens(*(part[..., :1] for part in self(tokens, mode)))

    def layer_outputs(self) -> dict[str, nn.Module]:
        """For each layer, by the name of its parameters, the module that reads what it gives back as (B, N, D): the
        next layer or its norm, and the trunk's last norm. A trunk that names none is one layer to whoever looks inside.
        """
        return {}


class AttentiveTrunk(Trunk):
    """A trunk that shows its attention."""

    @abstractmethod
    def attention(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> tuple[Tokens, list[Tensor]]:
        """The answer of `forward`, and the attention (B, H, N, N) of each layer."""


def numbered_layers(layers: str, modules: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """`Trunk.readers` of a list of layers: `modules` are what reads the first one's columns, the second's and so on."""
    return {f"{layers}.{i}": module for i, module in enumerate(modules)}


def check_depth(depth: int, least: int = 0) -> None:
    """Raise InputError for fewer layers than that."""
    if depth < least:
        raise InputError(f"a depth of {depth} is none: take {least} or more")


def check_tokens(tokens: Tokens, dim: int) -> None:
    """Raise InputError where columns do not have the D rows that a trunk reads."""
    if tokens.matrix.shape[1] != dim:
        raise InputError(f"columns of D = {tokens.matrix.shape[1]} rows reach a trunk of D = {dim}")


@contextmanager
def isolated_seed() -> Generator[None]:
    """Draw parameters from the seed last set, however many numbers were drawn since, and use up none of them.

    Without it, a trunk built after a larger embedding would start elsewhere, and a comparison of two tasks would compare
    their initializations.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch.initial_seed())  # an accelerator's stream is left alone
        yield
