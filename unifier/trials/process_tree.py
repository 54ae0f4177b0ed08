"""Descendants of processes, and a program that kills processes when its standard input is closed."""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def with_descendants(processes: Iterable[int]) -> set[int]:
    """Return the ids of processes and of all their running descendants. Only Linux lists its processes in /proc."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])
    family = set(processes)
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def kill_at_end_of_input(processes: Iterable[int]) -> None:
    """Wait until standard input is closed, then kill the processes and the descendants that they have by then."""
    sys.stdin.read()
    for process in with_descendants(processes):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    kill_at_end_of_input(map(int, sys.argv[1:]))
