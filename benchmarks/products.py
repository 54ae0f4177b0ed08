"""`python -m benchmarks.products`: linear maps by torch's own products and by ours, from which the rule is read."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.racing.device import fast_types
from benchmarks.racing.tables import head, keep, row
from benchmarks.racing.timing import in_turn
from unifier.nn.linear import linear
from unifier.training.memory import configure_allocator

COLUMNS = (64, 256, 1024, 8192)
MAPS = ((128, 128), (128, 512), (192, 768), (768, 192), (128, 10000))
"""From D numbers to L."""

Map = Callable[[Tensor, Tensor, Tensor], Tensor]


def work(map_: Map, x: Tensor, weight: Tensor, bias: Tensor, errors: Tensor | None) -> None:
    """Forward, and backward from the errors where there are any."""
    with torch.set_grad_enabled(errors is not None):
        answer = map_(x, weight, bias)
    if errors is not None:
        answer.backward(errors)


def seconds(columns: int, dim: int, out: int, dtype: torch.dtype, learning: bool) -> list[float]:
    """Of torch's way and ours."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(columns, dim), torch.randn(out, dim), torch.randn(out)
    parts = [part.to(dtype).requires_grad_() for part in (x, weight, bias)]
    errors = torch.randn(columns, out).to(dtype) if learning else None
    return in_turn([partial(work, way, *parts, errors) for way in (functional.linear, linear)])


def table() -> Iterator[str]:
    """How many times as long torch's way takes as ours, by type, map and number of columns."""
    yield head(["torch's by ours", "", "D", "L", *(f"{columns:,} columns" for columns in COLUMNS)], (0, 1))
    for dtype in fast_types():
        for learning in (False, True):
            for dim, out in MAPS:
                times = [seconds(columns, dim, out, dtype, learning) for columns in COLUMNS]
                shares = [f"{torchs / ours:.2f}" for torchs, ours in times]
                name = str(dtype).removeprefix("torch.")
                yield row([name, "and backward" if learning else "forward", f"{dim:,}", f"{out:,}", *shares])


if __name__ == "__main__":
    configure_allocator()
    keep("products", "\n".join(table()))
