"""The watch over one case: its time, its peak memory, and the class of its error."""

import faulthandler
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from unifier.limits import describe_limit
from unifier_tokenizers import InputError

MAX_SECONDS, MAX_WAITING_SECONDS = 10, 60
"""Maximum processor time of a case, and maximum time with pauses, in which other processes may run."""

MAX_BYTES = 10**9
"""Maximum memory of a case, in addition to the size of the file."""

MAX_HANG_SECONDS = 300
"""A case that runs native code without an end stops the process after this time, with a traceback."""

_TICK = 0.2


class _Stopped(BaseException):
    """Exception that stops a case above its limits. Handlers of `Exception` do not catch it."""


class Verdict(NamedTuple):
    """The end of a case."""

    fault: str
    """The fault of the case, or "" for a case that was read or refused."""
    value: Any
    """The value that was read, or None."""
    refusal: str
    """The line that the command line prints, or ""."""


def watch(read: Callable[[], Any], file_bytes: int) -> Verdict:
    """Call a function that may raise InputError, and return the end of the case.

    Args:
        read: The function.
        file_bytes: Size of the file that the function reads.
    """
    started = time.process_time()
    value, refusal, fault = None, "", ""
    added_bytes: Callable[[], int] = int
    try:
        with _limits(MAX_BYTES + file_bytes) as added_bytes:
            try:
                value = read()
            except InputError as error:
                refusal = str(error)
            except Exception as error:
                refusal = describe_limit(error)  # The command line prints this line.
                fault = "" if refusal else _describe(error)
    except _Stopped as error:
        fault = str(error)
    seconds, memory = time.process_time() - started, added_bytes()
    if not fault and seconds > MAX_SECONDS:
        fault = f"{seconds:.0f} s"
    if not fault and memory > MAX_BYTES + file_bytes:
        fault = f"{memory / 1e9:.1f} GB of memory"
    return Verdict(fault, value, refusal)


@contextmanager
def _limits(max_bytes: int) -> Generator[Callable[[], int]]:
    """Stop the block above the limits of time and memory. The yielded function returns the peak memory added so far."""
    Path("/proc/self/clear_refs").write_text("5")  # Reset the peak to the current memory.
    before, started, waiting = _memory("VmRSS"), time.process_time(), time.monotonic()

    def check(*_: Any) -> None:
        fault = ""
        if time.process_time() - started > MAX_SECONDS or time.monotonic() - waiting > MAX_WAITING_SECONDS:
            fault = f"no end in {MAX_SECONDS} s"
        if _memory("VmRSS") - before > max_bytes:
            fault = f"over {max_bytes / 1e9:.1f} GB of memory"
        if fault:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise _Stopped(fault)

    earlier = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
    faulthandler.dump_traceback_later(MAX_HANG_SECONDS, exit=True)
    try:
        yield lambda: _memory("VmHWM") - before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        faulthandler.cancel_dump_traceback_later()


def _memory(field: str) -> int:
    """Return a field of the process's status in bytes, such as VmRSS, the memory, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _describe(error: Exception) -> str:
    """Return the class and message of an error, and the line of code that raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:200]}"
