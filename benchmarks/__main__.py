"""Run the benchmark cases and write the results, a figure and tables: `python -m benchmarks`."""

import argparse
import sys
from pathlib import Path

from benchmarks.cases.registry import CASES
from benchmarks.runner import tables
from benchmarks.runner.case import Case
from benchmarks.runner.device import is_available
from benchmarks.runner.figure import draw_figure
from benchmarks.runner.processes import CaseError, print_status, run_case
from benchmarks.runner.report import FILES, build_results
from benchmarks.runner.timing import Timing
from unifier.files import read_json, write_json

FOLDER = Path(__file__).parent


def main() -> int:
    """Run the cases named on the command line. Return 1 if a case failed, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Compare the speed of unifier and other libraries."
    )
    parser.add_argument(
        "case", nargs="*", help=f"one of {', '.join(CASES)} (default: every case that this machine can run)"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="number of timed rounds of each variant (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="run two rounds without compilation, and write no files")
    options = parser.parse_args()
    if unknown := sorted(set(options.case) - set(CASES)):
        parser.error(f"no case is called {', '.join(unknown)}: use one of {', '.join(CASES)}")
    names: list[str] = options.case or list(CASES)
    unavailable = [name for name in names if not is_available(CASES[name].device)]
    if unavailable:
        message = f"{', '.join(unavailable)}: needs an accelerator ({CASES[unavailable[0]].device}), which is missing"
        if options.case:
            parser.error(message)
        print_status(f"{message}; skipped")
    measured: list[tuple[Case, list[Timing]]] = []
    failed = False
    for case in (CASES[name] for name in names if name not in unavailable):
        rounds = 2 if options.quick else options.rounds
        try:
            measured.append((case, run_case(case, rounds, compiled=not options.quick)))
        except CaseError as error:  # A failed case must not stop cases that take hours.
            print_status(f"{error}; {case.name} has no new result")
            failed = True
    for device, file_name in FILES.items():
        on_device = [(case, timings) for case, timings in measured if case.device == device]
        if not on_device:
            continue
        if options.quick:
            print(tables.format_results(build_results(on_device)))
            continue
        path = FOLDER / file_name
        results = build_results(on_device, read_json(path) if path.exists() else None)
        write_json(path, results)
        if device == "cpu":
            draw_figure(results, FOLDER / "results.svg")
        tables.publish_section(tables.SECTIONS[device], tables.format_results(results))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
