"""`python -m benchmarks.attention`: both ways to compute attention and its softmax, from which the rules are read."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.racing.device import fast_types
from benchmarks.racing.tables import head, keep, row
from benchmarks.racing.timing import in_turn
from unifier.nn.attention import FUSED_MIN_KEYS, PlainAttention
from unifier.nn.precision import SHORT_ROW, softmax_backward_by_parts_, softmax_by_parts_
from unifier.training.memory import configure_allocator

COLUMNS = (32, 64, 128, 256, 512, 1024, 2048)
HEADS, DEPTH = 4, 64
AT_ONCE = 1 << 14
"""Columns in a batch, of whatever length."""

KEYS = (8, 15, 16, 20, 27, 32, 50, 64, 128)
SCORES = 1 << 17
"""In a softmax that is timed, in rows of whatever length."""

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
            rule = f"{FUSED_MIN_KEYS.get(dtype, 0):,}"
            yield row([str(dtype).removeprefix("torch."), "padded" if padded else "whole", *shares, rule])


def softmax_seconds(keys: int, dtype: torch.dtype) -> tuple[list[float], list[float]]:
    """Of torch's softmax and of its parts, in place, the median of rounds in turn: forward, and then backward."""
    torch.manual_seed(0)
    scores = torch.randn(max(SCORES // keys, 1), keys).to(dtype)
    weights, errors = scores.softmax(-1), torch.randn_like(scores)

    def kernel() -> None:
        torch.ops.aten._softmax_backward_data.out(errors, weights, -1, dtype, grad_input=errors)

    forward = [lambda: torch.softmax(scores, -1, out=scores), lambda: softmax_by_parts_(scores)]
    return in_turn(forward), in_turn([kernel, lambda: softmax_backward_by_parts_(errors, weights)])


def softmax_table() -> Iterator[str]:
    """How many times as long torch's softmax takes as its parts, by type and length of rows."""
    yield head(["torch's by parts", "", *(f"{keys:,}" for keys in KEYS), "parts below"], (0, 1))
    for dtype in SHORT_ROW:
        times = zip(*(softmax_seconds(keys, dtype) for keys in KEYS), strict=True)
        for name, ways in zip(("forward", "backward"), times, strict=True):
            shares = [f"{whole / parts:.2f}" for whole, parts in ways]
            yield row([str(dtype).removeprefix("torch."), name, *shares, str(SHORT_ROW[dtype])])


if __name__ == "__main__":
    configure_allocator()
    keep("attention", "\n".join(table()))
    keep("softmax", "\n".join(softmax_table()))
