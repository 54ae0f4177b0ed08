"""The command line: list, show, run, sweep, report, translate."""

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
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, final

from unifier.files import print_status

PLUGIN_KINDS = ("tokenizers", "heads", "sources")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0 done, 2 wrong use or bad input, 1 otherwise."""
    parser = make_parser()
    # argparse accepts no positional arguments after an option, so settings there are left over.
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
            stream.reconfigure(errors="backslashreplace")  # A terminal with few letters must not end a run.
    # Each command imports what it needs, so that help and list start fast.
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            with _interrupt_on_sigterm():
                return options.act(options) or 0
    except BaseException as error:
        return _report_error(error)


def _report_error(error: BaseException) -> int:
    """Print an error and the folder that the run left; return the exit status. Errors of our own code are raised."""
    from unifier.files import is_recoverable
    from unifier_tokenizers.errors import InputError

    if isinstance(error, InputError):
        print_status(f"unifier: {error}", sys.stderr)
        _print_folder(error)
        return 2
    if isinstance(error, KeyboardInterrupt):
        print_status("interrupted", sys.stderr)
        _print_folder(error)
        return 1
    if isinstance(error, BrokenPipeError) and not _print_line():
        return 1
    if isinstance(error, OSError) and is_recoverable(error):
        print_status(f"unifier: {error.filename2 or error.filename or 'the disk'}: {error.strerror}", sys.stderr)
        _print_folder(error)
        return 2
    if isinstance(error, (SystemExit, GeneratorExit)):
        raise error
    from unifier.training.result import DivergedError, Interrupted, RunFailed

    if isinstance(error, Interrupted):
        resumable = any((error.folder / name).exists() for name in ("comparison.json", "checkpoints/last.ckpt"))
        hint = f"; to continue, run it again with --resume {error}" if resumable else " before its first checkpoint"
        print_status(f"interrupted{hint}", sys.stderr)
        _print_line(error.folder)
        return 1
    if isinstance(error, RunFailed):
        if isinstance(error.__cause__, DivergedError):
            print_status(f"unifier: {error.__cause__}", sys.stderr)
        else:
            traceback.print_exception(error.__cause__)
        _print_line(error.result.folder)
        return 1
    raise error


@contextmanager
def _interrupt_on_sigterm() -> Generator[None]:
    """Treat SIGTERM, by which schedulers and containers stop a program, as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # Only the main thread may handle signals.
        yield
        return
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _print_line(line: object = "") -> bool:
    """Print a line; return False if nothing reads standard output, as after `head`."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would report the pipe at its end.
        return False
    return True


def _print_folder(error: BaseException) -> None:
    """Print the folder in an error's last note, which is that of the outermost run or comparison."""
    for folder in getattr(error, "__notes__", [])[-1:]:
        _print_line(folder)


def _print_warning(message: Warning | str, *_: Any) -> None:
    print_status(f"warning: {message}", sys.stderr)


@final
class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


@final
class HelpAction(argparse.Action):
    """Option that prints the command's help, and after a FILE lets the command add the file's settings."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        """Print the help and exit, or store its text as `options.help` if a FILE is given."""
        if namespace.experiment is None:
            parser.print_help()
            parser.exit()
        namespace.help = parser.format_help()


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the commands and their options."""
    parser = Parser(
        prog="unifier",
        description="Train one transformer on text, images and audio, and compare what sharing it gains or costs.",
        epilog="example: unifier run pictures data=fashion_mnist dim=128 --data ../data",
    )
    parser.add_argument("--version", action="version", version=f"unifier {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND")

    listing = commands.add_parser("list", help="list recipes, tokenizers, heads and data sources")
    listing.add_argument("what", nargs="?", metavar="FILE | tokenizers | heads | sources", help="default: everything")
    listing.set_defaults(act=act_list)

    show = commands.add_parser(
        "show", add_help=False, help="print tensor shapes, parameters, settings and an estimated time; trains nothing"
    )
    run = commands.add_parser(
        "run", add_help=False, help="run an experiment or a comparison; prints its folder as the last line"
    )
    for command in (show, run):
        command.add_argument(
            "-h", "--help", nargs=0, action=HelpAction, help="print this help, and after FILE the settings of FILE"
        )
        _add_experiment(command)
        # Without a default, argparse would list the settings among the required arguments.
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
    _add_experiment(sweep)
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

    _add_translate(commands.add_parser("translate", help="translate lines of text with a trained run"))
    return parser


def _version() -> str:
    try:
        return version("unifier-torch")
    except PackageNotFoundError:
        return "(not installed)"


def _add_experiment(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "experiment", metavar="FILE[:name]", help="a Python file or an installed recipe, and which of its experiments"
    )


def _add_translate(translate: argparse.ArgumentParser) -> None:
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


def act_list(options: argparse.Namespace) -> None:
    """Print the names of plug-ins, recipes or a file's experiments, one per line."""
    from unifier.plugins import list_recipes, load_plugins, plugin_names

    if options.what in PLUGIN_KINDS:
        for name, plugin in load_plugins(options.what).items():
            print(f"{name:16} {_first_line(plugin.__doc__)}")
        return
    recipes = list_recipes()
    if options.what:
        from unifier.config import list_experiments
        from unifier_tokenizers import InputError

        if not Path(options.what).exists() and options.what not in recipes:
            raise InputError(
                f"{options.what}: no such file or installed recipe; list a file with experiments, "
                f"{', '.join(recipes)}, or {', '.join(PLUGIN_KINDS)}"
            )
        for name, function in list_experiments(options.what).items():
            print(f"{options.what}:{name:20} {_first_line(function.__doc__)}")
        return
    for kind in PLUGIN_KINDS:
        print(f"{kind}: {', '.join(plugin_names(kind))}")
    local = [path for path in sorted(Path("experiments").glob("*.py")) if path.resolve() not in recipes.values()]
    if recipes or local:
        print("experiments:")
    for name, path in [*recipes.items(), *((str(path), path) for path in local)]:
        print(f"  {name:34} {_describe_file(path)}")


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]


def _describe_file(path: Path) -> str:
    """Return the first line of a file's docstring without executing the file."""
    try:
        return _first_line(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
    except (SyntaxError, UnicodeDecodeError):
        return "(not a Python file)"


def act_show(options: argparse.Namespace) -> None:
    """Print shapes, parameters, the estimated time and the settings; or the help with the settings."""
    from unifier.config import load_experiment
    from unifier.console import print_settings
    from unifier.data.source import use_data_folder

    function = load_experiment(options.experiment)
    if options.help:
        print(options.help)
        print_settings(function)
        return
    from unifier.inference.inspect import show

    settings = parse_settings(options.settings)
    seed = settings.pop("seed", 0)
    with use_data_folder(options.data):
        show(options.experiment, settings, seed=seed)
    print_settings(function, settings)


def act_run(options: argparse.Namespace) -> int:
    """Run, then print the scores and the folder; return 1 if a run of a comparison failed."""
    from unifier.config import load_experiment
    from unifier.data.source import use_data_folder
    from unifier.launch import run_in_folder

    if options.help:
        from unifier.console import print_settings

        print(options.help)
        print_settings(load_experiment(options.experiment))
        return 0
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
    from unifier.console import print_comparison, print_results

    if (folder / "comparison.json").exists():
        print_comparison(folder)
    else:
        print_results(results)
    if (folder / "report.html").exists():
        print(f"report: {folder / 'report.html'}")
    print(folder)
    return int(any(result.status != "finished" for result in results))


def act_sweep(options: argparse.Namespace) -> None:
    """Create a sweep and print its id and its agents' command; or print the configuration."""
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
    sweep_id = start_sweep(configuration)
    print(
        f"created sweep {sweep_id}; run this on each machine that has {options.experiment} (data: set $UNIFIER_DATA):"
    )
    print(f"wandb agent --project {configuration['project']} {sweep_id}")


def act_report(options: argparse.Namespace) -> None:
    """Write report.html and print its path."""
    from unifier.report.page import report_on

    page, problems = report_on(options.folder)
    for problem in problems:
        print_status(f"warning: {problem}", sys.stderr)
    print(page)


def act_translate(options: argparse.Namespace) -> None:
    """Translate a file or standard input line by line."""
    from contextlib import nullcontext
    from dataclasses import fields

    from unifier.inference.translate import AlignmentPage, DecodingOptions, open_input, translate
    from unifier.inference.translator import Translator

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # The input is UTF-8 too.
    decoding = DecodingOptions(**{field.name: getattr(options, field.name) for field in fields(DecodingOptions)})
    translator = Translator(options.run, options.experiment, align=bool(options.attention))
    page = AlignmentPage(options.attention) if options.attention else nullcontext()
    with open_input(options.file) as file, page as alignments:
        translate(translator, file, options.file or "standard input", sys.stdout, decoding, alignments)


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse texts of the form key=value. A key may have dots, as in trunk.dim=64."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")) or name in settings:
            from unifier_tokenizers import InputError

            twice = "; it is given twice" if name in settings else ""
            raise InputError(f"'{text}' is no setting{twice}: write key=value, such as dim=128")
        settings[name] = value
    return settings


def run_this_file(file: str) -> NoReturn:
    """Run an experiment's file as `unifier run FILE` does, with the arguments of the program."""
    sys.exit(main(["run", file, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
