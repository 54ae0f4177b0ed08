"""What the machine can do at most: a product of two square matrices."""

from functools import partial
from pathlib import Path

import torch

from benchmarks.racing.contest import Contestant, Workload
from benchmarks.racing.device import Device
from unifier.experiment import Precision
from unifier.nn.linear import matmul
from unifier.training.memory import configure_allocator

SIDE = {"cpu": 2048, "cuda": 8192}
PRODUCTS = {"cpu": 10, "cuda": 100}


def bare_product(device: Device, precision: Precision, _: Path) -> Workload:
    """Products of matrices as large as the device likes them, counted in floating-point operations."""
    side, count = SIDE[device], PRODUCTS[device]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, side, side).to(device, dtype)
    configure_allocator()

    def work() -> None:
        for _ in range(count):
            matmul(left, right)

    return Workload(work, units=2 * side**3 * count)


def peaks(device: Device, *precisions: Precision) -> tuple[Contestant, ...]:
    """The contestant that does nothing else, in each precision."""
    return tuple(
        Contestant("matrix product", "peak", precision, "torch", partial(bare_product, device))
        for precision in precisions
    )
