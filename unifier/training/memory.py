"""Memory of the process: settings of the allocator, and measurement of peak memory."""

import ctypes
import mmap
from pathlib import Path
from typing import Any

import torch

GIBIBYTE = 1 << 30

HUGE_PAGE_GIBIBYTES = 8
"""Size in GiB of the heap memory with huge pages. Unused pages take no physical memory."""

_retains_freed_memory = False
"""True if `configure_allocator` has changed the allocator of this process."""


def glibc() -> Any:
    """Return the C library that allocates CPU tensors on Linux (glibc), or None on systems without glibc."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):  # Windows cannot open the library None.
        return None


def configure_allocator() -> None:
    """Configure glibc to retain freed memory for the next step, and to use huge pages.

    By default, glibc returns freed blocks above 32 MiB and free memory at the end of the heap to the system. The system
    fills each new page with zeros, which takes 10 to 33 % of a small model's training step. The settings are described
    in the manual page mallopt(3).
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
    """Use huge pages (2 MiB) for new heap memory, if supported by Linux (madvise(2)).

    With 4 KiB pages, address translation took 5 to 8 % of a training step on an Intel Xeon with AMX.
    """
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    blocks = [library.malloc(ctypes.c_size_t(GIBIBYTE - mmap.PAGESIZE)) for _ in range(HUGE_PAGE_GIBIBYTES)]
    start, end = -(-(blocks[0] or 0) // mmap.PAGESIZE) * mmap.PAGESIZE, library.sbrk(0)
    if 0 < start < end:
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_HUGEPAGE)
    for block in blocks:
        library.free(ctypes.c_void_p(block))


def reset_peak_memory(device: str) -> None:
    """Restart the measurement of a device's peak memory.

    The peak memory of a GPU restarts on every system. The peak memory of the process restarts only on Linux.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    library = glibc()
    if library is not None:
        library.malloc_trim(0)  # Return the memory of earlier runs to the system.
        if _retains_freed_memory:
            _use_huge_pages(library)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # Without a restart, the peak memory includes earlier runs of the process.
        return


def peak_memory(device: str) -> int:
    """Return the peak memory in bytes: of the GPU if the device is "cuda", else of the process.

    The result is 0 on systems that do not report peak memory, such as Windows.
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
