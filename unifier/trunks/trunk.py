"""The base classes of trunks, which map D x N tokens of any modality to tokens of the same shape."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unifier.nn.attention import AttentionMode
from unifier.trunks.memory import Memory
from unifier_tokenizers import InputError, Tokens
from unifier_tokenizers.configurable import Configurable


class Trunk(Configurable, nn.Module, ABC):
    """Network that all tasks of an experiment share. A trunk maps a batch of tokens to a batch of tokens.

    A subclass must create its parameters inside `isolated_seed`. The initial weights then depend only on the seed, and
    not on other modules.
    """

    dim: int
    """D, the width of the input tokens and of the output tokens."""

    pretrained = False
    """True if the initial weights are pretrained. A pretrained trunk cannot be a random control."""

    @abstractmethod
    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        """Map tokens (B, D, N) to tokens (B, D, N) with the same mask and positions.

        Tokens must not attend to padding.
        """

    def forward_first_token(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        """Return only the first output token, as Tokens (B, D, 1). Heads with a class token call this method.

        Override this method if one token is cheaper to compute than all tokens.
        """
        return Tokens(*(part[..., :1] for part in self(tokens, mode)))

    def forward_with_memory(self, tokens: Tokens, memory: Memory | None, length: int) -> tuple[Tokens, Memory]:
        """Run the next tokens (B, D, N) of texts. Each token attends to itself, to earlier tokens and to the memory.

        Rotary positions are relative to the first of the next tokens, which follow the memory without a gap.

        Args:
            tokens: The next tokens. The first token of each row is real.
            memory: The memory after the tokens before, or None at the start.
            length: M, the largest number of tokens in the memory.

        Returns:
            The output tokens, and the memory for the tokens after them.

        Raises:
            InputError: The trunk has no memory. This is the default implementation.
        """
        raise InputError(f"{type(self).__name__} has no memory of earlier tokens: use trunk=transformer, or memory=0")

    def effective_mode(self, mode: AttentionMode) -> AttentionMode:
        """Return the attention mode that the trunk uses if a head requests `mode`. Only local attention differs."""
        return mode

    def layer_outputs(self) -> dict[str, nn.Module]:
        """Return a mapping from the name of each layer to the module whose input is the layer's output (B, N, D).

        A layer's output is the input of the next layer or of the next layer's norm. The last layer's output is the
        input of the trunk's final norm. If the mapping is empty, the trunk is analyzed as a single layer.
        """
        return {}


class AttentiveTrunk(Trunk):
    """Trunk that can return its attention weights."""

    @abstractmethod
    def attention(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> tuple[Tokens, list[Tensor]]:
        """Return the output of `forward` and the attention weights (B, H, N, N) of each layer."""


def numbered_layers(prefix: str, modules: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """Return the modules as a dict with the keys "prefix.0", "prefix.1", ..., for use in `Trunk.layer_outputs`."""
    return {f"{prefix}.{i}": module for i, module in enumerate(modules)}


def check_depth(depth: int, minimum: int = 0) -> None:
    """Raise InputError if `depth` is less than `minimum`."""
    if depth < minimum:
        raise InputError(f"depth={depth}: at least {minimum} is needed")


def check_tokens(tokens: Tokens, dim: int) -> None:
    """Raise InputError if the tokens do not have `dim` rows."""
    if tokens.matrix.shape[1] != dim:
        raise InputError(
            f"tokens of D = {tokens.matrix.shape[1]} do not fit a trunk of D = {dim}: use the same dim for both"
        )


@contextmanager
def isolated_seed() -> Generator[None]:
    """Reset the CPU's random generator to the last seed, and restore the generator's state after the context.

    Without this context, the initial weights of a trunk would depend on modules that were created earlier, such as an
    embedding. Experiments with equal seeds could then start from different trunks.
    """
    with torch.random.fork_rng(devices=[]):
        # The CPU generator is seeded directly, because torch.manual_seed would also reset the accelerator's generator.
        torch.default_generator.manual_seed(torch.initial_seed())
        yield
