"""A run in Trackio, in a local database or on the Hugging Face Space that $TRACKIO_SPACE_ID names."""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import final

from unifier.files import printable
from unifier.training.loggers import RunLogger, TrackedRun


@contextmanager
def _quiet() -> Generator[None]:
    """Print Trackio's messages to standard error, because standard output contains the results."""
    with redirect_stdout(sys.stderr):
        yield


@final
class Trackio(RunLogger):
    """Trackio run with the name and the id of the run, because Trackio finds an earlier run by its name."""

    @_quiet()
    def __init__(self, tracked: TrackedRun) -> None:
        """Start or resume the Trackio run."""
        import trackio

        self.levels = {True: trackio.AlertLevel.ERROR, False: trackio.AlertLevel.INFO}
        self.run = trackio.init(
            printable(tracked.project),
            printable(f"{tracked.name} ({tracked.id})"),
            group=printable(tracked.group),
            config=dict(tracked.config),
            resume="allow",
            embed=False,
        )

    @_quiet()
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        self.run.log({printable(name): value for name, value in metrics.items()}, step)

    @_quiet()
    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Log the final metrics, such as the measured speed."""
        self.run.log({printable(name): value for name, value in metrics.items()})

    @_quiet()
    def alert(self, title: str, text: str, *, failed: bool) -> None:
        """Send an alert, which also goes to $TRACKIO_WEBHOOK_URL."""
        self.run.alert(title, text, self.levels[failed])

    @_quiet()
    def close(self, *, failed: bool) -> None:
        """Write the pending metrics and end the run."""
        import trackio

        trackio.finish()  # `run.finish` would leave the run open, and a message would follow the results at exit.
