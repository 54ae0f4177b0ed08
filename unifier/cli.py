"""The command line: it parses the arguments, runs a command, and reports its error."""

import argparse
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
from types import FrameType
from typing import NoReturn, final

from unifier.commands.common import print_line
from unifier.commands.embed import add_embed
from unifier.commands.encoded_data import add_pack_and_clean
from unifier.commands.evaluate import add_evaluate
from unifier.commands.experiment import add_show_and_run
from unifier.commands.generate import add_generate
from unifier.commands.heads import add_heads
from unifier.commands.listing import add_list
from unifier.commands.neighbors import add_neighbors
from unifier.commands.new import add_new
from unifier.commands.predict import add_predict
from unifier.commands.runs import add_report_and_runs
from unifier.commands.serve import add_serve
from unifier.commands.sweep import add_sweep
from unifier.commands.translate import add_translate
from unifier.distributed import PeerError, is_ending, is_helper, is_main, main_has_reported, world
from unifier.files import print_status, print_warning

COMMANDS = (
    *(add_list, add_show_and_run, add_sweep, add_report_and_runs, add_pack_and_clean, add_new),
    *(add_predict, add_evaluate, add_serve, add_embed, add_generate, add_neighbors, add_heads, add_translate),
)
"""Functions that add the commands, in the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit status: 0 for success, 2 for wrong use or bad input, 1 otherwise."""
    try:
        return _run_command(arguments)
    except BaseException as error:
        return _report_error(error)


def _run_command(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    # argparse accepts no positional arguments after an option. Settings after an option are therefore in `rest`.
    given = sys.argv[1:] if arguments is None else arguments
    # Without an equals sign, argparse would read the text after --ray as its address.
    options, rest = parser.parse_known_args(["--ray=local" if text == "--ray" else text for text in given])
    if rest and (not hasattr(options, "settings") or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.settings += rest
    if not hasattr(options, "act"):
        parser.print_help()
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # A terminal without Unicode must not stop a run.
    # Each command imports only the modules that it needs, so `unifier list` and `--help` start fast.
    if is_helper(os.environ):  # Only rank 0 prints results.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    with warnings.catch_warnings(), _interrupt_on_sigterm():
        warnings.showwarning = print_warning
        if options.command != "list":
            from unifier.limits import check_limits

            check_limits(options.command)
        if options.command != "run" and os.environ.get("WORLD_SIZE", "1") != "1":
            from unifier_tokenizers import InputError

            raise InputError(f"WORLD_SIZE={os.environ['WORLD_SIZE']}: only `unifier run` uses several processes")
        return options.act(options) or 0


def _report_error(error: BaseException) -> int:
    """Print an error and the folder of the run, and return the exit status. An unexpected error is raised again.

    Rank 0 reports the errors of all processes. Another process prints its error only if rank 0 cannot.
    """
    from unifier.limits import describe_limit
    from unifier_tokenizers.errors import InputError, one_line

    if not is_main() and isinstance(error, InputError | PeerError | KeyboardInterrupt | OSError):
        if not main_has_reported():
            ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
            rank = next((rank for rank in ranks if rank is not None), world().rank)
            print(f"unifier: process {rank}: {one_line(error)}", file=sys.stderr)
        return 2

    if isinstance(error, InputError | PeerError):
        print_status(f"unifier: {error}", sys.stderr)
        _print_folder(error)
        return 2
    if isinstance(error, KeyboardInterrupt):
        print_status("interrupted", sys.stderr)
        _print_folder(error)
        return 1
    if isinstance(error, BrokenPipeError) and not print_line():
        return 1
    if line := describe_limit(error):
        print_status(f"unifier: {line}", sys.stderr)
        _print_folder(error)
        return 2
    if isinstance(error, (SystemExit, GeneratorExit)):
        raise error
    from unifier.training.result import DivergedError, Interrupted, RunFailed

    if isinstance(error, Interrupted):
        print_status(f"interrupted; to continue, run the command again with --resume {error}", sys.stderr)
        print_line(error.folder)
        return 1
    if isinstance(error, RunFailed):
        line = describe_limit(error.__cause__)
        if isinstance(error.__cause__, DivergedError) or line:
            print_status(f"unifier: {line or error.__cause__}", sys.stderr)
        else:
            traceback.print_exception(error.__cause__)
        print_line(error.result.folder)
        return 2 if line else 1
    raise error


@contextmanager
def _interrupt_on_sigterm() -> Generator[None]:
    """Handle SIGTERM and SIGUSR1 like Ctrl-C, because schedulers and containers stop programs with these signals.

    SLURM sends SIGUSR1 before the end of a job with `--signal=USR1`. During training, the handler of SIGTERM is the
    callback that stops after the current step. After the failure of one of several processes, torchrun sends SIGTERM
    to the others. A process that has noticed the failure ignores both signals, because it reports the failure and ends.
    """
    if threading.current_thread() is not threading.main_thread():  # Only the main thread may handle signals.
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not is_ending():
            signal.default_int_handler(number, frame)

    handlers = {
        signal.SIGTERM: interrupt,
        signal.SIGUSR1: lambda *_: signal.raise_signal(signal.SIGTERM),
    }
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if is_ending() else handler)


def _print_folder(error: BaseException) -> None:
    """Print the last note of an error, which contains the folder of the outermost run or comparison."""
    for folder in getattr(error, "__notes__", [])[-1:]:
        print_line(folder)


@final
class Parser(argparse.ArgumentParser):
    """Argument parser that prints an error in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        print_status(f"{self.prog}: {message}; see {self.prog} --help", sys.stderr)
        self.exit(2)


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the commands and their options."""
    parser = Parser(
        prog="unifier",
        description="Train one transformer on text, images and audio, and compare what sharing it gains or costs.",
        epilog="example: unifier run pictures data=fashion_mnist dim=128 --data ../data",
    )
    parser.add_argument("--version", action="version", version=f"unifier {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    for add_command in COMMANDS:
        add_command(commands.add_parser)
    return parser


def _version() -> str:
    try:
        return version("unifier-torch")
    except PackageNotFoundError:
        return "(not installed)"


def run_this_file(file: str) -> NoReturn:
    """Run an experiment's file like the command `unifier run FILE`, with the arguments of the program."""
    sys.exit(main(["run", file, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
