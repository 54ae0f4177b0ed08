"""Measure the maximum speed of the machine with a product of two square matrices."""

from functools import partial
from pathlib import Path

import torch

from benchmarks.runner.case import Variant, Workload
from benchmarks.runner.device import Device
from unifier.experiment import Precision
from unifier.nn.linear import matmul
from unifier.training.memory import configure_allocator

SIDE = {"cpu": 2048, "cuda": 8192}
"""The number of rows and columns of each matrix, keyed by device."""
PRODUCTS = {"cpu": 10, "cuda": 100}
"""The number of matrix products per round, keyed by device."""


def peak_variants(device: Device, *precisions: Precision) -> tuple[Variant, ...]:
    """Create one variant per precision. The variants only multiply matrices."""
    return tuple(
        Variant("matrix product", "peak", precision, "torch", partial(_matrix_products, device))
        for precision in precisions
    )


def _matrix_products(device: Device, precision: Precision, _: Path) -> Workload:
    """Create a workload that counts floating-point operations as units."""
    side, count = SIDE[device], PRODUCTS[device]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, side, side).to(device, dtype)
    configure_allocator()

    def run_round() -> None:
        for _ in range(count):
            matmul(left, right)

    return Workload(run_round, units=2 * side**3 * count)
