"""What the machine can do at most: a product of two square matrices."""

from pathlib import Path

import torch

from benchmarks.contest import Contestant, Workload
from unifier.study.experiment import Precision

SIDE = 2048
PRODUCTS = 10


def product(precision: Precision) -> Workload:
    """Products of SIDE x SIDE matrices, counted in floating-point operations."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, SIDE, SIDE).to(dtype)
    answer = torch.empty_like(left)

    def work() -> None:
        for _ in range(PRODUCTS):
            torch.mm(left, right, out=answer)

    return Workload(work, units=2 * SIDE**3 * PRODUCTS)


def _bf16(_: Path) -> Workload:
    return product("bf16")


def _float32(_: Path) -> Workload:
    return product("float32")


PEAKS = (
    Contestant("matrix product", "peak", "bf16", "torch", _bf16),
    Contestant("matrix product", "peak", "float32", "torch", _float32),
)
