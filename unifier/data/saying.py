"""Progress messages, which never stop a run."""

from contextlib import suppress
from typing import TextIO


def say(line: str, to: TextIO | None = None) -> None:
    """Print a line at once, to standard output where nothing else is named.

    A reader that has gone away, such as `head`, or a full disk, ends no training.
    """
    with suppress(OSError):
        print(line, file=to, flush=True)
