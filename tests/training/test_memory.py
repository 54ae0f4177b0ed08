import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unifier.training.memory import configure_allocator, peak_memory, reset_peak_memory

PROGRAM = """
import resource, sys, torch
from unifier.training.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(16_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have other allocators")
def test_large_tensors_are_not_mapped_anew_at_every_step() -> None:
    kept, given_back = faults("kept"), faults("given back")
    assert kept < given_back / 20, f"{kept} page faults, {given_back} without"


HUGE = """
import re, torch
from pathlib import Path
from unifier.training.memory import forget_peak_memory, keep_freed_memory
keep_freed_memory()
def huge():
    return int(re.search(r"AnonHugePages: *(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1]) >> 10
first = torch.ones(2, 2**25), huge()
second = torch.ones(2**26), huge()
before = first[1], second[1]
del first, second
forget_peak_memory("cpu")
print(*before, torch.ones(2**26)[0] and huge())
"""


def huge_pages_can_be_asked_for() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[madvise]" in setting.read_text()


@pytest.mark.skipif(not huge_pages_can_be_asked_for(), reason="this system has no huge pages, or has them in any case")
def test_tensors_lie_in_huge_pages_and_still_do_when_the_peak_was_forgotten() -> None:
    done = subprocess.run([sys.executable, "-c", HUGE], check=True, capture_output=True, text=True)
    first, both, third = map(int, done.stdout.split())
    assert 240 < first < both  # MiB of 256, and of 512
    assert both > 480
    assert 240 < third < 300  # what was freed before is given back


def test_the_peak_of_memory_holds_a_large_allocation_and_can_be_forgotten() -> None:
    configure_allocator()
    reset_peak_memory("cpu")
    before = peak_memory("cpu")
    size = 200 * 2**20
    held = np.ones(size, np.uint8)
    del held
    assert peak_memory("cpu") - before > 0.9 * size
    reset_peak_memory("cpu")
    assert peak_memory("cpu") - before < 0.5 * size


def test_the_memory_of_a_processor_is_the_process_s_beside_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 7)
    forgotten: list[str] = []
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda: forgotten.append("cuda"))
    reset_peak_memory("cpu")
    assert peak_memory("cpu") > 10**6
    assert not forgotten
    reset_peak_memory("cuda")
    assert peak_memory("cuda") == 7
    assert forgotten


def test_where_the_system_tells_of_no_peak_it_is_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, which has neither /proc nor the module."""
    monkeypatch.setattr("unifier.training.memory.Path", lambda _: tmp_path / "none")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory("cpu") == 0
