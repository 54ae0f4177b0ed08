"""Measure speed and memory for several sequence lengths and batch sizes: `python -m benchmarks.scaling`."""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.cases.registry import get_case
from benchmarks.runner.case import Case
from benchmarks.runner.processes import run_case
from benchmarks.runner.tables import publish_section, table_header, table_row

VARYING_LENGTH = [(length, max(8192 // length, 1)) for length in (64, 256, 1024, 4096)]
VARYING_BATCH = [(64, batch) for batch in (1, 16)]
VARIANTS = ("unifier", "timm", "timm, plain attention")
ROUNDS = 3


def scaling_case(length: int, batch: int) -> Case:
    """Create a spectrogram case with the variants `VARIANTS`, for one length and batch size.

    All variants have the precision of our first variant. Our first variant uses the fastest precision.
    """
    case = get_case(f"spectrogram-{length}-{batch}")
    precision = case.variants[0].precision
    variants = [variant for variant in case.variants if variant.name in VARIANTS and variant.precision == precision]
    return replace(case, variants=tuple(variants))


def scaling_lines(sizes: list[tuple[int, int]]) -> Iterator[str]:
    """Yield one table row per length and batch size, with the speed and the memory of each variant."""
    yield table_header(
        ["N", "batch", *(f"{name}, tokens/s" for name in VARIANTS), *(f"{name}, MB" for name in VARIANTS)], ()
    )
    for length, batch in sizes:
        timings = run_case(scaling_case(length, batch), ROUNDS)
        speeds = [f"{length / timing.seconds_per_unit:,.0f}" for timing in timings]
        memory = [f"{timing.work_bytes / 1e6:,.0f}" for timing in timings]
        yield table_row([f"{length:,}", f"{batch:,}", *speeds, *memory])


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__).parse_args()
    publish_section("scaling", "\n".join([*scaling_lines(VARYING_LENGTH), "", *scaling_lines(VARYING_BATCH)]))
