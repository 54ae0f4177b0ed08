"""Continuation of sequences, token by token, with a KV cache for each block of the trunk."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from unifier.heads.generation import TokenPicker
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.nn.attention import KVCache
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PixelTokenizer, Tokenizer, Tokens
from unifier_tokenizers.pixels import pixel_positions


@final
class CachedTrunk:
    """The trunk's output for B sequences that grow token by token.

    If the sequences become longer than the context, the second half of the context is read again as a new start.
    Positions are therefore never larger than in training.
    """

    def __init__(self, tokenizer: Tokenizer, trunk: Trunk, context: int, positions: Tensor | None = None) -> None:
        """Prepare empty sequences.

        Args:
            tokenizer: The tokenizer, whose values can be sampled.
            trunk: The trunk.
            context: The largest number of tokens in the cache, at least 2.
            positions: The positions (A, context) of the tokens. None counts the tokens from 0.

        Raises:
            InputError: The trunk is not a transformer.
        """
        if not isinstance(trunk, Transformer):
            raise InputError(f"the trunk is a {type(trunk).__name__}, but generate needs a transformer")
        self.tokenizer, self.trunk, self.context = tokenizer, trunk, context
        self.positions = torch.arange(context)[None] if positions is None else positions
        self._start()

    def _start(self) -> None:
        self.values: Tensor | None = None
        """The values (B, ..., N) of the tokens in the cache."""
        self.caches = [KVCache(grows=True) for _ in self.trunk.blocks]

    def extend(self, values: Tensor) -> Tensor:
        """Append tokens with values (B, ..., M), and return the trunk's output (B, D) for the last token."""
        values = values[..., -self.context :]
        joined = values if self.values is None else torch.cat([self.values, values], -1)
        if joined.shape[-1] > self.context:
            values = joined = joined[..., -max(self.context // 2, values.shape[-1]) :]
            self._start()
        total, new = joined.shape[-1], values.shape[-1]
        positions = self.positions[None, :, total - new : total].to(values.device)
        mask = torch.ones(len(values), total, dtype=torch.bool, device=values.device)
        tokens = Tokens(self.tokenizer.embed(values, positions), mask[:, -new:], positions)
        output = self.trunk.forward_cached(tokens, mask, self.caches, causal=True)
        self.values = joined
        return output.matrix[:, :, -1]


def continue_sequences(cached: CachedTrunk, values: Tensor, count: int, sample: Callable[[Tensor], Tensor]) -> Tensor:
    """Append sampled tokens to B sequences of equal lengths.

    Args:
        cached: The trunk with an empty cache.
        values: The values (B, ..., N) of the given tokens, N >= 1.
        count: The number of new tokens.
        sample: A function that samples the values (B, ...) of the next tokens from the trunk's output (B, D).

    Returns:
        The values (B, ..., N + count).
    """
    parts = [values]
    for _ in range(count):
        parts.append(sample(cached.extend(parts[-1])).to(values.dtype)[..., None])
    return torch.cat(parts, -1)


def continue_pictures(
    tokenizer: PixelTokenizer, trunk: Trunk, head: LanguageModelingHead, values: Tensor, pick: TokenPicker
) -> Tensor:
    """Return the ids (B, side^2) of all pixels of B pictures.

    Args:
        tokenizer: The tokenizer of the pictures.
        trunk: The trunk, a transformer.
        head: The head.
        values: The ids (B, N) of the begin token and of the given pixels.
        pick: The function that picks the next id of each picture.
    """
    cached = CachedTrunk(tokenizer, trunk, tokenizer.side**2 + 1, pixel_positions(tokenizer.side))
    count = tokenizer.side**2 + 1 - values.shape[1]
    return continue_sequences(cached, values, count, id_sampler(head, pick, len(values)))[:, 1:]


def id_sampler(head: LanguageModelingHead, pick: TokenPicker, count: int) -> Callable[[Tensor], Tensor]:
    """Return a function that samples the next ids (B,) from the trunk's output (B, D).

    Args:
        head: The head.
        pick: The function that picks the next id of each example.
        count: B, the number of examples.
    """
    rows, log_probs = torch.arange(count), head.next_token_log_probs()
    return lambda hidden: pick(log_probs(hidden), rows)[1]
