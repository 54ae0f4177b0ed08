"""`python -m benchmarks.scaling`: columns a second and memory, against an example's length and the batch."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.contests.by_name import find
from benchmarks.racing.contest import Contest
from benchmarks.racing.race import race
from benchmarks.racing.tables import head, keep, row
from benchmarks.racing.timing import Timing

LENGTHS = [(columns, max(8192 // columns, 1)) for columns in (64, 256, 1024, 4096)]
BATCHES = [(64, batch) for batch in (1, 16)]
RACERS = ("unifier", "timm", "timm, plain attention")
ROUNDS = 3


def contest(columns: int, batch: int) -> Contest:
    """The spectrogram classifier's, of other sizes, in the faster type: what ours is entered in first."""
    whole = find(f"spectrogram-{columns}-{batch}")
    faster = whole.contestants[0].precision
    few = tuple(one for one in whole.contestants if one.name in RACERS and one.precision == faster)
    return replace(whole, contestants=few)


def line(columns: int, batch: int) -> Iterator[str]:
    """One size: columns a second, then the memory of the work, of each."""
    timings: list[Timing] = race(contest(columns, batch), ROUNDS)
    yield from (f"{columns:,}", f"{batch:,}")
    yield from (f"{columns / timing.each:,.0f}" for timing in timings)
    yield from (f"{timing.work_bytes / 1e6:,.0f}" for timing in timings)


def table(sizes: list[tuple[int, int]]) -> Iterator[str]:
    yield head(["N", "batch", *(f"{name}, columns/s" for name in RACERS), *(f"{name}, MB" for name in RACERS)], ())
    yield from (row([*line(*size)]) for size in sizes)


if __name__ == "__main__":
    keep("scaling", "\n".join([*table(LENGTHS), "", *table(BATCHES)]))
