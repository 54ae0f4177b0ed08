"""Memory of the process: kept between steps, and measured."""

import ctypes
import mmap
from pathlib import Path
from typing import Any

import torch


def glibc() -> Any:
    """The C library, where it is glibc (Linux) and allocates all tensors of the CPU; else None."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):  # Windows
        return None


GIBIBYTE = 1 << 30


HUGE_PAGE_BYTES = 8
"""Gibibytes of the heap to lie in huge pages; none takes room before it is used."""


_keeps = False
"""Whether this process keeps what it frees."""


def configure_allocator() -> None:
    """Keep what a step frees for the next one, in huge pages, where glibc allocates.

    By default a block above 32 MiB is mapped anew each time and the rest trimmed away, and the system fills what comes
    back with zeros page by page: a tenth to a third of a small model's training step. The settings are mallopt(3)'s.
    """
    global _keeps
    library = glibc()
    if library is None:
        return
    _keeps = True
    trim_threshold, mmap_threshold, never = -1, -3, -1
    library.mallopt(mmap_threshold, GIBIBYTE)
    library.mallopt(trim_threshold, never)
    _use_huge_pages(library)


def _use_huge_pages(library: Any) -> None:
    """Lay out the heap's next gibibytes in pages of 2 MiB, where Linux has them (madvise(2)).

    Of a step's tensors, a processor does not remember where each page of 4 KiB lies: looking it up took 5 to 8 % of
    a training step (an Intel Xeon with AMX).
    """
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    blocks = [library.malloc(ctypes.c_size_t(GIBIBYTE - mmap.PAGESIZE)) for _ in range(HUGE_PAGE_BYTES)]
    start, end = -(-(blocks[0] or 0) // mmap.PAGESIZE) * mmap.PAGESIZE, library.sbrk(0)
    if 0 < start < end:
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_HUGEPAGE)
    for block in blocks:
        library.free(ctypes.c_void_p(block))


def reset_peak_memory(device: str) -> None:
    """Begin to measure the peak of a device's memory anew, where the system can (Linux, CUDA)."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    library = glibc()
    if library is not None:
        library.malloc_trim(0)  # what an earlier run freed and kept is not this one's
        if _keeps:
            _use_huge_pages(library)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # then the peak is the whole process's
        return


def peak_memory(device: str) -> int:
    """The most memory (bytes) in use at once: "cuda"'s own, and for every other device the process's.

    0 where the system does not tell, as Windows does not.
    """
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
