import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unifier.files import print_status
from unifier.report.conditions import group_conditions
from unifier.report.estimates import format_alone
from unifier.report.read_results import read_results
from unifier.report.summary import summarize
from unifier.report.tables import describe_matching, score_tables
from unifier.training.result import Result

""""""


def print_table(results: Sequence[Result]) -> None:
    """One row an task: its scores on the test split, and what they cost."""
    table = Table(
        "experiment", "task", "seed", "test scores", "parameters", "tokens", "seconds", "MFU", box=None, pad_edge=False
    )
    for result in results:
        for task in result.tasks:
            prefix = f"test/{task}/"
            scores = [
                f"{name.removeprefix(prefix)} {format_alone(score, 2)}"
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
    """A comparison's answer in a sentence; one table an task, a row a condition, with what is matched and what is not;
    and what failed or lacks, a line each."""
    study = read_results(folder)
    found = group_conditions(study.rows)
    matched = describe_matching(found)
    create_console().print(" ".join(summarize(found)), style="bold")
    for task, lines in score_tables(found).items():
        table = Table(title=task, title_justify="left", box=None, pad_edge=False)
        for column in lines[0]:
            table.add_column(column, justify="left" if column in ("task", "condition", "metric", "also") else "right")
        for line in lines:
            table.add_row(*line.values())
        create_console().print("")
        create_console().print(table)
        if task in matched:
            create_console().print(f"{matched[task]}.")
    for problem in study.problems:
        print_status(f"warning: {problem}", sys.stderr)


def create_console() -> Console:
    """Where tables go; a file or a pipe has no width to keep to."""
    plain = partial(Console, markup=False, emoji=False)  # names may have brackets and colons
    terminal = plain()
    return terminal if terminal.is_terminal else plain(width=140)
