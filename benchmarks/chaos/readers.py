"""The campaign that reads mutated files: data, tables, archives, checkpoints and results, in one process."""

import os
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chaos.campaign import Outcome, check_in_turns
from benchmarks.chaos.data_files import data_subjects
from benchmarks.chaos.run_files import run_subjects

CASES = 20
"""Number of mutations of each file."""


def run(seed: int, seconds: float, folder: Path) -> Outcome:
    """Read `CASES` mutations of each file. A case is right if the file is refused in one line, or read correctly."""
    end = time.monotonic() + seconds
    with quiet():
        subjects = [*data_subjects(folder / "data"), *run_subjects(folder / "runs")]
        return check_in_turns([subject.check for subject in subjects], seed, CASES, end)


@contextmanager
def quiet() -> Generator[None]:
    """Send the output of the process to /dev/null, because native libraries print messages about damaged files."""
    saved, null = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(null, stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for stream, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        os.close(null)
