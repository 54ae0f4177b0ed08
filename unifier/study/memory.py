"""Memory of the process: kept between steps, and measured."""

import ctypes
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


def keep_freed_memory() -> None:
    """Keep what a step frees for the next one, where glibc allocates.

    By default a block above 32 MiB is mapped anew each time and the rest trimmed away, and the system fills what comes
    back with zeros page by page: a tenth to a third of a small model's training step. The settings are mallopt(3)'s.
    """
    library = glibc()
    if library is None:
        return
    trim_threshold, mmap_threshold, never = -1, -3, -1
    library.mallopt(mmap_threshold, 1 << 30)
    library.mallopt(trim_threshold, never)


def forget_peak_memory(device: str) -> None:
    """Begin to measure the peak of a device's memory anew, where the system can (Linux, CUDA)."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    library = glibc()
    if library is not None:
        library.malloc_trim(0)  # what an earlier run freed and kept is not this one's
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
