import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unifier.files import say
from unifier.report.conditions import conditions
from unifier.report.estimates import alone
from unifier.report.read_results import read_study
from unifier.report.summary import answer
from unifier.report.tables import matching_of, score_tables
from unifier.training.result import Result

""""""


def print_table(results: Sequence[Result]) -> None:
    """One row an arm: its scores on the test split, and what they cost."""
    table = Table(
        "experiment", "arm", "seed", "test scores", "parameters", "tokens", "seconds", "MFU", box=None, pad_edge=False
    )
    for result in results:
        for arm in result.arms:
            prefix = f"test/{arm}/"
            scores = [
                f"{name.removeprefix(prefix)} {alone(score, 2)}"
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
    console().print(table)


def print_comparison(folder: Path) -> None:
    """A comparison's answer in a sentence; one table an arm, a row a condition, with what is matched and what is not;
    and what failed or lacks, a line each."""
    study = read_study(folder)
    found = conditions(study.rows)
    matched = matching_of(found)
    console().print(" ".join(answer(found)), style="bold")
    for arm, lines in score_tables(found).items():
        table = Table(title=arm, title_justify="left", box=None, pad_edge=False)
        for column in lines[0]:
            table.add_column(column, justify="left" if column in ("arm", "condition", "metric", "also") else "right")
        for line in lines:
            table.add_row(*line.values())
        console().print("")
        console().print(table)
        if arm in matched:
            console().print(f"{matched[arm]}.")
    for problem in study.problems:
        say(f"warning: {problem}", sys.stderr)


def console() -> Console:
    """Where tables go; a file or a pipe has no width to keep to."""
    plain = partial(Console, markup=False, emoji=False)  # names may have brackets and colons
    terminal = plain()
    return terminal if terminal.is_terminal else plain(width=140)
