"""Attention to near tokens and to every s-th token: the pattern, its mask, and a kernel that computes only blocks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers import InputError

MIN_BLOCKS = 8
"""The smallest number of blocks for which attention is computed in blocks. For shorter inputs, a mask is faster.

`python -m benchmarks.attention` compares local attention in blocks with attention to all tokens.
"""

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Function that computes the attention of queries, keys and values (B, H, N, D/H) with a boolean mask."""


@final
@dataclass(frozen=True)
class Local:
    """Attention to near tokens, and optionally to every s-th token (Child et al. 2019, section 4.2).

    The tokens i and j attend to each other if |i - j| < width, or if i - j is a multiple of the stride. In a picture
    with one token per pixel, a stride of one row allows attention to the pixels above and below.
    """

    width: int
    """The distance between two tokens in a sequence must be below this number. Each token is near itself."""
    stride: int | None = None
    """The distance from one far token to the next. None means attention to near tokens only."""
    causal: bool = False
    """True if a token attends only to itself and to earlier tokens."""

    def __post_init__(self) -> None:
        for name, value in (("attention_width", self.width), ("attention_stride", self.stride)):
            if value is not None and value < 1:
                raise InputError(f"{name}={value}: at least 1 token is needed")

    def allows(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return a mask: True if the query with an index in `queries` may attend to the key with an index in `keys`.

        The shapes of `queries` and `keys` must broadcast to the shape of the mask.
        """
        distance = queries - keys
        allowed = distance.abs() < self.width
        if self.stride is not None:
            allowed |= distance % self.stride == 0
        return allowed & (distance >= 0) if self.causal else allowed


@final
@dataclass(frozen=True)
class LocalMask:
    """A pattern, and the real tokens of a batch."""

    pattern: Local
    mask: Tensor
    """(B, N), True for real tokens."""

    def dense(self, num_queries: int | None = None) -> Tensor:
        """Return the attention mask (B, 1, N, N) or (B, 1, num_queries, N).

        Padding attends to itself too, because the softmax of a row without any key is NaN.
        """
        index = torch.arange(self.mask.shape[1], device=self.mask.device)
        queries = index[:num_queries, None]
        return ((self.pattern.allows(queries, index) & self.mask[:, None]) | (queries == index))[:, None]


def local_attention(query: Tensor, key: Tensor, value: Tensor, local: LocalMask, kernel: Kernel) -> Tensor:
    """Compute local self-attention. The time is linear in N if the pattern has no stride.

    Args:
        query: The queries (B, H, N, D/H).
        key: The keys (B, H, N, D/H).
        value: The values (B, H, N, D/H).
        local: The pattern and the real tokens.
        kernel: The kernel for the attention within blocks, and for short inputs.

    Returns:
        The output (B, H, N, D/H).
    """
    if query.shape[2] < MIN_BLOCKS * local.pattern.width:
        return kernel(query, key, value, local.dense())
    if local.pattern.stride is not None:
        return _strided_attention(query, key, value, local, local.pattern.stride)
    batch, heads, n, _ = query.shape
    q, k, v = (part.transpose(1, 2).flatten(0, 1) for part in (_blocks(query, local), *_near_blocks(local, key, value)))
    output = kernel(q, k, v, _near_mask(local).flatten(0, 1)[:, None])
    return output.unflatten(0, (batch, -1)).transpose(1, 2).reshape(batch, heads, -1, output.shape[-1])[:, :, :n]


def _strided_attention(query: Tensor, key: Tensor, value: Tensor, local: LocalMask, stride: int) -> Tensor:
    """Compute one softmax over the near keys and the far keys of each query.

    The index of a far key and the index of its query are equal modulo the stride.
    """
    n, scale = query.shape[2], query.shape[-1] ** -0.5
    near_key, near_value = _near_blocks(local, key, value)
    near_scores = _blocks(query, local) @ near_key.mT  # (B, H, blocks, width, near keys)
    far_query, far_key, far_value = (_columns(part, stride) for part in (query, key, value))
    far_scores = far_query @ far_key.mT  # (B, H, stride, N / stride, N / stride)
    near_mask, far_mask = _near_mask(local)[:, None], _far_mask(local, stride)[:, None]
    scores = [
        (part * scale).masked_fill(~mask, -math.inf)
        for part, mask in ((near_scores, near_mask), (far_scores, far_mask))
    ]
    joined = torch.cat([scores[0].flatten(2, 3)[:, :, :n], _rows(scores[1], n)], -1)
    near, far = joined.softmax(-1).to(value.dtype).split([near_scores.shape[-1], far_scores.shape[-1]], -1)
    near_output = (_blocks(near, local) @ near_value).flatten(2, 3)[:, :, :n]
    return near_output + _rows(_columns(far, stride) @ far_value, n)


def _blocks(x: Tensor, local: LocalMask) -> Tensor:
    """Cut x (B, H, N, K) into blocks (B, H, blocks, width, K), padded with 0."""
    width = local.pattern.width
    return functional.pad(x, (0, 0, 0, -x.shape[2] % width)).unflatten(2, (-1, width))


def _near_blocks(local: LocalMask, *parts: Tensor) -> list[Tensor]:
    """Join each block of x (B, H, N, K) with its neighbors: (B, H, blocks, 2 or 3 widths, K).

    The neighbors are the block before and, if the pattern is not causal, the block after.
    """
    joined = list[Tensor]()
    for part in parts:
        blocks = _blocks(part, local)
        neighbors = [functional.pad(blocks[:, :, :-1], (0, 0, 0, 0, 1, 0)), blocks]
        if not local.pattern.causal:
            neighbors.append(functional.pad(blocks[:, :, 1:], (0, 0, 0, 0, 0, 1)))
        joined.append(torch.cat(neighbors, 3))
    return joined


def _near_mask(local: LocalMask) -> Tensor:
    """Return the mask (B, blocks, width, 2 or 3 widths) of the keys near each query of a block."""
    pattern, width = local.pattern, local.pattern.width
    queries = torch.arange(width, device=local.mask.device)[:, None]
    keys = torch.arange(-width, width if pattern.causal else 2 * width, device=local.mask.device)
    near = Local(width, None, pattern.causal).allows(queries, keys)
    (is_real,) = _near_blocks(local, local.mask[:, None, :, None].byte())
    return (near & (is_real[:, 0, :, None, :, 0] > 0)) | (queries == keys)


def _far_mask(local: LocalMask, stride: int) -> Tensor:
    """Return the mask (B, stride, N / stride, N / stride) of the keys that are a multiple of the stride away.

    Near keys are excluded, because they are in the blocks.
    """
    is_real = _columns(local.mask[:, None, :, None].byte(), stride)[:, 0, :, :, 0] > 0
    index = torch.arange(is_real.shape[2], device=is_real.device) * stride
    distance = index[:, None] - index
    far = (distance if local.pattern.causal else distance.abs()) >= local.pattern.width
    return far & is_real[:, :, None]


def _columns(x: Tensor, stride: int) -> Tensor:
    """Group x (B, H, N, K) by the index modulo stride: (B, H, stride, N / stride, K), padded with 0."""
    return functional.pad(x, (0, 0, 0, -x.shape[2] % stride)).unflatten(2, (-1, stride)).transpose(2, 3)


def _rows(x: Tensor, n: int) -> Tensor:
    """Return x (B, H, stride, N / stride, K) in the order of the tokens (B, H, n, K)."""
    return x.transpose(2, 3).flatten(2, 3)[:, :, :n]
