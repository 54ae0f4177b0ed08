"""Tables of the command line: settings, scores of runs, and the conditions of a comparison."""

import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from unifier.files import print_status, printable
from unifier.report.conditions import group_conditions
from unifier.report.estimates import format_value
from unifier.report.list_runs import LOWER_IS_BETTER, RunSummary
from unifier.report.read_results import read_results
from unifier.report.summary import summarize_results
from unifier.report.tables import describe_matching, pretraining_caveat, score_tables
from unifier.settings import REQUIRED, list_settings
from unifier.training.result import Result

TEXT_COLUMNS = ("task", "condition", "metric", "also")
"""Names of the text columns in score tables. All other columns are right-aligned."""


def print_settings(function: Callable[..., Any], given: Mapping[str, Any] | None = None) -> None:
    """Print a table of a recipe's settings: type, default and explanation.

    Args:
        function: The function that defines an experiment or a comparison.
        given: Values that replace the defaults in the table.
    """
    table = Table("setting", "type", "value" if given else "default", "meaning", box=None, pad_edge=False)
    for name, setting in list_settings(function).items():
        value = (given or {}).get(name, setting.default)
        add_line(table, name, format_type(setting.type), format_default(value), setting.doc)
    create_console().print(table)


def format_type(annotation: Any) -> str:
    """Format a setting's type for users, such as "int | none" or "adamw | muon"."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " | ".join(map(format_default, arguments))
    if origin in (typing.Union, UnionType):
        return " | ".join(map(format_type, arguments))
    if origin in (tuple, list, Sequence):
        return f"{format_type(arguments[0])},..." if arguments else "list"
    return "none" if annotation is type(None) else getattr(annotation, "__name__", str(annotation)).lower()


def format_default(value: Any) -> str:
    """Format a setting's value in the syntax of the command line."""
    if value is REQUIRED:
        return "required"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(format_default, value)) if isinstance(value, tuple | list) else str(value)


def print_results(results: Sequence[Result]) -> None:
    """Print a table with one row per task: the test scores of the task, and the cost of the run."""
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
            add_line(
                table,
                result.name,
                task,
                str(result.seed),
                ", ".join(scores) or f"{result.status}: {result.error}",
                f"{result.parameters['total']:,}",
                f"{result.budget['tokens']:,.0f}",
                f"{result.budget['seconds']:.0f}",
                f"{result.speed['mfu']:.1%}" if "mfu" in result.speed else "",
            )
    create_console().print(table)


def print_runs(runs: Sequence[RunSummary], folder: Path) -> None:
    """Print a table with one row per run. The paths of the runs are relative to a folder."""
    has_errors = any(LOWER_IS_BETTER in run.score for run in runs)
    score = f"test score ({LOWER_IS_BETTER} lower is better)" if has_errors else "test score"
    table = Table("run", "experiment", score, "started", box=None, pad_edge=False)
    table.add_column("MB", justify="right")
    for run in runs:
        path = str(run.folder.relative_to(folder))
        add_line(table, path, run.name, run.score, run.started, f"{run.size / 1e6:,.1f}")
    create_console().print(table)


def print_run_differences(folders: Sequence[Path], rows: Sequence[tuple[str, str, str]]) -> None:
    """Print a table of test scores and of the facts that differ between two runs."""
    table = Table("", *(printable(folder.name) for folder in folders), box=None, pad_edge=False)
    for row in rows:
        add_line(table, *row)
    create_console().print(table)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with one line per row. The first column is text, and the other columns are numbers."""
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="right" if table.columns else "left")
    for row in rows:
        add_line(
            table,
            *("" if cell is None else format_value(cell) if isinstance(cell, float) else cell for cell in row.values()),
        )
    create_console().print(table)


def print_comparison(folder: Path) -> None:
    """Print a comparison's answer, one score table per task, and one warning per problem."""
    console, results = create_console(), read_results(folder)
    conditions = group_conditions(results.rows)
    matching, answer = describe_matching(conditions), summarize_results(results)
    console.print(printable(" ".join(answer.sentences)), style="bold")
    for task, lines in score_tables(conditions).items():
        table = Table(title=printable(task), title_justify="left", box=None, pad_edge=False)
        for column in lines[0]:
            table.add_column(printable(column), justify="left" if column in TEXT_COLUMNS else "right")
        for line in lines:
            add_line(table, *line.values())
        console.print("")
        console.print(table)
        if task in matching:
            console.print(printable(f"{matching[task]}."))
        if caveat := pretraining_caveat(results.rows):
            console.print(f"{caveat}.")
    for problem in [*results.problems, *answer.problems]:
        print_status(f"warning: {problem}", sys.stderr)


def add_line(table: Table, *cells: str) -> None:
    """Add a row to a table. Control characters of the cells are escaped."""
    table.add_row(*map(printable, cells))


def create_console() -> Console:
    """Create the console for tables. Tables are 140 characters wide if standard output is a file or a pipe."""
    plain = partial(Console, markup=False, emoji=False)  # Names may contain brackets and colons.
    terminal = plain()
    return terminal if terminal.is_terminal else plain(width=140)
