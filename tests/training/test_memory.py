"""The allocator keeps freed memory, and the peak is that of the device."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from unifier.training import memory
from unifier.training.memory import configure_allocator, peak_memory, reset_peak_memory

PROGRAM = """
import resource, sys, torch
from unifier.training.memory import configure_allocator
if sys.argv[1] == "kept":
    configure_allocator()
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(16_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run_program(*arguments: str) -> list[int]:
    """Return the numbers that a program in a new process prints."""
    command = [sys.executable, "-c", *arguments]
    return [*map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_large_tensors_reuse_memory() -> None:
    (kept,), (returned,) = run_program(PROGRAM, "kept"), run_program(PROGRAM, "returned")
    assert kept < returned / 20, f"{kept} page faults, {returned} without"


HUGE = """
import re, torch
from pathlib import Path
from unifier.training.memory import configure_allocator, reset_peak_memory
configure_allocator()
def huge():
    return int(re.search(r"AnonHugePages: *(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1]) >> 10
first = torch.ones(2, 2**25), huge()
second = torch.ones(2**26), huge()
before = first[1], second[1]
del first, second
reset_peak_memory("cpu")
print(*before, torch.ones(2**26)[0] and huge())
"""


def huge_pages_on_request() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[madvise]" in setting.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not huge_pages_on_request(), reason="no huge pages on request")
def test_tensors_use_huge_pages_after_a_reset() -> None:
    first, both, third = run_program(HUGE)
    assert 240 < first < both  # MiB, of 256 and 512 in use.
    assert both > 480
    assert 240 < third < 300  # Memory that was freed before is returned.


@pytest.mark.slow
def test_peak_memory_can_be_reset() -> None:
    configure_allocator()
    reset_peak_memory("cpu")
    before = peak_memory("cpu")
    size = 200 * 2**20
    np.ones(size, np.uint8)
    assert peak_memory("cpu") - before > 0.9 * size
    reset_peak_memory("cpu")
    assert peak_memory("cpu") - before < 0.5 * size


def test_peak_memory_is_that_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: resets.append("cuda"))
    reset_peak_memory("cpu")
    assert peak_memory("cpu") > 10**6
    assert not resets
    reset_peak_memory("cuda")
    assert peak_memory("cuda") == 7
    assert resets
    # Windows has neither /proc nor the module.
    monkeypatch.setattr(memory, "Path", lambda _: tmp_path / "none")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory("cpu") == 0
