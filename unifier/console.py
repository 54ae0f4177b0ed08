"""Tables of results in the terminal."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unifier.files import print_status
from unifier.report.conditions import group_conditions
from unifier.report.estimates import format_value
from unifier.report.read_results import read_results
from unifier.report.summary import summarize
from unifier.report.tables import describe_matching, score_tables
from unifier.training.result import Result

MAX_WIDTH = 140
"""Characters per line of a table that is written to a file or a pipe."""

TEXT_COLUMNS = ("task", "condition", "metric", "also")
"""Columns of a score table that are aligned to the left."""


def print_table(results: Sequence[Result]) -> None:
    """Print one row for each task of each run: its scores on the test split and their cost."""
    table = Table(
        "experiment", "task", "seed", "test scores", "parameters", "tokens", "seconds", "MFU", box=None, pad_edge=False
    )
    for result in results:
        for task in result.tasks:
            prefix = f"test/{task}/"
            scores = [
                f"{name.removeprefix(prefix)} {format_value(score, 2)}"
                for name, score in result.metrics.items()
                if name.startswith(prefix)
            ]
            table.add_row(
                result.name,
                task,
                str(result.seed),
                ", ".join(scores) or f"{result.status}: {result.error}",
                f"{result.parameters['total']:,}",
                f"{result.budget['tokens']:,}",
                f"{result.budget['seconds']:.0f}",
                f"{result.speed['mfu']:.0%}" if result.speed else "",
            )
    create_console().print(table)


def print_comparison(folder: Path) -> None:
    """Print the summary of a comparison and one table per task, with one row per condition.

    Each table is followed by a line on which costs are matched. Runs that failed or lack files are named on stderr.
    """
    results = read_results(folder)
    conditions = group_conditions(results.rows)
    matching = describe_matching(conditions)
    console = create_console()
    console.print(" ".join(summarize(conditions)), style="bold")
    for task, rows in score_tables(conditions).items():
        table = Table(title=task, title_justify="left", box=None, pad_edge=False)
        for column in rows[0]:
            table.add_column(column, justify="left" if column in TEXT_COLUMNS else "right")
        for row in rows:
            table.add_row(*row.values())
        console.print("")
        console.print(table)
        if task in matching:
            console.print(f"{matching[task]}.")
    for problem in results.problems:
        print_status(f"warning: {problem}", sys.stderr)


def create_console() -> Console:
    """Return a console for tables that prints names with brackets and colons as they are.

    The terminal's width limits the lines. In a file or a pipe the limit is `MAX_WIDTH`.
    """
    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(markup=False, emoji=False, width=MAX_WIDTH)
