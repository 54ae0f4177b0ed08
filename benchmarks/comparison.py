"""What comparing costs beside training: gradients compared, trunks observed and likened, rows and report written.

`python -m benchmarks.comparison` runs digits and music alone, together and on each other's trunks, and prints the
seconds of each part as a share of the seconds in training.
"""

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.racing.device import HIDDEN
from unifier.comparison import Comparison
from unifier.launch import run
from unifier.training import artifacts
from unifier.training.gradient_conflict import GradientConflict
from unifier.trials import runner

EXPERIMENTS = Path(__file__).parent.parent / "experiments"

PARTS: tuple[tuple[Any, str], ...] = (
    (GradientConflict, "on_after_backward"),
    (artifacts, "probe"),
    (runner, "compare_representations"),
    (runner, "write_report"),
    (runner, "write_json"),
)


def timed(part: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    """The same function, its seconds added up under its name."""

    @functools.wraps(part)
    def call(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return part(*given, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - start

    return call


def pair(*, tokens: int = 2_000_000) -> Comparison:
    """Two experiments in all modes, with runs long enough to be worth comparing."""
    sys.path.insert(0, str(EXPERIMENTS))
    from three_modalities import digits, music

    settings = {
        "dim": 128,
        "depth": 3,
        "tokens": tokens,
        "batch_tokens": 2048,
        "learning_rate": 5e-3,
        "num_validations": 8,
    }
    modes = ("solo", "joint", "transfer")
    return Comparison("pair", [digits, music], settings=settings, modes=modes, trainable=("none",))


def main() -> None:
    """Print a row a part."""
    parser = argparse.ArgumentParser(prog="benchmarks.comparison", description=__doc__)
    parser.add_argument("--tokens", type=int, default=2_000_000, help="columns an task reads (default: %(default)s)")
    options = parser.parse_args()
    os.environ.update(HIDDEN)
    spent = dict[str, float]()
    for owner, name in PARTS:
        setattr(owner, name, timed(getattr(owner, name), name, spent))
    with tempfile.TemporaryDirectory() as out:
        results = run(pair, out=out, track="off", tokens=options.tokens)
    training = sum(result.budget["seconds"] for result in results)
    print(f"{len(results)} runs, {training:.0f} s in training")
    for name, seconds in [*spent.items(), ("all of it", sum(spent.values()))]:
        print(f"{name:28} {seconds:6.2f} s {seconds / training:7.2%}")


if __name__ == "__main__":
    main()
