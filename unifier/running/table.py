"""The table that a run prints at its end."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from unifier.running.result import Result


def print_table(results: Sequence[Result]) -> None:
    """One row an arm: its scores on the test split, and what they cost."""
    table = Table(
        "experiment", "arm", "seed", "test scores", "parameters", "tokens", "seconds", "MFU", box=None, pad_edge=False
    )
    for result in results:
        for arm in result.arms:
            prefix = f"test/{arm}/"
            scores = [
                f"{name.removeprefix(prefix)} {score:.2f}"
                for name, score in result.metrics.items()
                if name.startswith(prefix)
            ]
            table.add_row(
                result.name,
                arm,
                str(result.seed),
                ", ".join(scores) or f"{result.status}: {result.error}",
                f"{result.parameters['total']:,}",
                f"{result.budget['tokens']:,}",
                f"{result.budget['seconds']:.0f}",
                f"{result.speed['mfu']:.0%}" if result.speed else "",
            )
    console = Console()
    console = console if console.is_terminal else Console(width=140)  # a file or a pipe has no width to keep to
    console.print(table)
