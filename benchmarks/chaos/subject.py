"""A file with the function that reads the file, and the check of one mutation."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from benchmarks.chaos.mutations import Mutator
from benchmarks.chaos.watch import watch


def agree(content: bytes, value: Any) -> str:
    """Return "", because there is no independent reader."""
    return ""


class Subject(NamedTuple):
    """A file that is mutated, and its reader."""

    name: str
    path: Path
    contents: Sequence[bytes]
    """Valid contents of the file. Each case mutates one of them."""
    read: Callable[[], Any]
    mutate: Mutator
    difference: Callable[[bytes, Any], str] = agree
    """Function of the mutated bytes and the value. Returns the difference to an independent reader, or ""."""
    detects_cuts: bool = False
    """True if the file declares its length. A file that is cut off must then be refused, or read completely."""

    def is_named(self, message: str) -> bool:
        """Return True if a message names the file, another file of its run, its data set or a setting."""
        names = (str(self.path.parents[1]), self.path.name, self.name.split()[0], "setting", "out of memory")
        return any(name in message for name in names) or re.match(r"\w+=", message) is not None

    def check(self, seed: int, number: int) -> str:
        """Read a mutation of the file. Return the fault with what reproduces the fault, or "".

        The file is written again with its valid content after the case.
        """
        rng = Random(f"{seed} {self.name} {number}")
        valid = self.contents[number % len(self.contents)]
        name, content = self.mutate(rng, valid)
        self.path.write_bytes(content)
        verdict = watch(self.read, len(content))
        fault = verdict.fault
        if not fault and verdict.refusal and not self.is_named(verdict.refusal):
            fault = f"the message names no file: {verdict.refusal}"
        if not fault and not verdict.refusal:
            fault = self.difference(content, verdict.value)
        if not fault and not verdict.refusal and self.detects_cuts and name == "cut_end":
            self.path.write_bytes(valid)
            fault = "" if equal(self.read(), verdict.value) else "read, although the end of the file is missing"
        self.path.write_bytes(valid)
        return f"{self.name}, seed {seed}, case {number}, {name}: {fault}" if fault else ""


def equal(first: Any, second: Any) -> bool:
    """Return True if two values are equal. The values may be arrays, or contain arrays."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second
