"""Compare attention kernels and two implementations of softmax: `python -m benchmarks.attention`.

The measured tables determine the constants in `unifier/nn/attention.py` and `unifier/nn/precision.py`.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.runner.device import fast_dtypes
from benchmarks.runner.tables import publish_section, table_header, table_row
from benchmarks.runner.timing import median_seconds
from unifier.nn.attention import FUSED_MIN_KEYS, PlainAttention, attention
from unifier.nn.local_attention import Local, LocalMask
from unifier.nn.precision import SHORT_ROW, softmax_backward_by_parts_, softmax_by_parts_
from unifier.training.memory import configure_allocator

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
"""Sequence lengths, in tokens."""
HEADS, HEAD_DIM = 4, 64
TOKENS_PER_BATCH = 1 << 14

LOCAL_LENGTHS = (512, 1024, 2048, 8192)
"""Sequence lengths of local attention, in tokens."""
PATTERNS = (Local(64), Local(64, causal=True), Local(64, 64, causal=True))

ROW_LENGTHS = (8, 15, 16, 20, 27, 32, 50, 64, 128)
"""Row lengths of the softmax, in keys."""
SCORES = 1 << 17
"""The approximate number of scores per softmax, for all row lengths."""

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def attention_lines() -> Iterator[str]:
    """Yield table rows with the time of the fused kernel divided by the time of the plain kernel."""
    yield table_header(["fused / plain", "", *(f"{length:,}" for length in LENGTHS), "plain below"], (0, 1))
    for dtype in fast_dtypes():
        for padded in (False, True):
            seconds = [attention_seconds([plain_attention, fused_attention], n, dtype, padded) for n in LENGTHS]
            ratios = [f"{fused / plain:.2f}" for plain, fused in seconds]
            rule = f"{FUSED_MIN_KEYS.get(dtype, 0):,}"
            yield table_row([str(dtype).removeprefix("torch."), "padded" if padded else "full", *ratios, rule])


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention with two matrix products and a softmax."""
    result: Tensor = PlainAttention.apply(query, key, value, mask)  # pyright: ignore[reportAssignmentType]
    return result


def fused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention with torch's fused kernel."""
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention to earlier tokens with torch's fused kernel, which skips later tokens."""
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)


def attention_seconds(kernels: list[Kernel], length: int, dtype: torch.dtype, padded: bool) -> list[float]:
    """Measure the forward and backward pass of each kernel.

    Args:
        kernels: The kernels to measure.
        length: Number of tokens per sequence.
        dtype: Type of the queries, keys and values.
        padded: If True, sequences have random lengths, and their padding is masked.

    Returns:
        The median seconds of each kernel.
    """
    torch.manual_seed(0)
    batch = max(TOKENS_PER_BATCH // length, 1)
    # The memory layout matches the attention layers, which split heads from (B, N, D).
    inputs = [torch.randn(batch, length, HEADS, HEAD_DIM).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    lengths = torch.randint(length // 2, length + 1, (batch, 1))
    mask = (torch.arange(length) < lengths)[:, None, None] if padded else None
    return median_seconds([partial(_forward_backward, kernel, *inputs, mask) for kernel in kernels])


def _forward_backward(
    kernel: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | LocalMask | None
) -> None:
    kernel(query, key, value, mask).sum().backward()


def local_lines() -> Iterator[str]:
    """Yield table rows with the time of attention to all tokens divided by the time of local attention.

    A causal pattern is compared with attention to all earlier tokens.
    """
    yield table_header(["all / local", "width", "stride", "causal", *(f"{n:,}" for n in LOCAL_LENGTHS)], (0, 3))
    for dtype in fast_dtypes():
        rows = {pattern: list[str]() for pattern in PATTERNS}
        for n in LOCAL_LENGTHS:
            mask = torch.ones(1, n, dtype=torch.bool)
            inputs = [torch.randn(1, n, HEADS, HEAD_DIM).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
            dense = [partial(_forward_backward, kernel, *inputs, None) for kernel in (attention, causal_attention)]
            local = [partial(_forward_backward, attention, *inputs, LocalMask(pattern, mask)) for pattern in PATTERNS]
            full, causal, *seconds = median_seconds([*dense, *local])
            for pattern, each in zip(PATTERNS, seconds, strict=True):
                rows[pattern].append(f"{(causal if pattern.causal else full) / each:.1f}")
        for pattern, ratios in rows.items():
            settings = f"{pattern.width}", f"{pattern.stride or 'none'}", "yes" if pattern.causal else "no"
            yield table_row([str(dtype).removeprefix("torch."), *settings, *ratios])


def softmax_lines() -> Iterator[str]:
    """Yield table rows with the time of torch's softmax divided by the time of `softmax_by_parts_`."""
    yield table_header(["torch / by parts", "", *(f"{keys:,}" for keys in ROW_LENGTHS), "by parts below"], (0, 1))
    for dtype in SHORT_ROW:
        passes = zip(*(softmax_seconds(keys, dtype) for keys in ROW_LENGTHS), strict=True)
        for name, seconds in zip(("forward", "backward"), passes, strict=True):
            ratios = [f"{torch_seconds / by_parts:.2f}" for torch_seconds, by_parts in seconds]
            yield table_row([str(dtype).removeprefix("torch."), name, *ratios, str(SHORT_ROW[dtype])])


def softmax_seconds(keys: int, dtype: torch.dtype) -> tuple[list[float], list[float]]:
    """Measure torch's softmax and `softmax_by_parts_`, both in place.

    Returns:
        The median seconds of the two functions in the forward pass, and in the backward pass.
    """
    torch.manual_seed(0)
    scores = torch.randn(max(SCORES // keys, 1), keys).to(dtype)
    weights, grads = scores.softmax(-1), torch.randn_like(scores)

    def torch_backward() -> None:
        torch.ops.aten._softmax_backward_data.out(grads, weights, -1, dtype, grad_input=grads)

    forward = [lambda: torch.softmax(scores, -1, out=scores), lambda: softmax_by_parts_(scores)]
    backward = [torch_backward, lambda: softmax_backward_by_parts_(grads, weights)]
    return median_seconds(forward), median_seconds(backward)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__).parse_args()
    configure_allocator()
    publish_section("attention", "\n".join(attention_lines()))
    publish_section("local", "\n".join(local_lines()))
    publish_section("softmax", "\n".join(softmax_lines()))
