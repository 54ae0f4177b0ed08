"""Campaigns: their names, their outcomes, and the line that reports a campaign."""

import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from unifier.files import printable

CAMPAIGNS = ("models", "formats", "readers", "damage", "kills", "process_kills")
"""Names of the campaigns, which are modules of this package, from the shortest campaign to the longest."""

MAX_LINE = 1000
"""Maximum length of the line of a wrong case in characters."""


class Outcome(NamedTuple):
    """The outcome of a campaign."""

    tried: int
    wrong: list[str]
    """One line for each wrong case, with what reproduces the case."""


Campaign = Callable[[int, float, Path], Outcome]
"""Function `run(seed, seconds, folder)` of a campaign's module.

The cases depend only on the seed. The campaign starts no case after the given number of seconds. All files are written
below the folder, which is empty at the start and is deleted at the end.
"""


def load_campaign(name: str) -> Campaign:
    """Import the function `run` of a campaign's module."""
    return importlib.import_module(f"benchmarks.chaos.{name}").run


def run_campaign(name: str, seed: int, seconds: float) -> Outcome:
    """Run a campaign in a temporary folder. An error of the campaign itself counts as one wrong case."""
    with TemporaryDirectory(prefix=f"chaos-{name}-", ignore_cleanup_errors=True) as folder:
        try:
            return load_campaign(name)(seed, seconds, Path(folder))
        except Exception as error:  # The other campaigns must still run.
            return Outcome(0, [f"the campaign failed: {type(error).__name__}: {error}"])


def check_in_turns(checks: Sequence[Callable[[int, int], str]], seed: int, num_cases: int, end: float) -> Outcome:
    """Make one case of each check in turns.

    Args:
        checks: Functions of the seed and the number of a case. They return the fault of the case, or "".
        seed: The seed of all cases.
        num_cases: The number of cases of each check.
        end: The end of the campaign on the monotonic clock. No case starts later.
    """
    tried, wrong = 0, list[str]()
    for number in range(num_cases):
        for check in checks:
            if time.monotonic() > end:
                return Outcome(tried, wrong)
            tried += 1
            if fault := check(seed, number):
                wrong.append(fault)
    return Outcome(tried, wrong)


def format_outcome(name: str, outcome: Outcome) -> str:
    """Return the line of a campaign, and one indented line for each wrong case."""
    lines = [f"{name}: {outcome.tried:,} tried, {len(outcome.wrong):,} wrong"]
    return "\n".join([*lines, *(f"  {printable(case)[:MAX_LINE]}" for case in outcome.wrong)])


def run_campaigns(names: list[str], seed: int, seconds: float) -> int:
    """Run campaigns and print their outcomes. Campaigns share the time, and unused time is left to later campaigns.

    Returns:
        1 if any case is wrong, else 0.
    """
    end, wrong = time.monotonic() + seconds, 0
    for k, name in enumerate(names):
        outcome = run_campaign(name, seed, (end - time.monotonic()) / (len(names) - k))
        wrong += len(outcome.wrong)
        print(format_outcome(name, outcome), flush=True)
    return int(wrong > 0)
