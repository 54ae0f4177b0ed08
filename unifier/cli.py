"""The tables that are printed at the end of a run or a comparison.

The command line: list, show, run, sweep, report, translate."""

import argparse
import ast
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, final

from unifier.files import print_status

PLUGIN_KINDS = ("tokenizers", "heads", "sources")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 done, 2 wrong use or bad input, 1 otherwise."""
    parser = make_parser()
    # argparse takes no settings behind an option; what it leaves over are such, or a mistake.
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "settings") or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.settings += rest
    if not hasattr(options, "act"):
        parser.print_help()
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a console without a letter of ours ends nothing
    # Nothing heavy is imported before a command needs it: help and list start at once.
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn_in_a_line
            with _stopped_by_sigterm():
                return options.act(options) or 0
    except KeyboardInterrupt as error:
        print_status("interrupted", sys.stderr)
        _print_folder(error)
        return 1
    except ValueError as error:
        from unifier_tokenizers import InputError

        if not isinstance(error, InputError):
            raise
        print_status(f"unifier: {error}", sys.stderr)
        _print_folder(error)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not _tell():
            return 1
        from unifier.files import is_recoverable

        if not is_recoverable(error):
            raise
        print_status(f"unifier: {error.filename2 or error.filename or 'the disk'}: {error.strerror}", sys.stderr)
        _print_folder(error)
        return 2
    except BaseException as error:
        from unifier.training.result import DivergedError, Interrupted, RunFailed

        if isinstance(error, Interrupted):
            goes_on = any((error.folder / whole).exists() for whole in ("comparison.json", "checkpoints/last.ckpt"))
            hint = f"; to continue, run it again with --resume {error}" if goes_on else " before its first checkpoint"
            print_status(f"interrupted{hint}", sys.stderr)
            _tell(error.folder)
        elif isinstance(error, RunFailed):
            if isinstance(error.__cause__, DivergedError):
                print_status(f"unifier: {error.__cause__}", sys.stderr)
            else:
                traceback.print_exception(error.__cause__)
            _tell(error.result.folder)
        else:
            raise
        return 1


@contextmanager
def _stopped_by_sigterm() -> Generator[None]:
    """Within it SIGTERM, by which schedulers and containers stop a program, is what Ctrl-C is."""
    if threading.current_thread() is not threading.main_thread():  # no other hears signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(line: object = "") -> bool:
    """Print a line; returns whether standard output is read, as it is not after `head`, or Ctrl-C in a pipeline."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it ends
        return False
    return True


def _print_folder(error: BaseException) -> None:
    """Print the folder that a run left which ended so: the last of those in the error's notes, the outermost."""
    for folder in getattr(error, "__notes__", [])[-1:]:
        _tell(folder)


@final
class Parser(argparse.ArgumentParser):
    """One that says what is wrong in a line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = Parser(
        prog="unifier",
        description="Train one transformer on text, images and audio, and compare what sharing it gains or costs.",
        epilog="example: unifier run experiments/pictures.py data=fashion_mnist dim=128 --data ../data",
    )
    commands = parser.add_subparsers(metavar="COMMAND")

    listing = commands.add_parser("list", help="list experiments, tokenizers, heads and data sources")
    listing.add_argument("what", nargs="?", metavar="FILE | tokenizers | heads | sources", help="default: everything")
    listing.set_defaults(act=act_list)

    show = commands.add_parser("show", help="print tensor shapes at every stage and parameter counts; trains nothing")
    run = commands.add_parser("run", help="run an experiment or a comparison; prints its folder as the last line")
    for command in (show, run):
        command.add_argument("experiment", metavar="FILE[:name]", help="a Python file, and which of its experiments")
        # Without a default argparse says that they are required.
        command.add_argument(
            "settings",
            nargs="*",
            default=[],
            metavar="key=value",
            help="keyword arguments of the experiment's function, and seed=N",
        )
        command.add_argument("--data", metavar="DIR", help="the folder of data sets (default: $UNIFIER_DATA)")
    show.set_defaults(act=act_show)
    run.add_argument("--out", metavar="DIR", help="folder for the run's folder (default: runs)")
    run.add_argument(
        "--track",
        choices=("online", "offline", "off"),
        help="Weights & Biases (default: $WANDB_MODE, else online if an API key is found, else offline)",
    )
    run.add_argument("--tensorboard", action="store_true", help="write TensorBoard event files too")
    run.add_argument("--resume", metavar="RUN", help="resume the interrupted run or comparison in this folder")
    run.set_defaults(act=act_run)

    sweep = commands.add_parser("sweep", help="create a W&B sweep over settings, and print its agents' command")
    sweep.add_argument("experiment", metavar="FILE[:name]", help="a Python file, and which of its experiments")
    sweep.add_argument(
        "settings", nargs="*", default=[], metavar="key=v1,v2,...", help="values of settings, and seed=0,1,..."
    )
    sweep.add_argument("--metric", default="val/score", help="to be maximized (default: val/score, mean over tasks)")
    sweep.add_argument("--method", default="grid", help="grid, random or bayes (default: grid)")
    sweep.add_argument("--runs", type=int, metavar="N", help="maximum number of runs (required unless grid)")
    sweep.add_argument("--dry", action="store_true", help="print the configuration, create nothing")
    sweep.set_defaults(act=act_sweep)

    report = commands.add_parser("report", help="rewrite report.html of a run, a comparison or a folder of runs")
    report.add_argument("folder", metavar="DIR", type=Path, help="a run's or comparison's folder, or one above several")
    report.set_defaults(act=act_report)

    translate = commands.add_parser("translate", help="translate lines of text with a trained run")
    translate.add_argument("run", metavar="RUN", help="the folder of a run")
    translate.add_argument(
        "file", metavar="FILE", nargs="?", help="a text file, plain or gzipped (default: standard input)"
    )
    translate.add_argument(
        "--n-best", type=int, metavar="N", help="N rows a line, tab-separated: line number, score, text"
    )
    translate.add_argument("--beam", type=int, metavar="W", help="beam width; 1 is greedy (default: the run's)")
    translate.add_argument(
        "--length-penalty", type=float, metavar="A", help="divide scores by length ** A (default: the run's)"
    )
    translate.add_argument("--sample", action="store_true", help="sample texts instead of searching for the best")
    translate.add_argument("--temperature", type=float, metavar="T", help="with --sample: the softmax temperature")
    translate.add_argument("--top-k", type=int, metavar="K", help="with --sample: only the K most probable tokens")
    translate.add_argument("--top-p", type=float, metavar="P", help="with --sample: nucleus of probability P")
    translate.add_argument("--seed", type=int, help="with --sample: the random seed (default: 0)")
    translate.add_argument(
        "--long",
        choices=("translate", "refuse"),
        default="translate",
        help="lines longer than any in training: warn and translate, or stop (default: translate)",
    )
    translate.add_argument("--attention", metavar="OUT.html", help="write the attention weights to an HTML page")
    translate.add_argument(
        "--experiment", metavar="FILE[:name]", help="the experiment's file, if it has moved since the run"
    )
    translate.set_defaults(act=act_translate)
    return parser


def act_list(options: argparse.Namespace) -> None:
    """Print names, one a line."""
    if options.what in PLUGIN_KINDS:
        from unifier.plugins import load_plugins

        for name, plugin in load_plugins(options.what).items():
            print(f"{name:16} {(plugin.__doc__ or '').strip().partition(chr(10))[0]}")
    elif options.what:
        from unifier.config import list_experiments
        from unifier_tokenizers import InputError

        if not Path(options.what).exists():
            raise InputError(
                f"{options.what}: no such file; list a file with experiments, or {', '.join(PLUGIN_KINDS)}"
            )
        for name, function in list_experiments(options.what).items():
            print(f"{options.what}:{name:20} {(function.__doc__ or '').strip().partition(chr(10))[0]}")
    else:
        from unifier.plugins import plugin_names

        for kind in PLUGIN_KINDS:
            print(f"{kind}: {', '.join(plugin_names(kind))}")
        files = sorted(Path("experiments").glob("*.py"))
        if files:
            print("experiments:")
        for file in files:
            print(f"  {file!s:34} {_first_line(file)}")


def _first_line(file: Path) -> str:
    try:
        return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    except (SyntaxError, UnicodeDecodeError):
        return "(not a Python file)"


def _warn_in_a_line(message: Warning | str, *_: Any) -> None:
    print_status(f"warning: {message}", sys.stderr)


def act_show(options: argparse.Namespace) -> None:
    """Print shapes and counts."""
    from unifier.data.source import use_data_folder
    from unifier.inference.inspect import show

    settings = parse_settings(options.settings)
    with use_data_folder(options.data):
        show(options.experiment, settings, seed=settings.pop("seed", 0))


def act_run(options: argparse.Namespace) -> int:
    """Run, then print the scores and the folder; returns 1 where a run of a comparison failed."""
    from unifier.config import load_experiment
    from unifier.data.source import use_data_folder
    from unifier.launch import run_in_folder

    settings = parse_settings(options.settings)
    with use_data_folder(options.data):
        results, folder = run_in_folder(
            load_experiment(options.experiment),
            settings,
            seed=settings.pop("seed", None),
            out=options.out,
            track=options.track,
            tensorboard=options.tensorboard,
            resume=options.resume,
        )
    if (folder / "comparison.json").exists():
        from unifier.console import print_comparison

        print_comparison(folder)
    else:
        from unifier.console import print_table

        print_table(results)
    if (folder / "report.html").exists():
        print(f"report: {folder / 'report.html'}")
    print(folder)
    return int(any(result.status != "finished" for result in results))


def act_sweep(options: argparse.Namespace) -> None:
    """Make a sweep and print its id and its agents' command, or its configuration."""
    from unifier.trials.wandb_sweep import start_sweep, sweep_configuration

    configuration = sweep_configuration(
        options.experiment,
        parse_settings(options.settings),
        metric=options.metric,
        method=options.method,
        runs=options.runs,
    )
    if options.dry:
        print(json.dumps(configuration, indent=2))
        return
    name = start_sweep(configuration)
    print(f"created sweep {name}; run this on each machine that has {options.experiment} (data: set $UNIFIER_DATA):")
    print(f"wandb agent --project {configuration['project']} {name}")


def act_report(options: argparse.Namespace) -> None:
    """Write report.html."""
    from unifier.report.page import report_on

    page, problems = report_on(options.folder)
    for problem in problems:
        print_status(f"warning: {problem}", sys.stderr)
    print(page)


def act_translate(options: argparse.Namespace) -> None:
    """Write a line for each line."""
    from contextlib import nullcontext
    from dataclasses import fields

    from unifier.inference.translate import AlignmentPage, DecodingOptions, open_input, translate
    from unifier.inference.translator import Translator

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # as what is read
    decoding = DecodingOptions(**{field.name: getattr(options, field.name) for field in fields(DecodingOptions)})
    translator = Translator(options.run, options.experiment, align=bool(options.attention))
    page = AlignmentPage(options.attention) if options.attention else nullcontext()
    with open_input(options.file) as file, page as alignments:
        translate(translator, file, options.file or "standard input", sys.stdout, decoding, alignments)


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """key=value texts to a mapping."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in settings:
            from unifier_tokenizers import InputError

            twice = "; it is given twice" if name in settings else ""
            raise InputError(f"'{text}' is no setting{twice}: write key=value, such as dim=128")
        settings[name] = value
    return settings


def run_this_file(file: str) -> NoReturn:
    """What an experiment's file does when it is run by itself: `unifier run` on it, with the same arguments."""
    sys.exit(main(["run", file, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
