"""Processes that use files of a folder, and a program that kills them when its input is closed."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

KILL_SECONDS = 5.0
"""The time in which the program kills processes, because a killed server may just have started another one."""


def processes_using(folder: str, session: int) -> set[int]:
    """Return the ids of the processes of a session that name a folder in their command or have a file of it open.

    A server's descendants cannot be found by their parents once it has ended, nor by their environment or command once
    they have set a title. Only Linux lists processes in /proc.
    """
    found = set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # The process or its file is closed.
            if os.getsid(number := int(process.name)) == session and (
                folder.encode() in (process / "cmdline").read_bytes()
                or any(Path(folder) in file.readlink().parents for file in (process / "fd").iterdir())
            ):
                found.add(number)
    return found


def kill_at_end_of_input(folder: str, session: int) -> None:
    """Wait until standard input is closed, then kill the processes of a session that use a folder."""
    sys.stdin.read()
    end = time.monotonic() + KILL_SECONDS
    while time.monotonic() < end:
        for process in processes_using(folder, session):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    kill_at_end_of_input(sys.argv[1], int(sys.argv[2]))
