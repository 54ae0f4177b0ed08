"""Memory of the process: settings of the allocator, and measurement of the peak."""

import ctypes
import mmap
from pathlib import Path
from typing import Any

import torch

GIBIBYTE = 1 << 30

HUGE_PAGE_GIBIBYTES = 8
"""Size of the part of the heap that has huge pages. Unused pages take no physical memory."""

_retains_freed_memory = False
"""True after `configure_allocator` changed the allocator of this process."""


def glibc() -> Any:
    """Return glibc, or None on systems without glibc. On Linux, glibc allocates all CPU tensors."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):  # Windows has no library of that name.
        return None


def configure_allocator() -> None:
    """Make glibc keep freed memory for the next step, and use huge pages.

    By default, glibc returns freed memory to the system, and requests each block above 32 MiB again. The system fills
    every new page with zeros. Filling the pages takes a tenth to a third of a small model's training step. The manual
    page mallopt(3) describes the settings.
    """
    global _retains_freed_memory
    library = glibc()
    if library is None:
        return
    _retains_freed_memory = True
    trim_threshold, mmap_threshold, never = -1, -3, -1
    library.mallopt(mmap_threshold, GIBIBYTE)
    library.mallopt(trim_threshold, never)
    _use_huge_pages(library)


def _use_huge_pages(library: Any) -> None:
    """Use pages of 2 MiB for the next gibibytes of the heap, if Linux supports huge pages (madvise(2)).

    With pages of 4 KiB, address translation took 5 to 8 % of a training step on an Intel Xeon with AMX.
    """
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    blocks = [library.malloc(ctypes.c_size_t(GIBIBYTE - mmap.PAGESIZE)) for _ in range(HUGE_PAGE_GIBIBYTES)]
    start, end = -(-(blocks[0] or 0) // mmap.PAGESIZE) * mmap.PAGESIZE, library.sbrk(0)
    if 0 < start < end:
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_HUGEPAGE)
    for block in blocks:
        library.free(ctypes.c_void_p(block))


def reset_peak_memory(device: str) -> None:
    """Restart the measurement of a device's peak memory. Only Linux and CUDA support a restart."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    library = glibc()
    if library is not None:
        library.malloc_trim(0)  # Memory of an earlier run must not count in the current run.
        if _retains_freed_memory:
            _use_huge_pages(library)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # Without a restart, the peak includes earlier runs of the process.
        return


def peak_memory(device: str) -> int:
    """Return the peak memory in bytes, of the GPU if the device is "cuda", else of the process.

    The result is 0 on systems that do not report the peak, such as Windows.
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
