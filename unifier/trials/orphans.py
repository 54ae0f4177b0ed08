"""Processes that use files of a folder, and a program that kills them when its input is closed."""

import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

KILL_SECONDS = 10.0
"""The largest time in which the program kills processes."""

QUIET_SECONDS = 0.5
"""The time without processes after which the program ends. A killed server may just have started another one."""


def processes_using(folders: str, session: int) -> set[int]:
    """Return the ids of the processes of a session that name a folder in their command or have a file of it open.

    A server's descendants cannot be found by their parents once it has ended, nor by their environment or command once
    they have set a title. Only Linux lists processes in /proc.

    Args:
        folders: A regular expression for the paths of the folders.
        session: The id of the session.
    """
    found = set[int]()
    pattern = re.compile(rf"{folders}(?![^/\0])")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # The process or its file is closed.
            if os.getsid(number := int(process.name)) == session and (
                pattern.search((process / "cmdline").read_text(errors="replace"))
                or any(pattern.match(str(file.readlink())) for file in (process / "fd").iterdir())
            ):
                found.add(number)
    return found


def kill_at_end_of_input(folders: str, session: int, owner: int) -> None:
    """Wait until standard input is closed, then kill the processes of a session that use some folders.

    Args:
        folders: A regular expression for the paths of the folders.
        session: The id of the session.
        owner: The id of a process that is not killed.
    """
    sys.stdin.read()
    quiet_since = start = time.monotonic()
    while (now := time.monotonic()) < min(quiet_since + QUIET_SECONDS, start + KILL_SECONDS):
        for process in processes_using(folders, session) - {owner}:
            quiet_since = now
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    kill_at_end_of_input(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
