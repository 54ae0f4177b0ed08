"""`python -m benchmarks`: race the contests, then write results.json, results.svg and the tables of README.md."""

import argparse
import sys
from pathlib import Path

from benchmarks.contests.by_name import CONTESTS
from benchmarks.racing import tables
from benchmarks.racing.figure import draw
from benchmarks.racing.race import FailedError, race
from benchmarks.racing.report import results
from unifier.study.files import read_json, write_json

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Time unifier beside its peers.")
    parser.add_argument("contest", nargs="*", help=f"of {', '.join(CONTESTS)}; all of them without any")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each contestant")
    parser.add_argument("--quick", action="store_true", help="two rounds, nothing compiled, nothing written")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.contest) - set(CONTESTS)):
        parser.error(f"no contest is called {', '.join(unknown)}: there are {', '.join(CONTESTS)}")
    try:
        found = [
            (CONTESTS[name], race(CONTESTS[name], 2 if asked.quick else asked.rounds, compiled=not asked.quick))
            for name in asked.contest or CONTESTS
        ]
    except FailedError as error:
        print(error, file=sys.stderr)
        return 1
    if asked.quick:
        print(tables.write(results(found)))
        return 0
    file = HERE / "results.json"
    new = results(found, read_json(file) if file.exists() else None)
    write_json(file, new)
    draw(new, HERE / "results.svg")
    tables.keep("results", tables.write(new))
    return 0


if __name__ == "__main__":
    sys.exit(main())
