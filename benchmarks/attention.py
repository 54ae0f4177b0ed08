"""`python -m benchmarks.attention`: both ways to compute attention, from which the rule is read."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.racing.device import fast_types
from benchmarks.racing.tables import head, keep, row
from benchmarks.racing.timing import in_turn
from unifier.study.memory import keep_freed_memory
from unifier.trunks.attention import PLAIN_BELOW, PlainAttention

COLUMNS = (32, 64, 128, 256, 512, 1024, 2048)
HEADS, DEPTH = 4, 64
AT_ONCE = 1 << 14
"""Columns in a batch, of whatever length."""

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    answer: Tensor = PlainAttention.apply(query, key, value, mask)  # pyright: ignore[reportAssignmentType]
    return answer


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def seconds(kernels: list[Kernel], columns: int, dtype: torch.dtype, padded: bool) -> list[float]:
    """Of a forward and a backward pass of each kernel, the median of rounds in turn."""
    torch.manual_seed(0)
    batch = max(AT_ONCE // columns, 1)
    # As the layers give them: split from (B, N, D).
    parts = [torch.randn(batch, columns, HEADS, DEPTH).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    lengths = torch.randint(columns // 2, columns + 1, (batch, 1))
    mask = (torch.arange(columns) < lengths)[:, None, None] if padded else None
    return in_turn([partial(work, kernel, *parts, mask) for kernel in kernels])


def work(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    kernel(query, key, value, mask).sum().backward()


def table() -> Iterator[str]:
    """How many times as long the fused kernel takes as the plain one, by type, padding and number of columns."""
    yield head(["fused by plain", "", *(f"{columns:,}" for columns in COLUMNS), "plain below"], (0, 1))
    for dtype in fast_types():
        for padded in (False, True):
            times = [seconds([plain, fused], columns, dtype, padded) for columns in COLUMNS]
            shares = [f"{fused / plain:.2f}" for plain, fused in times]
            rule = f"{PLAIN_BELOW.get(dtype, 0):,}"
            yield row([str(dtype).removeprefix("torch."), "padded" if padded else "whole", *shares, rule])


if __name__ == "__main__":
    keep_freed_memory()
    keep("attention", "\n".join(table()))
