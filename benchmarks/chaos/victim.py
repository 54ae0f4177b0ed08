"""A process that has imported unifier, and forks a child for each command. The child may be killed at any moment."""

import atexit
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_SECONDS = 300.0
"""Time in seconds after which a command counts as a hang."""

WAIT_SECONDS = 10.0
"""Time in seconds in which the workers of a killed process must end."""

PRELOADED = (
    "lightning.pytorch",
    "matplotlib.pyplot",
    "sklearn.model_selection",
    "unifier.cli",
    "unifier.datasets",
    "unifier.report.page",
    "unifier.trials.runner",
)
"""Modules that are imported once, because their import takes longer than a small run."""

DISK_EVENTS = {
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.truncate",
    "fcntl.flock",
    "shutil.rmtree",
}
"""Audit events of Python that change the disk or a lock, in addition to files that are opened for writing."""


def main() -> None:
    """Run the commands on standard input, one JSON object per line, and print the end of each command as JSON.

    A command has the keys `arguments`, `folder` and `environment`. The key `signal` is sent at the audit event with the
    number `event`, or after the time `seconds`. `fresh` is True for a new Python process.
    """
    for module in PRELOADED:
        importlib.import_module(module)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


def run(command: Mapping[str, Any]) -> dict[str, Any]:
    """Run one command in a child. Return its exit status, number of events, seconds, and number of orphans."""
    reading, writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if not child:
        os.close(reading)
        _run_child(command, writing)
    os.close(writing)
    seconds, sent = command.get("seconds"), False
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        elapsed = time.monotonic() - started
        if seconds is not None and elapsed >= seconds and not sent:
            os.kill(child, command["signal"])
            sent = True
        if elapsed > MAX_SECONDS:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.002)
    elapsed = time.monotonic() - started
    with os.fdopen(reading) as pipe:
        events = pipe.readline() if not count_orphans(child, WAIT_SECONDS) else "0"
    orphans = count_orphans(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(ended[1])
    return {"status": status, "events": int(events or 0), "seconds": elapsed, "orphans": orphans, "sent": sent}


def count_orphans(session: int, seconds: float) -> int:
    """Wait for the end of all processes of a session, and return the number of processes that have not ended."""
    end = time.monotonic() + seconds
    while True:
        count = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, owner = stat.read_text().rpartition(") ")[2].split()[:4]
                count += int(owner) == session and state != "Z"
        if not count or time.monotonic() > end:
            return count
        time.sleep(0.05)


def _run_child(command: Mapping[str, Any], pipe: int) -> None:
    """Run a command in this process, and end the process."""
    os.setsid()
    folder = Path(command["folder"])
    os.chdir(folder)
    os.environ.update(command["environment"])
    tempfile.tempdir = None
    for descriptor, path in enumerate((os.devnull, folder / "output", folder / "errors")):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A program in the background ignores SIGINT.
    if command.get("fresh"):
        os.execv(sys.executable, [sys.executable, "-m", "unifier", *command["arguments"]])
    process, events = os.getpid(), 0

    def count(event: str, given: tuple[Any, ...]) -> None:
        nonlocal events
        is_write = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
        if (is_write or event in DISK_EVENTS) and os.getpid() == process:
            events += 1
            if events == command.get("event"):
                os.kill(process, command["signal"])

    sys.addaudithook(count)
    status = 1
    try:
        status = _call(command["arguments"])
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(pipe, f"{events}\n".encode())
        os._exit(status)


def _call(arguments: list[str]) -> int:
    """Call the command line, or download a file: `download URL SIZE SHA256`."""
    if arguments[0] != "download":
        from unifier.cli import main

        return main(arguments)
    from unifier.data.download import RemoteFile, ensure_files

    _, url, size, sha256 = arguments
    with suppress(KeyboardInterrupt):
        ensure_files("chaos", url, {"file": RemoteFile(int(size), sha256)})
        return 0
    return 1


if __name__ == "__main__":
    main()
