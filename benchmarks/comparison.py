"""Measure the time that a comparison needs in addition to training: `python -m benchmarks.comparison`.

The program compares digits and music in the modes solo, joint and transfer. The program measures the time for comparing
gradients, probing trunks, comparing trunks, writing results and writing the report. Each time is printed in seconds and
in percent of the training time.
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

from benchmarks.runner.device import NO_ACCELERATOR
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
    (runner, "write_sealed_json"),
)
"""The class or module, and the name, of each timed function."""


def add_timer(function: Callable[..., Any], name: str, seconds: dict[str, float]) -> Callable[..., Any]:
    """Return a wrapper of a function that adds the duration of each call to `seconds[name]`."""

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start

    return timed


def pair(*, tokens: int = 2_000_000) -> Comparison:
    """Compare digits and music in all modes, with runs of realistic length."""
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
    """Run the comparison and print the time of each timed function."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison", description=__doc__)
    parser.add_argument("--tokens", type=int, default=2_000_000, help="training tokens per task (default: %(default)s)")
    options = parser.parse_args()
    os.environ.update(NO_ACCELERATOR)
    seconds = dict[str, float]()
    for owner, name in PARTS:
        setattr(owner, name, add_timer(getattr(owner, name), name, seconds))
    with tempfile.TemporaryDirectory() as out:
        results = run(pair, out=out, track="off", tokens=options.tokens)
    training = sum(result.budget["seconds"] for result in results)
    print(f"{len(results)} runs, {training:.0f} s of training")
    for name, taken in [*seconds.items(), ("total", sum(seconds.values()))]:
        print(f"{name:28} {taken:6.2f} s {taken / training:7.2%}")


if __name__ == "__main__":
    main()
