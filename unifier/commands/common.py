"""Arguments and functions that several commands share."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from unifier.files import printable

if TYPE_CHECKING:
    from unifier.inference.model import Model

AddCommand = Callable[..., argparse.ArgumentParser]
"""The method `add_parser` of argparse, which creates the parser of a command."""


def add_experiment(command: argparse.ArgumentParser) -> None:
    """Add the argument FILE[:name]."""
    command.add_argument(
        "experiment",
        metavar="FILE[:name]",
        help="a Python file or an installed recipe, and the name of one of its experiments",
    )


def add_model(command: argparse.ArgumentParser) -> None:
    """Add the argument MODEL and the options of every command that computes with a trained model."""
    command.add_argument("model", metavar="MODEL", help="the folder of a run or of a model")
    command.add_argument("--task", metavar="NAME", help="the task of a model with several tasks")
    command.add_argument(
        "--device", choices=("cpu", "cuda", "mps"), help="the device (default: the accelerator if there is one)"
    )
    command.add_argument("--threads", type=int, metavar="N", help="the number of threads (default: one per core)")
    command.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "int8"),
        default="float32",
        help="the number type; int8 only stores the weights of linear layers as integers (default: float32)",
    )


def open_model(options: argparse.Namespace) -> "Model":
    """Load the model of a command, with the options of `add_model`."""
    import torch

    from unifier.inference.model import load
    from unifier_tokenizers import InputError

    if options.threads is not None:
        if options.threads < 1:
            raise InputError(f"threads={options.threads}: at least 1 is needed")
        torch.set_num_threads(options.threads)
    return load(options.model).to(options.device, options.dtype)


def add_inputs(command: argparse.ArgumentParser) -> None:
    """Add the arguments INPUT."""
    command.add_argument(
        "inputs", metavar="INPUT", nargs="+", help="a file, a folder, a table (.csv or .tsv), or - for standard input"
    )


def add_bad_inputs(command: argparse.ArgumentParser) -> None:
    """Add the option --bad-inputs."""
    command.add_argument(
        "--bad-inputs",
        choices=("stop", "skip"),
        default="stop",
        help="for inputs that cannot be read: stop, or skip and count them (default: stop)",
    )


def print_line(line: object = "") -> bool:
    """Print a line. Return False if the program that reads standard output, such as `head`, has ended."""
    try:
        print(printable(line) if sys.stdout.isatty() else line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Otherwise, Python prints an error at exit.
        return False
    return True


def write_utf8() -> None:
    """Write UTF-8 with line feeds to standard output, on every system."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse texts of the form key=value. A key may contain dots, as in trunk.dim=64."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")) or name in settings:
            from unifier_tokenizers import InputError

            twice = " because it is given twice" if name in settings else ""
            raise InputError(f"'{text}' is not valid{twice}: write each setting once as key=value, such as dim=128")
        settings[name] = value
    return settings
