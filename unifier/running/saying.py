"""Progress that is printed for whoever still listens."""

from contextlib import suppress


def say(line: str) -> None:
    """Print a line at once; a reader that has gone away, such as `head`, or a full disk, ends no training."""
    with suppress(OSError):
        print(line, flush=True)
