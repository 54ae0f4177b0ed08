"""Attention: masks, kernels, rotary positions, the KV cache, and the multi-head layer."""

import math
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from unifier.nn.linear import Linear, linear
from unifier.nn.local_attention import Local, LocalMask, local_attention
from unifier.nn.precision import LayerNorm, softmax_, softmax_backward_
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice
from unifier_tokenizers.tokens import has_no_padding

# cuDNN plans an attention for each new shape, and batches of texts have many shapes. The other kernels need no plan.
torch.backends.cuda.enable_cudnn_sdp(False)

AttentionMode = Literal["bidirectional", "causal"] | Tensor | Local
"""The tokens that a token may attend to.

- "bidirectional" allows all tokens (BERT, ViT).
- "causal" allows the token itself and all earlier tokens (GPT).
- A tensor of prefix lengths (B,) allows the prefix of the example, the token itself, and all earlier tokens.
- `Local` allows the tokens in a window, and also every token at a multiple of a stride (Sparse Transformer).
"""

FUSED_MIN_KEYS = {torch.bfloat16: 1024}
"""The smallest number of keys for which a CPU uses torch's fused attention kernel, keyed by dtype.

`python -m benchmarks.attention` compares the fused kernel with two matrix products and a softmax. In bfloat16 with 32
to 512 keys, the fused kernel took 1.9 to 3.6 times as long as the products and the softmax (AMD EPYC, torch 2.11). In
bfloat16 with 1,024 keys, the fused kernel took 1.5 times as long. Training steps with 1,024 keys were nevertheless 1.3
times as fast with the fused kernel, because the fused kernel stores no attention weights (`python -m
benchmarks.scaling`). In float32, the fused kernel was faster for every number of keys.
"""

CACHE_STEP = 16
"""The number of future tokens for which a growing KV cache reserves memory."""


def build_attention_mask(mask: Tensor, mode: AttentionMode) -> Tensor | None:
    """Return the attention mask (B or 1, 1, 1 or N, N): True if a query (row) may attend to a key (column).

    Args:
        mask: (B, N), True for real tokens.
        mode: The attention mode.

    Returns:
        The mask. None means that every query may attend to every key.
    """
    n = mask.shape[1]
    if isinstance(mode, Local):
        return LocalMask(mode, mask).dense()
    if isinstance(mode, Tensor):
        index = torch.arange(n, device=mask.device)
        past = index[:, None] >= index
        return mask[:, None, None, :] & (past | (index < mode[:, None, None]))[:, None]
    if check_choice("mode", mode, ("bidirectional", "causal")) == "causal":
        past = torch.ones(n, n, dtype=torch.bool, device=mask.device).tril()[None, None]
        return past if has_no_padding(mask) else past & mask[:, None, None, :]
    return None if has_no_padding(mask) else mask[:, None, None, :]


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | LocalMask | None) -> Tensor:
    """Compute scaled dot-product attention with the faster of two kernels (see `FUSED_MIN_KEYS`).

    Local attention is computed in blocks.

    Args:
        query: The queries (B, H, N, D/H).
        key: The keys (B, H, M, D/H).
        value: The values (B, H, M, D/H).
        mask: A boolean mask that broadcasts to (B, H, N, M), or a local mask, or None.

    Returns:
        The output (B, H, N, D/H).
    """
    if isinstance(mask, LocalMask):
        return local_attention(query, key, value, mask, attention)
    if query.device.type == "cpu" and key.shape[2] < FUSED_MIN_KEYS.get(query.dtype, 0):
        output: Tensor = PlainAttention.apply(query, key, value, mask)  # pyright: ignore[reportAssignmentType]
        return output
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the attention output and the attention weights (Vaswani et al. 2017, section 3.2.1).

    Args:
        query: The queries (B, H, N, D/H).
        key: The keys (B, H, M, D/H).
        value: The values (B, H, M, D/H).
        mask: A boolean mask that broadcasts to (B, H, N, M), or None.

    Returns:
        The output (B, H, N, D/H) and the weights (B, H, N, M).
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is not None:  # Adding a mask is many times faster than filling the scores with -inf.
        scores += _additive_mask(mask, scores.dtype)
    weights = scores.softmax(-1)
    return weights.to(value.dtype) @ value, weights


@final
class PlainAttention(Function):
    """Autograd function for the output of `plain_attention`, with fewer passes over memory and explicit gradients."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return the output (B, H, N, D/H)."""
        heads, ctx.scale = query.shape[:2], query.shape[-1] ** -0.5
        query, key, value = (part.flatten(0, 1) for part in (query, key, value))
        scores = _scaled_product(query, key.mT, ctx.scale)
        added = None if mask is None else _additive_mask(mask, scores.dtype)
        weights = softmax_(scores.unflatten(0, heads), added).flatten(0, 1)
        ctx.save_for_backward(query, key, value, weights)
        return (weights @ value).unflatten(0, heads)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  The decorator hides the parameter's name.
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of query, key and value."""
        query, key, value, weights = ctx.saved_tensors
        heads, grad = grad.shape[:2], grad.flatten(0, 1)
        grad_scores = softmax_backward_(grad @ value.mT, weights)
        grad_query = _scaled_product(grad_scores, key, ctx.scale)
        grad_key = _scaled_product(grad_scores.mT, query, ctx.scale)
        grad_value = weights.mT @ grad
        return grad_query.unflatten(0, heads), grad_key.unflatten(0, heads), grad_value.unflatten(0, heads), None


def apply_rope(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate queries or keys (B, H, N, D/H) by angles (B, N, D/H/2) (Su et al. 2021, section 3.4.2).

    Feature i of the first half of a head and feature i of the second half form a pair.
    """
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


@final
class KVCache:
    """Cache of the keys and values of one attention layer.

    With this cache, a decoder computes the key and the value of each token only once.
    """

    def __init__(self, *, grows: bool) -> None:
        """Create an empty cache.

        Args:
            grows: True for self-attention, which appends new keys and values. False for cross-attention, which stores
                the keys and values of the memory once.
        """
        self.grows = grows
        self.length = 0
        self.buffer: Tensor | None = None
        """The keys and values (B, 2, H, M, D/H). In a growing cache, M may be larger than `length`."""

    def update(self, key: Tensor, value: Tensor) -> None:
        """Append new keys and values (B, H, M', D/H)."""
        length = self.length + key.shape[2]
        if torch.compiler.is_compiling():  # An exported graph has the cache as an input and as an output.
            new = torch.stack([key, value], 1)
            self.buffer, self.length = new if self.buffer is None else torch.cat([self.buffer, new], 3), length
            return
        if self.buffer is None or length > self.buffer.shape[3]:
            rows, heads, _, depth = key.shape
            larger = key.new_empty(rows, 2, heads, length + (CACHE_STEP if self.grows else 0), depth)
            if self.buffer is not None:
                larger[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]
            self.buffer = larger
        self.buffer[:, 0, :, self.length : length] = key
        self.buffer[:, 1, :, self.length : length] = value
        self.length = length

    @classmethod
    def restore(cls, buffer: Tensor, *, grows: bool) -> "KVCache":
        """Create a cache with the keys and values (B, 2, H, M, D/H) of M tokens."""
        cache = cls(grows=grows)
        cache.buffer, cache.length = buffer, buffer.shape[3]
        return cache

    def joined(self) -> Tensor:
        """Return the stored keys and values as one tensor (B, 2, H, M, D/H)."""
        assert self.buffer is not None
        return self.buffer[:, :, :, : self.length]

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the stored keys and values, each (B, H, M, D/H)."""
        key, value = self.joined().unbind(1)
        return key, value

    def reorder(self, rows: Tensor) -> None:
        """Select the examples with the indices `rows` (B',). An index in `rows` may occur several times."""
        if self.buffer is not None:
            self.buffer = self.buffer.index_select(0, rows)


@final
class Attention(nn.Module):
    """Multi-head self-attention, or multi-head attention to a memory (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(self, dim: int, heads: int, *, qk_norm: bool = False, projections: bool = True) -> None:
        """Create the layer.

        Args:
            dim: D, the width of the tokens.
            heads: H, the number of heads, which must divide `dim`.
            qk_norm: Normalize the queries and keys of each head to mean 0 and variance 1, then multiply by a learned
                weight (Henry et al. 2020).
            projections: If True, project the tokens to queries, keys and values. If False, use the tokens as queries,
                keys and values without projections.
        """
        super().__init__()
        if dim < 1:
            raise InputError(f"D = {dim}: D must be at least 1")
        if heads < 1 or dim % heads:
            raise InputError(f"{heads} heads do not divide D = {dim}: use a positive number of heads that divides D")
        self.heads, self.projections = heads, projections
        if projections:
            self.query = Linear(dim, dim)
            self.key_value = Linear(dim, 2 * dim)
            self.out = Linear(dim, dim)
        self.query_norm, self.key_norm = (
            LayerNorm(dim // heads, bias=False) if qk_norm else nn.Identity() for _ in range(2)
        )

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | LocalMask | None = None,
        angles: Tensor | None = None,
        cache: KVCache | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Compute the attention of x to the memory, or to x if no memory is given.

        Args:
            x: The tokens (B, N, D) that determine the queries.
            memory: The tokens (B, M, D) to which x attends. By default, the memory is x.
            mask: A boolean mask that broadcasts to (B, H, N, M), or a local mask, or None.
            angles: The rotary angles (B, M, D/H/2) of the memory's tokens. The tokens of x must be the first tokens of
                the memory.
            cache: The KV cache, to which new keys and values are appended.
            weights: A list to which the attention weights (B, H, N, M) are appended.

        Returns:
            The output (B, N, D).
        """
        if cache is not None and not cache.grows and cache.length:
            (query,), (key, value) = self._split_heads(self.query(x) if self.projections else x), cache.read()
            query = self.query_norm(query)
        else:
            if not self.projections:
                (query,), (key,) = self._split_heads(x), self._split_heads(x if memory is None else memory.to(x.dtype))
                value = key
            elif memory is None:  # One product with the joined weights is faster than two products.
                weight = torch.cat([self.query.weight, self.key_value.weight])
                bias = torch.cat([self.query.bias, self.key_value.bias])
                query, key, value = self._split_heads(linear(x, weight, bias), 3)
            else:
                (query,) = self._split_heads(self.query(x))
                key, value = self._split_heads(self.key_value(memory), 2)
            query, key = self.query_norm(query), self.key_norm(key)
            if angles is not None:
                query, key = apply_rope(query, angles[:, : query.shape[2]]), apply_rope(key, angles)
            if cache is not None:
                cache.update(key, value)
                key, value = cache.read()
        if weights is None:
            output = attention(query, key, value, mask)
        else:
            dense = mask.dense() if isinstance(mask, LocalMask) else mask
            output, attention_weights = plain_attention(query, key, value, dense)
            weights.append(attention_weights)
        output = output.transpose(1, 2).flatten(2)
        return self.out(output) if self.projections else output

    def _split_heads(self, x: Tensor, parts: int = 1) -> list[Tensor]:
        """Split (B, N, parts * D) into `parts` tensors (B, H, N, D/H).

        Splitting before the transpose lets the backward pass join and transpose the gradients in one operation.
        """
        return [part.transpose(1, 2) for part in x.unflatten(2, (parts * self.heads, -1)).chunk(parts, dim=2)]


def _additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask that is added to attention scores: 0 if a query may attend to a key, else minus infinity."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def _scaled_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Return left (B, N, K) @ right (B, K, M) * scale, in one pass over memory."""
    return torch.baddbmm(left.new_empty(1), left, right, beta=0, alpha=scale)
