"""Shared builders: variants without a model, and timings without a clock."""

from collections.abc import Callable

import pytest

from benchmarks.runner.case import OURS, Case, Role, Variant, Workload
from benchmarks.runner.timing import Timing
from benchmarks.runner.tolerance import number_mismatch
from unifier.experiment import Precision

CreateTiming = Callable[..., Timing]
CreateVariant = Callable[..., Variant]
CreateCase = Callable[..., Case]


@pytest.fixture(scope="session")
def create_timing() -> CreateTiming:
    """Return a function that creates the timing of one variant."""

    def create(
        name: str,
        role: Role,
        precision: Precision,
        *seconds: float,
        memory: int = 100,
        imported: int = 50,
        units: float = 10,
    ) -> Timing:
        return Timing(
            name=name,
            role=role,
            precision=precision,
            seconds=seconds,
            units=units,
            memory_bytes=memory,
            imported_bytes=imported,
            start_seconds=0,
            flops=600 if role in OURS else None,
            compared=True,
        )

    return create


@pytest.fixture(scope="session")
def timings(create_timing: CreateTiming) -> list[Timing]:
    """Return the timings of a case with every role but the compiled ones."""
    return [
        create_timing("unifier", "ours", "bf16", 9, 2, 1, memory=60),
        create_timing("unifier", "ours", "float32", 4, 4, 4, memory=90),
        create_timing("a", "default", "bf16", 6, 6, 6),
        create_timing("b", "default", "bf16", 5, 5, 5, memory=80),
        create_timing("a, tuned", "tuned", "bf16", 3, 3, 3, memory=120),
        create_timing("a, tuned, our allocator", "our allocator", "bf16", 4, 4, 4, memory=130),
        create_timing("a", "float32", "float32", 8, 1, 8, units=20),
        create_timing("product", "peak", "bf16", 2, 2, 2, units=1000),
        create_timing("product", "peak", "float32", 4, 4, 4, units=800),
    ]


@pytest.fixture(scope="session")
def create_variant() -> CreateVariant:
    """Return a function that creates a variant with the given workload."""

    def create(name: str, workload: Workload | None = None, library: str = "torch") -> Variant:
        built = workload or Workload(lambda: None, 1)
        return Variant(name, "ours", "bf16", library, lambda *_: built)

    return create


@pytest.fixture(scope="session")
def create_case() -> CreateCase:
    """Return a function that creates a case with the given variants."""

    def create(*variants: Variant) -> Case:
        return Case("example", "train", "Training an example", "things", variants, number_mismatch)

    return create
