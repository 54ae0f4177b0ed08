"""What the machine can do at most: a product of two square matrices."""

from pathlib import Path

import torch

from benchmarks.racing.contest import Contestant, Workload
from unifier.study.experiment import Precision
from unifier.study.memory import keep_freed_memory
from unifier.trunks.arithmetic.linear import product

SIDE = 2048
PRODUCTS = 10


def bare_product(precision: Precision) -> Workload:
    """Products of SIDE x SIDE matrices, counted in floating-point operations."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, SIDE, SIDE).to(dtype)
    keep_freed_memory()

    def work() -> None:
        for _ in range(PRODUCTS):
            product(left, right)

    return Workload(work, units=2 * SIDE**3 * PRODUCTS)


def _bf16(_: Path) -> Workload:
    return bare_product("bf16")


def _float32(_: Path) -> Workload:
    return bare_product("float32")


PEAKS = (
    Contestant("matrix product", "peak", "bf16", "torch", _bf16),
    Contestant("matrix product", "peak", "float32", "torch", _float32),
)
