"""The contract of a trunk: it reads D x N tokens of any modality and returns tokens of the same shape."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unifier.nn.attention import AttentionMode
from unifier_tokenizers import InputError, Tokens


class Trunk(nn.Module, ABC):
    """The shared network of an experiment, which reads a batch of tokens.

    A trunk knows no modality. It has no order of tokens except the one that the tokens carry or the model defines.
    Draw parameters inside `isolated_seed`, so that they depend on the seed alone and not on modules built earlier.
    """

    dim: int
    """D, the number of rows of the tokens that the trunk reads and returns."""

    pretrained = False
    """True if the initial weights were trained elsewhere, so that the trunk is no random control for other trunks."""

    @abstractmethod
    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        """Map Tokens (B, D, N) to Tokens (B, D, N) with the same mask and positions; no token may attend to padding."""

    def forward_first_token(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        """Return the first output token alone, as Tokens (B, D, 1), for a head that reads a class token.

        Override this method if the trunk can compute the first token at a lower cost than all of them.
        """
        return Tokens(*(part[..., :1] for part in self(tokens, mode)))

    def layer_outputs(self) -> dict[str, nn.Module]:
        """Return, for the name of each layer, the module whose input (B, N, D) is that layer's output.

        This module is the next layer or its norm, and for the last layer the trunk's final norm. If the dictionary is
        empty, the trunk is analyzed as a single layer.
        """
        return {}


class AttentiveTrunk(Trunk):
    """A trunk that can return its attention weights."""

    @abstractmethod
    def attention(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> tuple[Tokens, list[Tensor]]:
        """Return the output of `forward` and the attention weights (B, H, N, N) of each layer."""


def numbered_layers(prefix: str, modules: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """Return `Trunk.layer_outputs` for layers named "prefix.0", "prefix.1" and so on, in the order of `modules`."""
    return {f"{prefix}.{i}": module for i, module in enumerate(modules)}


def check_depth(depth: int, minimum: int = 0) -> None:
    """Raise InputError if `depth` is less than `minimum`."""
    if depth < minimum:
        raise InputError(f"depth={depth}: at least {minimum} is needed")


def check_tokens(tokens: Tokens, dim: int) -> None:
    """Raise InputError if the tokens do not have `dim` rows."""
    if tokens.matrix.shape[1] != dim:
        raise InputError(f"tokens of D = {tokens.matrix.shape[1]} reach a trunk of D = {dim}: both need the same dim")


@contextmanager
def isolated_seed() -> Generator[None]:
    """Restart the CPU's random stream from the last seed inside this block, and restore the stream afterwards.

    Without it, the initial weights of a trunk would depend on modules built earlier, such as a larger embedding. A
    comparison of two tasks would then compare their initializations.
    """
    with torch.random.fork_rng(devices=[]):
        # The CPU generator is seeded directly, because torch.manual_seed would also reset the accelerator's stream.
        torch.default_generator.manual_seed(torch.initial_seed())
        yield
