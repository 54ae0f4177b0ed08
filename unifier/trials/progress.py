"""The display of trials that run at the same time: a live table on a terminal, otherwise plain lines."""

import sys
import time
from dataclasses import dataclass, field
from typing import final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table

from unifier.files import format_duration, print_status, printable


@final
@dataclass
class _Row:
    name: str
    line: str = "waits for a free place"
    started: float = field(default_factory=time.monotonic)


@final
class TrialTable:
    """A table with one row per submitted trial: its name, the time since its start, and its latest line of progress."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._live = (
            Live(self, console=Console(), refresh_per_second=2, transient=True) if sys.stdout.isatty() else None
        )

    def start(self) -> None:
        """Show the table if the output is a terminal."""
        if self._live is not None:
            self._live.start()

    def stop(self) -> None:
        """Remove the table from the terminal."""
        if self._live is not None:
            self._live.stop()

    def add(self, key: str, name: str) -> None:
        """Add a trial, or start its time again."""
        self._rows[key] = _Row(name)

    def update(self, key: str, line: str) -> None:
        """Set the latest line of a trial. Without a terminal, the line is printed after the name of the trial."""
        if (row := self._rows.get(key)) is None:
            return
        row.line = line
        if self._live is None:
            print_status(f"{row.name}: {line}")

    def warn(self, key: str, line: str) -> None:
        """Print a warning of a trial."""
        name = self._rows[key].name if key in self._rows else key
        print_status(f"{name}: {line}", sys.stderr)

    def remove(self, key: str, ending: str) -> None:
        """Remove a trial that has ended, and print a line."""
        row = self._rows.pop(key)
        print_status(f"{row.name}: {ending} after {format_duration(time.monotonic() - row.started)}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table."""
        table = Table("trial", "time", "progress", box=None, pad_edge=False)
        for row in self._rows.values():
            elapsed = format_duration(time.monotonic() - row.started)
            table.add_row(printable(row.name), elapsed, printable(row.line), style="default")
        yield table
