"""Compare the speed of our linear layers with torch's linear layers: `python -m benchmarks.products`.

The measured table determines the rule in `unifier/nn/linear.py`.
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
from unifier.nn.linear import linear
from unifier.training.memory import configure_allocator

ROW_COUNTS = (64, 256, 1024, 8192)
"""Numbers of input tokens."""
LAYERS = ((128, 128), (128, 512), (192, 768), (768, 192), (128, 10000))
"""Input and output width of each linear layer."""

LinearFn = Callable[[Tensor, Tensor, Tensor], Tensor]


def product_lines() -> Iterator[str]:
    """Yield table rows with the time of torch's linear layer divided by the time of our linear layer."""
    counts = [f"{count:,} tokens" for count in ROW_COUNTS]
    yield table_header(["torch / ours", "", "in", "out", *counts], (0, 1))
    for dtype in fast_dtypes():
        for backward in (False, True):
            for in_dim, out_dim in LAYERS:
                seconds = [linear_seconds(count, in_dim, out_dim, dtype, backward) for count in ROW_COUNTS]
                ratios = [f"{torch_seconds / ours:.2f}" for torch_seconds, ours in seconds]
                name = str(dtype).removeprefix("torch.")
                direction = "and backward" if backward else "forward"
                yield table_row([name, direction, f"{in_dim:,}", f"{out_dim:,}", *ratios])


def linear_seconds(count: int, in_dim: int, out_dim: int, dtype: torch.dtype, backward: bool) -> list[float]:
    """Measure the time of torch's linear layer and of our linear layer.

    Args:
        count: Number of tokens.
        in_dim: Width of the input.
        out_dim: Width of the output.
        dtype: Type of input, weight and bias.
        backward: If True, also compute the gradients of input, weight and bias.

    Returns:
        The median seconds of torch's linear layer and of our linear layer.
    """
    torch.manual_seed(0)
    x, weight, bias = torch.randn(count, in_dim), torch.randn(out_dim, in_dim), torch.randn(out_dim)
    inputs = [tensor.to(dtype).requires_grad_() for tensor in (x, weight, bias)]
    grads = torch.randn(count, out_dim).to(dtype) if backward else None
    return median_seconds(
        [partial(_run_linear, linear_fn, *inputs, grads) for linear_fn in (functional.linear, linear)]
    )


def _run_linear(linear_fn: LinearFn, x: Tensor, weight: Tensor, bias: Tensor, grads: Tensor | None) -> None:
    with torch.set_grad_enabled(grads is not None):
        result = linear_fn(x, weight, bias)
    if grads is not None:
        result.backward(grads)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__).parse_args()
    configure_allocator()
    publish_section("products", "\n".join(product_lines()))
