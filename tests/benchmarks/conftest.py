"""Shared builders: variants without a model, and timings without a clock."""

from typing import Any

import pytest

from benchmarks.runner.case import OURS, Case, Role, Variant, Workload
from benchmarks.runner.timing import Timing
from benchmarks.runner.tolerance import number_mismatch
from unifier.experiment import Precision


def create_timing(name: str, role: Role, precision: Precision, *seconds: float, **options: float) -> Timing:
    """Return the timing of one variant; the options are its units, memory and memory after the imports."""
    values: dict[str, Any] = {"units": 10, "memory_bytes": 100, "imported_bytes": 50, "start_seconds": 0, **options}
    values |= {"flops": 600 if role in OURS else None, "compared": True}
    return Timing(name=name, role=role, precision=precision, seconds=seconds, **values)


@pytest.fixture(scope="session")
def timings() -> list[Timing]:
    """Return the timings of a case with every role but the compiled ones."""
    return [
        create_timing("unifier", "ours", "bf16", 9, 2, 1, memory_bytes=60),
        create_timing("unifier", "ours", "float32", 4, 4, 4, memory_bytes=90),
        create_timing("a", "default", "bf16", 6, 6, 6),
        create_timing("b", "default", "bf16", 5, 5, 5, memory_bytes=80),
        create_timing("a, tuned", "tuned", "bf16", 3, 3, 3, memory_bytes=120),
        create_timing("a, tuned, our allocator", "our allocator", "bf16", 4, 4, 4, memory_bytes=130),
        create_timing("a", "float32", "float32", 8, 1, 8, units=20),
        create_timing("product", "peak", "bf16", 2, 2, 2, units=1000),
        create_timing("product", "peak", "float32", 4, 4, 4, units=800),
    ]


def create_variant(name: str, workload: Workload | None = None, library: str = "torch") -> Variant:
    """Return a variant with the given workload."""
    built = workload or Workload(lambda: None, 1)
    return Variant(name, "ours", "bf16", library, lambda *_: built)


def create_case(*variants: Variant) -> Case:
    """Return a case with the given variants."""
    return Case("example", "train", "Training an example", "things", variants, number_mismatch)
