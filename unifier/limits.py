"""Limits of the system: checks before a command starts, and one line for an error that a limit causes."""

import ctypes
import errno
import os
import sys
from itertools import takewhile

from unifier.files import is_recoverable
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

MIN_OPEN_FILES = 64
"""Smallest limit on open files with which a run of one worker works."""

MIN_GIBIBYTES = {
    "show": 5,
    "run": 8,
    "sweep": 5,
    "report": 1,
    "runs": 5,
    "clean": 5,
    "new": 5,
    "pack": 8,
    "export": 5,
    "predict": 5,
    "evaluate": 5,
    "embed": 5,
    "generate": 5,
    "neighbors": 5,
    "heads": 5,
    "serve": 5,
    "translate": 5,
}
"""Smallest limit of each command on virtual memory in GiB.

A small run and a small translation need 3.9 GiB, and a report needs 0.5 GiB. Larger models and data need more.
"""

EXTRA_THREADS = 32
"""Number of threads for workers and for W&B. OpenBLAS and torch need one thread per core each."""

HINTS = {
    errno.EFBIG: "; the checkpoints and the cache need `ulimit -f unlimited`",
    errno.EMFILE: f"; a run needs `ulimit -n {MIN_OPEN_FILES}`, and each worker 8 more",
    errno.EAGAIN: "; the workers and threads need a higher `ulimit -u`",
    errno.ENOMEM: "; close other programs, raise `ulimit -v`, or give a smaller batch_tokens or model",
}


def check_limits(command: str) -> None:
    """Raise the limits on open files and virtual memory as far as the system allows, and check the number of threads.

    Under low limits, torch and OpenBLAS fail in ways that no program can handle.

    Raises:
        InputError: A limit is too low for the command.
    """
    import resource

    for kind, needed, unit, remedy in (
        (resource.RLIMIT_NOFILE, MIN_OPEN_FILES, "open files", "ulimit -n"),
        (resource.RLIMIT_AS, MIN_GIBIBYTES[command] << 30, "bytes of memory", "ulimit -v"),
    ):
        soft, hard = resource.getrlimit(kind)
        if resource.RLIM_INFINITY not in (soft, hard) and hard < needed:
            raise InputError(f"only {hard:,} {unit} are allowed, but {needed:,} are needed: raise `{remedy}`")
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(kind, (needed, hard))
    cores = os.environ.get("OMP_NUM_THREADS", "")
    needed = 2 * (int(cores) if cores.isdecimal() else os.cpu_count() or 1) + EXTRA_THREADS
    if sys.platform == "linux" and (started := count_threads(needed)) < needed:
        raise InputError(
            f"only {started} threads can be started, but {needed} are needed: raise the limit on processes "
            "(`ulimit -u`), or set a lower OMP_NUM_THREADS"
        )


def count_threads(number: int) -> int:
    """Start threads that wait, end all threads, and return the number of started threads, at most `number`.

    The threads run a C function, because each Python thread would reserve 64 MiB of virtual memory for ever.
    """
    library = ctypes.CDLL(None)
    semaphore = ctypes.create_string_buffer(64)
    library.sem_init(semaphore, 0, 0)
    wait = ctypes.cast(library.sem_wait, ctypes.c_void_p)

    def start(thread: ctypes.c_ulong) -> bool:
        return library.pthread_create(ctypes.byref(thread), None, wait, semaphore) == 0

    started = list(takewhile(start, [ctypes.c_ulong() for _ in range(number)]))
    for _ in started:
        library.sem_post(semaphore)
    for thread in started:
        library.pthread_join(thread, None)
    return len(started)


def describe_limit(error: BaseException | None) -> str:
    """Return one line for an error of the disk, the memory or a limit of the system. Return "" for any other error."""
    if isinstance(error, OSError) and is_recoverable(error):
        path = error.filename2 or error.filename or "the disk"
        return f"{path}: {error.strerror}{HINTS.get(error.errno or 0, '')}"
    if not isinstance(error, MemoryError | RuntimeError):
        return ""
    line = one_line(error)
    reasons = ("can't allocate memory", "out of memory", "size calculation overflowed")
    if isinstance(error, MemoryError) or any(reason in line for reason in reasons):
        return f"out of memory ({line}){HINTS[errno.ENOMEM]}"
    return f"{line}{HINTS[errno.EAGAIN]}" if "can't start new thread" in line else ""
