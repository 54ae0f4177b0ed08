"""`python -m benchmarks`: race the contests, then write their results, the figure and the tables of README.md."""

import argparse
import sys
from pathlib import Path

from benchmarks.contests.by_name import CONTESTS
from benchmarks.racing import tables
from benchmarks.racing.contest import Contest
from benchmarks.racing.device import is_here
from benchmarks.racing.figure import draw
from benchmarks.racing.race import FailedError, race, tell
from benchmarks.racing.report import FILES, results
from benchmarks.racing.timing import Timing
from unifier.files import read_json, write_json

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Time unifier beside its peers.")
    parser.add_argument("contest", nargs="*", help=f"of {', '.join(CONTESTS)}; without any, all that can be")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each contestant")
    parser.add_argument("--quick", action="store_true", help="two rounds, nothing compiled, nothing written")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.contest) - set(CONTESTS)):
        parser.error(f"no contest is called {', '.join(unknown)}: there are {', '.join(CONTESTS)}")
    names: list[str] = asked.contest or list(CONTESTS)
    absent = [name for name in names if not is_here(CONTESTS[name].device)]
    if absent:
        needed = f"{', '.join(absent)}: an accelerator is needed ({CONTESTS[absent[0]].device}), and none is here"
        if asked.contest:
            parser.error(needed)
        tell(f"{needed}; not raced")
    found: list[tuple[Contest, list[Timing]]] = []
    failed = False
    for contest in (CONTESTS[name] for name in names if name not in absent):
        try:
            found.append((contest, race(contest, 2 if asked.quick else asked.rounds, compiled=not asked.quick)))
        except FailedError as error:  # which takes nothing from the others, hours of them
            tell(f"{error}; {contest.name} has no new result")
            failed = True
    for device, name in FILES.items():
        own = [(contest, timings) for contest, timings in found if contest.device == device]
        if not own:
            continue
        if asked.quick:
            print(tables.write(results(own)))
            continue
        file = HERE / name
        new = results(own, read_json(file) if file.exists() else None)
        write_json(file, new)
        if device == "cpu":
            draw(new, HERE / "results.svg")
        tables.keep(tables.MARKS[device], tables.write(new))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
