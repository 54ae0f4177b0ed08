"""What tells of scores may fail, and the scores stay."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def spared(folder: Path, what: str) -> Generator[None]:
    """Within it, an error is a warning of one line: what is told of a run's or a comparison's scores is not worth them.

    Ctrl-C passes.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{folder} has its scores, but lacks {what}, which failed ({reason})", stacklevel=3)
