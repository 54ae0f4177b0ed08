"""The commands report, runs and export, which read the folders of runs."""

import argparse
import sys
from pathlib import Path

from unifier.commands.common import AddCommand, print_line
from unifier.files import print_status


def add_report_and_runs(add: AddCommand) -> None:
    """Add the commands report, runs and export."""
    report = add("report", help="rewrite report.html of a run, a comparison or a folder of runs")
    report.add_argument(
        "folder", metavar="DIR", type=Path, help="the folder of a run or a comparison, or a folder of runs"
    )
    report.set_defaults(act=act_report)

    runs = add("runs", help="list the runs below a folder, or compare two runs")
    runs.add_argument("folders", metavar="DIR", nargs="*", type=Path, help="a folder (default: runs), or two runs")
    runs.set_defaults(act=act_runs)

    export = add("export", help="write a trained model into a new folder, which works anywhere")
    export.add_argument("model", metavar="RUN", help="the folder of a run or of a model")
    export.add_argument("folder", metavar="DIR", type=Path, help="the new folder")
    export.add_argument(
        "--format",
        choices=("folder", "torch", "onnx"),
        default="folder",
        help="a copy of the folder (default), or graphs that run without unifier",
    )
    export.add_argument("--task", metavar="NAME", help="the task of the graphs of a model with several tasks")
    export.set_defaults(act=act_export)


def act_report(options: argparse.Namespace) -> None:
    """Write report.html and print its path."""
    from unifier.report.page import report_on

    page, problems = report_on(options.folder)
    for problem in problems:
        print_status(f"warning: {problem}", sys.stderr)
    print_line(page)


def act_runs(options: argparse.Namespace) -> None:
    """Print one line per run below a folder, or one line per difference between two runs."""
    from unifier.console import print_run_differences, print_runs
    from unifier.report.list_runs import compare_runs, list_runs
    from unifier_tokenizers import InputError

    folders: list[Path] = options.folders or [Path("runs")]
    if len(folders) > 2:
        raise InputError(f"{len(folders)} folders are given: give one folder to list, or two runs to compare")
    if len(folders) == 2:
        print_run_differences(folders, compare_runs(*folders))
    else:
        print_runs(list_runs(folders[0]), folders[0])


def act_export(options: argparse.Namespace) -> None:
    """Write a trained model into a new folder, and print the path of the folder."""
    from unifier.models.export import export_model

    print_line(export_model(options.model, options.folder, options.format, task=options.task))
