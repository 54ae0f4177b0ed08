"""Attention: every query takes a weighted mean of the values it may see."""

import math
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from unifier.nn.linear import Linear, linear
from unifier.nn.precision import LayerNorm, softmax_, softmax_backward_
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice
from unifier_tokenizers.tokens import has_no_padding

AttentionMode = Literal["bidirectional", "causal"] | Tensor
"""Which columns each column may see: all (BERT, ViT), itself and those before it (GPT), or lengths (B,) of a prefix
that all columns see, with the past seen after it (one stack that translates)."""


def build_attention_mask(mask: Tensor, mode: AttentionMode) -> Tensor | None:
    """Which column may see which: mask (B, N) -> (B, 1, 1 or N, N) bool, or None where all are known to see all."""
    n = mask.shape[1]
    if isinstance(mode, Tensor):
        column = torch.arange(n, device=mask.device)
        past = column[:, None] >= column
        return mask[:, None, None, :] & (past | (column < mode[:, None, None]))[:, None]
    if check_choice("mode", mode, ("bidirectional", "causal")) == "causal":
        return mask[:, None, None, :] & torch.ones(n, n, dtype=torch.bool, device=mask.device).tril()
    return None if has_no_padding(mask) else mask[:, None, None, :]


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Vaswani et al. 2017, section 3.2.1, as written: the answer (B, H, N, D/H) and the weights (B, H, N, M)."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is not None:  # added, not filled in: the sum is broadcast, and many times as fast
        scores += _added(mask, scores.dtype)
    weights = scores.softmax(-1)
    return weights.to(value.dtype) @ value, weights


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a query sees a key, minus infinity where it does not."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def _product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """left (B, N, K) by right (B, K, M), times a scale, in one pass."""
    return torch.baddbmm(left.new_empty(1), left, right, beta=0, alpha=scale)


@final
class PlainAttention(Function):
    """The answer of `plain_attention` in fewer passes, its gradients written out."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        heads, ctx.scale = query.shape[:2], query.shape[-1] ** -0.5
        query, key, value = (part.flatten(0, 1) for part in (query, key, value))
        scores = _product(query, key.mT, ctx.scale)
        added = None if mask is None else _added(mask, scores.dtype)
        weights = softmax_(scores.unflatten(0, heads), added).flatten(0, 1)
        ctx.save_for_backward(query, key, value, weights)
        return (weights @ value).unflatten(0, heads)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides its names
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, weights = ctx.saved_tensors
        heads, errors = gradient.shape[:2], gradient.flatten(0, 1)
        to_scores = softmax_backward_(errors @ value.mT, weights)
        to_query, to_key = _product(to_scores, key, ctx.scale), _product(to_scores.mT, query, ctx.scale)
        to_value = weights.mT @ errors
        return to_query.unflatten(0, heads), to_key.unflatten(0, heads), to_value.unflatten(0, heads), None


FUSED_MIN_KEYS = {torch.bfloat16: 1024}
"""On a CPU, for each type, the number of keys below which two products and a softmax beat the fused kernel.

`python -m benchmarks.attention` measures it again. In bfloat16 the fused kernel took 1.9 to 3.6 times as long from 32
to 512 keys (AMD EPYC, torch 2.11). At 1,024 it took 1.5 times as long by itself, yet whole steps were 1.3 times as fast
with it (`python -m benchmarks.scaling`), for it keeps no weights for the backward pass. In float32 it won throughout.
"""


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """query (B, H, N, D/H), key and value (B, H, M, D/H), mask broadcast to (B, H, N, M) -> (B, H, N, D/H)."""
    if query.device.type == "cpu" and key.shape[2] < FUSED_MIN_KEYS.get(query.dtype, 0):
        answer: Tensor = PlainAttention.apply(query, key, value, mask)  # pyright: ignore[reportAssignmentType]
        return answer
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def apply_rope(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of rows of queries or keys (B, H, N, D/H) by angles (B, N, D/H/2) (Su et al. 2021, section 3.4.2)."""
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


@final
class KVCache:
    """The keys and values that one attention has seen, so that a decoder computes each column once."""

    def __init__(self, *, grows: bool) -> None:
        """A cache that does not grow keeps the first keys and values: those of a memory."""
        self.grows = grows
        self.length = 0
        self.held: Tensor | None = None
        """(B, 2, H, M, D/H), keys and values; a cache that grows has room for some more than its length."""

    def update(self, key: Tensor, value: Tensor) -> None:
        """Append columns (B, H, M', D/H)."""
        length = self.length + key.shape[2]
        if self.held is None or length > self.held.shape[3]:
            rows, heads, _, depth = key.shape
            roomier = key.new_empty(rows, 2, heads, length + (CACHE_STEP if self.grows else 0), depth)
            if self.held is not None:
                roomier[:, :, :, : self.length] = self.held[:, :, :, : self.length]
            self.held = roomier
        self.held[:, 0, :, self.length : length] = key
        self.held[:, 1, :, self.length : length] = value
        self.length = length

    def read(self) -> tuple[Tensor, Tensor]:
        """The keys and values (B, H, M, D/H) held."""
        assert self.held is not None
        key, value = self.held[:, :, :, : self.length].unbind(1)
        return key, value

    def reorder(self, rows: Tensor) -> None:
        """Keep examples rows (B',), in that order and with repeats."""
        if self.held is not None:
            self.held = self.held.index_select(0, rows)


CACHE_STEP = 16
"""Columns that a growing cache makes room for at a time."""


@final
class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2) of x to itself, or to a memory."""

    def __init__(self, dim: int, heads: int, *, qk_norm: bool = False, projections: bool = True) -> None:
        """`qk_norm` gives each head's queries and keys mean 0 and variance 1, times a weight (Henry et al. 2020).

        Without `projections`, queries, keys and values are the columns as they come.
        """
        super().__init__()
        if dim < 1:
            raise InputError(f"D = {dim}: at least 1 is needed")
        if heads < 1 or dim % heads:
            raise InputError(f"{heads} heads do not divide D = {dim}: take a number of heads that does")
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
        mask: Tensor | None = None,
        angles: Tensor | None = None,
        cache: KVCache | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """x (B, N, D), memory (B, M, D), mask broadcast to (B, H, N, M), angles (B, M, D/H/2) -> (B, N, D).

        Angles are those of the memory's columns, of which x are the first; without a memory, x is its own.
        A list given as `weights` receives this call's attention (B, H, N, M), on the plain path.
        """
        if cache is not None and cache.length and not cache.grows:
            (query,), (key, value) = self._heads(self.query(x) if self.projections else x), cache.read()
            query = self.query_norm(query)
        else:
            if not self.projections:
                (query,), (key,) = self._heads(x), self._heads(x if memory is None else memory.to(x.dtype))
                value = key
            elif memory is None:  # one product is faster than two
                weight = torch.cat([self.query.weight, self.key_value.weight])
                bias = torch.cat([self.query.bias, self.key_value.bias])
                query, key, value = self._heads(linear(x, weight, bias), 3)
            else:
                (query,), (key, value) = self._heads(self.query(x)), self._heads(self.key_value(memory), 2)
            query, key = self.query_norm(query), self.key_norm(key)
            if angles is not None:
                query, key = apply_rope(query, angles[:, : query.shape[2]]), apply_rope(key, angles)
            if cache is not None:
                cache.update(key, value)
                key, value = cache.read()
        if weights is None:
            answer = attention(query, key, value, mask)
        else:
            answer, seen = plain_attention(query, key, value, mask)
            weights.append(seen)
        answer = answer.transpose(1, 2).flatten(2)
        return self.out(answer) if self.projections else answer

    def _heads(self, x: Tensor, parts: int = 1) -> list[Tensor]:
        """(B, N, parts * D) -> that many (B, H, N, D/H).

        They part before they turn, so that their gradients turn within the pass that joins them.
        """
        each = x.unflatten(2, (parts * self.heads, -1)).chunk(parts, dim=2)
        return [part.transpose(1, 2) for part in each]
