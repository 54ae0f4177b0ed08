"""The command line: list, show, run, sweep, report, predict, evaluate, serve, translate."""

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
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, final

from unifier.distributed import (
    PeerError,
    failing_together,
    is_ending,
    is_helper,
    is_launched,
    is_main,
    main_has_reported,
    world,
)
from unifier.files import check_output_folder, print_status, print_warning, printable

if TYPE_CHECKING:
    from unifier.inference.model import Model

PLUGIN_KINDS = ("tokenizers", "heads", "sources")


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
        if options.act is not act_list:
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
    if isinstance(error, BrokenPipeError) and not _print_line():
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
        _print_line(error.folder)
        return 1
    if isinstance(error, RunFailed):
        line = describe_limit(error.__cause__)
        if isinstance(error.__cause__, DivergedError) or line:
            print_status(f"unifier: {line or error.__cause__}", sys.stderr)
        else:
            traceback.print_exception(error.__cause__)
        _print_line(error.result.folder)
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


def _print_line(line: object = "") -> bool:
    """Print a line. Return False if the program that reads standard output, such as `head`, has ended."""
    try:
        print(printable(line) if sys.stdout.isatty() else line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Otherwise, Python prints an error at exit.
        return False
    return True


def _print_folder(error: BaseException) -> None:
    """Print the last note of an error, which contains the folder of the outermost run or comparison."""
    for folder in getattr(error, "__notes__", [])[-1:]:
        _print_line(folder)


@final
class Parser(argparse.ArgumentParser):
    """Argument parser that prints an error in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        print_status(f"{self.prog}: {message}; see {self.prog} --help", sys.stderr)
        self.exit(2)


@final
class HelpAction(argparse.Action):
    """Option that prints the command's help. If a FILE is given, the help includes the settings of the file."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        """Print the help and exit. If a FILE is given, only store the help text as `options.help`."""
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
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")

    listing = commands.add_parser("list", help="list recipes, tokenizers, heads and data sources")
    listing.add_argument("what", nargs="?", metavar="FILE | tokenizers | heads | sources", help="default: everything")
    listing.set_defaults(act=act_list)

    show = commands.add_parser(
        "show", add_help=False, help="print tensor shapes, parameters, settings and an estimated time, without training"
    )
    run = commands.add_parser(
        "run", add_help=False, help="run an experiment or a comparison, and print its folder as the last line"
    )
    for command in (show, run):
        command.add_argument(
            "-h",
            "--help",
            nargs=0,
            action=HelpAction,
            help="print this help; after FILE, also print the settings of FILE",
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
    run.add_argument("--out", metavar="DIR", help="the folder in which the run's folder is created (default: runs)")
    run.add_argument(
        "--track",
        choices=("online", "offline", "off", "mlflow", "trackio"),
        help="mode of Weights & Biases (default: $WANDB_MODE, else online if an API key is found, else offline), or "
        "another tracker",
    )
    run.add_argument("--tensorboard", action="store_true", help="also write TensorBoard event files")
    run.add_argument("--name", metavar="NAME", help="the name of the run's folder (default: a unique name)")
    run.add_argument(
        "--resume",
        metavar="RUN",
        help="resume the interrupted run or comparison in this folder; auto resumes the folder with the given --name",
    )
    run.add_argument("--devices", metavar="N", help="the number of devices that train together, or auto (default: 1)")
    run.add_argument("--nodes", type=int, metavar="M", help="the number of machines that train together (default: 1)")
    run.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="run the trials of a comparison at the same time with Ray: --ray on this machine, --ray=HOST:PORT on a "
        "cluster, or --ray=auto on a running Ray",
    )
    run.add_argument("--trial-cpus", type=int, metavar="N", help="with --ray: the CPUs and threads of a trial (1)")
    run.add_argument(
        "--trial-gpus",
        type=float,
        metavar="N",
        help="with --ray: the GPUs of a trial, such as 0.5 (default: 1 or none)",
    )
    run.set_defaults(act=act_run)

    sweep = commands.add_parser("sweep", help="create a W&B sweep over settings, and print the command for its agents")
    _add_experiment(sweep)
    sweep.add_argument(
        "settings", nargs="*", default=[], metavar="key=v1,v2,...", help="the values of each setting, and seed=0,1,..."
    )
    sweep.add_argument(
        "--metric", default="val/score", help="the metric to optimize (default: val/score, the mean over tasks)"
    )
    sweep.add_argument("--method", default="grid", help="grid, random or bayes (default: grid)")
    sweep.add_argument("--runs", type=int, metavar="N", help="the maximum number of runs (optional only for grid)")
    sweep.add_argument("--dry", action="store_true", help="print the configuration, but do not create the sweep")
    sweep.set_defaults(act=act_sweep)

    report = commands.add_parser("report", help="rewrite report.html of a run, a comparison or a folder of runs")
    report.add_argument(
        "folder", metavar="DIR", type=Path, help="the folder of a run or a comparison, or a folder of runs"
    )
    report.set_defaults(act=act_report)

    runs = commands.add_parser("runs", help="list the runs below a folder, or compare two runs")
    runs.add_argument("folders", metavar="DIR", nargs="*", type=Path, help="a folder (default: runs), or two runs")
    runs.set_defaults(act=act_runs)

    pack = commands.add_parser("pack", help="encode the data of an experiment into shards, for data=packed:DIR")
    _add_experiment(pack)
    pack.add_argument("folder", metavar="DIR", help="an empty folder, or a URL that fsspec can write")
    pack.add_argument(
        "settings", nargs="*", default=[], metavar="key=value", help="keyword arguments of the experiment's function"
    )
    pack.add_argument("--task", metavar="NAME", help="the task of an experiment with several tasks")
    pack.add_argument("--shard-mb", type=float, default=128.0, metavar="MB", help="the size of a shard (default: 128)")
    pack.add_argument(
        "--window", type=int, default=8, metavar="N", help="the shards among which training shuffles (default: 8)"
    )
    pack.add_argument("--data", metavar="DIR", help="the folder of data sets (default: $UNIFIER_DATA)")
    pack.set_defaults(act=act_pack)

    clean = commands.add_parser("clean", help="print the size of the cache of encoded data, or clear the cache")
    clean.add_argument("--yes", action="store_true", help="delete all entries of the cache")
    clean.set_defaults(act=act_clean)

    new = commands.add_parser("new", help="write a small package with a tokenizer, a head or a source of your own")
    new.add_argument("kind", choices=("tokenizer", "head", "source"), help="the kind of part")
    new.add_argument("name", metavar="NAME", help="the name of the package, such as my_series")
    new.set_defaults(act=act_new)

    export = commands.add_parser("export", help="write a trained model into a new folder, which works anywhere")
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

    _add_predict(commands.add_parser("predict", help="predict labels or texts for files, folders, tables and lines"))
    _add_evaluate(commands.add_parser("evaluate", help="score a trained model on new labeled data"))
    _add_serve(commands.add_parser("serve", help="answer requests over HTTP, with a page for people"))
    _add_embed(commands.add_parser("embed", help="write one vector per input: the mean output of a layer"))
    _add_generate(commands.add_parser("generate", help="continue a text with a language model"))
    _add_neighbors(commands.add_parser("neighbors", help="print the nearest words in a model's table of words"))
    _add_heads(commands.add_parser("heads", help="score a trained run without each of its attention heads"))
    _add_translate(commands.add_parser("translate", help="translate lines of text with a trained run"))
    return parser


def _version() -> str:
    try:
        return version("unifier-torch")
    except PackageNotFoundError:
        return "(not installed)"


def _add_experiment(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "experiment",
        metavar="FILE[:name]",
        help="a Python file or an installed recipe, and the name of one of its experiments",
    )


def _add_model(command: argparse.ArgumentParser) -> None:
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


def _open_model(options: argparse.Namespace) -> "Model":
    """Load the model of a command, with the options of `_add_model`."""
    import torch

    from unifier.inference.model import load
    from unifier_tokenizers import InputError

    if options.threads is not None:
        if options.threads < 1:
            raise InputError(f"threads={options.threads}: at least 1 is needed")
        torch.set_num_threads(options.threads)
    return load(options.model).to(options.device, options.dtype)


def _add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "inputs", metavar="INPUT", nargs="+", help="a file, a folder, a table (.csv or .tsv), or - for standard input"
    )


def _add_bad_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--bad-inputs",
        choices=("stop", "skip"),
        default="stop",
        help="for inputs that cannot be read: stop, or skip and count them (default: stop)",
    )


def _add_predict(predict: argparse.ArgumentParser) -> None:
    _add_model(predict)
    _add_inputs(predict)
    predict.add_argument("--format", choices=("csv", "jsonl"), default="csv", help="the output's format (default: csv)")
    predict.add_argument("--out", metavar="FILE", type=Path, help="the output file (default: standard output)")
    predict.add_argument("--top-k", type=int, metavar="K", help="write the K most probable labels of each input")
    predict.add_argument(
        "--attention", metavar="DIR", type=Path, help="write a figure per input that shows where the model looked"
    )
    predict.add_argument(
        "--masks", metavar="DIR", type=Path, help="write a mask (PNG) per picture, if the model gives classes to pixels"
    )
    predict.add_argument(
        "--sounds",
        metavar="DIR",
        type=Path,
        help="the folder for the sound (WAV) of each text, if the model speaks (default: generated)",
    )
    _add_bad_inputs(predict)
    predict.set_defaults(act=act_predict)


def _add_evaluate(evaluate: argparse.ArgumentParser) -> None:
    _add_model(evaluate)
    evaluate.add_argument(
        "data",
        metavar="DATA",
        help="a folder with one folder per class, a table with a column label, pairs of texts (a.tsv or a.en,a.de), "
        "a file with a word and its label per line, or a folder with the folders images and masks",
    )
    evaluate.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("evaluation"), help="the output folder (default: evaluation)"
    )
    evaluate.add_argument("--languages", metavar="A,B", help="the two languages of a translation memory (.tmx)")
    _add_bad_inputs(evaluate)
    evaluate.set_defaults(act=act_evaluate)


def _add_serve(serve: argparse.ArgumentParser) -> None:
    _add_model(serve)
    serve.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, only this machine)"
    )
    serve.add_argument("--port", type=int, default=8000, help="the port; 0 means any free port (default: 8000)")
    serve.add_argument("--max-bytes", type=int, metavar="N", help="the maximum size of a request (default: 16 MiB)")
    serve.add_argument("--max-seconds", type=float, metavar="S", help="the maximum time of a request (default: 60)")
    serve.add_argument("--max-requests", type=int, metavar="N", help="the maximum number at a time (default: 64)")
    serve.set_defaults(act=act_serve)


def _add_embed(embed: argparse.ArgumentParser) -> None:
    _add_model(embed)
    _add_inputs(embed)
    embed.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        required=True,
        help="a .npy file, with names in a .names.csv file, or .parquet",
    )
    embed.add_argument("--layer", metavar="NAME", help="the layer, such as blocks.0 (default: the last layer)")
    _add_bad_inputs(embed)
    embed.set_defaults(act=act_embed)


def _add_generate(generate: argparse.ArgumentParser) -> None:
    _add_model(generate)
    generate.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        default="",
        help="the start of the text, or the path of a picture, a MIDI file or a sound (default: none)",
    )
    generate.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="the number of new tokens of a text (at most 500), steps of a tune (96) or samples of a sound (4,000)",
    )
    generate.add_argument("--temperature", type=float, metavar="T", default=1.0, help="the softmax temperature (1)")
    generate.add_argument("--top-k", type=int, metavar="K", help="draw only from the K most probable tokens")
    generate.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        default=1.0,
        help="draw only from the most probable tokens, up to a total probability of P",
    )
    generate.add_argument("--seed", type=int, default=0, help="the random seed; equal seeds give equal texts (0)")
    generate.add_argument(
        "--out", metavar="DIR", type=Path, help="the folder for pictures, tunes and sounds (default: generated)"
    )
    generate.add_argument("--count", type=int, metavar="N", help="the number of pictures, tunes or sounds (1)")
    generate.add_argument(
        "--keep", type=float, metavar="SHARE", help="the upper share of a given picture that is kept (0.5)"
    )
    generate.set_defaults(act=act_generate)


def _add_neighbors(neighbors: argparse.ArgumentParser) -> None:
    _add_model(neighbors)
    neighbors.add_argument(
        "words",
        metavar="WORD",
        nargs="+",
        help="a word, or an analogy such as king - man + woman; several are possible",
    )
    neighbors.add_argument("--count", type=int, metavar="N", default=10, help="the number of nearest words (10)")
    neighbors.add_argument(
        "--format", choices=("csv", "jsonl"), default="csv", help="the output's format (default: csv)"
    )
    neighbors.set_defaults(act=act_neighbors)


def _add_heads(heads: argparse.ArgumentParser) -> None:
    _add_model(heads)
    heads.add_argument(
        "--examples", type=int, metavar="N", default=200, help="the number of validation examples (default: 200)"
    )
    heads.add_argument(
        "--head",
        action="append",
        metavar="HEAD",
        default=[],
        help='leave out only this head, such as "cross 2.3" (may be repeated)',
    )
    heads.add_argument("--out", metavar="FILE", type=Path, help="also write the table to this file (.csv)")
    heads.set_defaults(act=act_heads)


def _add_translate(translate: argparse.ArgumentParser) -> None:
    _add_model(translate)
    translate.add_argument(
        "file", metavar="FILE", nargs="?", help="a text file, plain or gzipped, or - for standard input (the default)"
    )
    translate.add_argument(
        "--n-best", type=int, metavar="N", help="print N rows per line: line number, score and text, separated by tabs"
    )
    translate.add_argument(
        "--beam", type=int, metavar="W", help="the beam width; 1 means greedy (default: the run's value)"
    )
    translate.add_argument(
        "--length-penalty", type=float, metavar="A", help="divide scores by length ** A (default: the run's value)"
    )
    translate.add_argument("--sample", action="store_true", help="sample random translations, without beam search")
    translate.add_argument("--temperature", type=float, metavar="T", help="with --sample: the softmax temperature")
    translate.add_argument(
        "--top-k", type=int, metavar="K", help="with --sample: draw only from the K most probable tokens"
    )
    translate.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="with --sample: draw only from the most probable tokens, up to a total probability of P",
    )
    translate.add_argument("--seed", type=int, help="with --sample: the random seed (default: 0)")
    translate.add_argument(
        "--long",
        choices=("translate", "refuse"),
        default="translate",
        help="for lines longer than all training texts: translate with a warning, or stop (default: translate)",
    )
    translate.add_argument(
        "--candidates", type=int, metavar="K", help="print JSON Lines with the K most likely tokens of each step"
    )
    translate.add_argument("--to", metavar="LANGUAGE", help="the language to write, for a model of several languages")
    translate.add_argument("--attention", metavar="OUT.html", help="write the attention weights to an HTML page")
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
                f"{options.what}: no such file or installed recipe; give a file with experiments, or one of "
                f"{', '.join(recipes)}, {', '.join(PLUGIN_KINDS)}"
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
    """Print shapes, parameters, the estimated time and the settings. With --help, print the help and the settings."""
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
    """Run an experiment or a comparison, and print its scores and its folder. Return 1 if a run failed."""
    from unifier.config import load_experiment
    from unifier.data.source import use_data_folder
    from unifier.launch import run_in_folder

    if options.help:
        from unifier.console import print_settings

        print(options.help)
        print_settings(load_experiment(options.experiment))
        return 0
    if options.ray == "local" and (address := next((text for text in options.settings if _is_address(text)), None)):
        from unifier_tokenizers import InputError

        raise InputError(f"{address}: write the address with an equals sign, as --ray={address}")
    settings = parse_settings(options.settings)
    if is_launched(os.environ):  # A process that fails later can report its error to the connected processes.
        from unifier.training.parallel import start_processes

        start_processes(options.devices, options.nodes)
    with use_data_folder(options.data), failing_together():
        results, folder = run_in_folder(
            load_experiment(options.experiment),
            settings,
            seed=settings.pop("seed", None),
            out=options.out,
            track=options.track,
            tensorboard=options.tensorboard,
            resume=options.resume,
            name=options.name,
            devices=options.devices,
            nodes=options.nodes,
            ray=options.ray,
            trial_cpus=options.trial_cpus,
            trial_gpus=options.trial_gpus,
        )
    from unifier.console import print_comparison, print_results

    if (folder / "comparison.json").exists():
        print_comparison(folder)
    else:
        print_results(results)
    if (folder / "report.html").exists():
        _print_line(f"report: {folder / 'report.html'}")
    _print_line(folder)
    return int(any(result.status != "finished" for result in results))


def act_pack(options: argparse.Namespace) -> None:
    """Pack the data of an experiment, and print a line that describes the result."""
    from unifier.data.source import use_data_folder
    from unifier.inference.pack import pack_experiment

    with use_data_folder(options.data):
        line = pack_experiment(
            options.experiment,
            options.folder,
            parse_settings(options.settings),
            task=options.task,
            shard_mb=options.shard_mb,
            window=options.window,
        )
    _print_line(line)


def act_sweep(options: argparse.Namespace) -> None:
    """Create a sweep, and print the sweep id and the command for agents. With --dry, print only the configuration."""
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
    print(f"created sweep {sweep_id}; on each machine with {options.experiment}, set $UNIFIER_DATA and run this:")
    print(f"wandb agent --project {configuration['project']} {sweep_id}")


def act_report(options: argparse.Namespace) -> None:
    """Write report.html and print its path."""
    from unifier.report.page import report_on

    page, problems = report_on(options.folder)
    for problem in problems:
        print_status(f"warning: {problem}", sys.stderr)
    _print_line(page)


def act_predict(options: argparse.Namespace) -> None:
    """Write predictions to standard output or a file."""
    from unifier.inference.predict import PredictionOptions, open_output, write_predictions

    _write_utf8()
    output = PredictionOptions(
        options.format, options.top_k, options.bad_inputs, options.attention, options.masks, options.sounds
    )
    model = _open_model(options)
    task = model.choose_task(options.task)
    with open_output(options.out) as out:
        write_predictions(model, task, options.inputs, out, output)


def act_evaluate(options: argparse.Namespace) -> None:
    """Print the scores on labeled data, and write evaluation.json and evaluation.html."""
    from unifier.inference.evaluate import describe_score, evaluate, write_evaluation
    from unifier_tokenizers import InputError

    check_output_folder(options.out)
    source, _, target = (options.languages or "").partition(",")
    if options.languages and not (source and target):
        raise InputError(f"languages={options.languages}: two languages are expected, such as en,de")
    model, languages = _open_model(options), (source, target) if options.languages else None
    task = model.choose_task(options.task)
    evaluation, content = evaluate(model, task, options.data, bad_inputs=options.bad_inputs, languages=languages)
    page = write_evaluation(options.out, evaluation, content)
    for name, score in content["scores"].items():
        _print_line(describe_score(name, score))
    _print_line(page)


def act_serve(options: argparse.Namespace) -> None:
    """Serve a model until Ctrl-C, and print the address of the page."""
    from unifier_tokenizers import InputError

    try:
        from unifier.serving.server import ServerOptions, create_app, listen, serve
    except ModuleNotFoundError as error:
        raise InputError(f'{error.name} is not installed: pip install "unifier-torch[serve]"') from error
    names = ("host", "port", "max_bytes", "max_seconds", "max_requests")
    settings = ServerOptions(**{name: value for name in names if (value := getattr(options, name)) is not None})
    with listen(settings) as listener:
        model = _open_model(options)
        app = create_app(model, options.task, settings)  # The address is not printed for a model that is refused.
        host, port = listener.getsockname()[:2]
        _print_line(f"serving {model.name} on http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C ends)")
        serve(app, listener)


def _write_utf8() -> None:
    """Write UTF-8 with line feeds to standard output, on every system."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


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


def act_clean(options: argparse.Namespace) -> None:
    """Print the size of the cache. With --yes, delete all entries."""
    from unifier.inference.clean import clear_cache, measure_cache

    cache = measure_cache()
    _print_line(f"{cache.folder}: {cache.entries:,} entries, {cache.size / 1e6:,.1f} MB")
    if options.yes:
        deleted = clear_cache()
        _print_line(f"deleted {deleted.entries:,} entries, {deleted.size / 1e6:,.1f} MB")
    elif cache.entries:
        _print_line("to delete them, run unifier clean --yes; a later run encodes its data again")


def act_new(options: argparse.Namespace) -> None:
    """Write a package, and print its folder."""
    from unifier.inference.new_package import write_package

    _print_line(write_package(options.kind, options.name))


def act_export(options: argparse.Namespace) -> None:
    """Write a trained model into a new folder, and print the path of the folder."""
    from unifier.models.export import export_model

    _print_line(export_model(options.model, options.folder, options.format, task=options.task))


def act_embed(options: argparse.Namespace) -> None:
    """Write the vectors of inputs to a file."""
    from unifier.inference.embed import write_vectors

    model = _open_model(options)
    task = model.choose_task(options.task)
    count = write_vectors(model, task, options.inputs, options.out, layer=options.layer, bad_inputs=options.bad_inputs)
    print_status(f"{options.out}: {count:,} vectors")


def act_generate(options: argparse.Namespace) -> None:
    """Print a prompt and its continuation, token by token. Pictures and tunes are written into files."""
    from dataclasses import fields

    from unifier.inference.generate import GenerationOptions, generate
    from unifier.inference.generated_files import FileOptions, generate_files, generates_files
    from unifier_tokenizers import InputError

    _write_utf8()
    sampling = GenerationOptions(**{field.name: getattr(options, field.name) for field in fields(GenerationOptions)})
    given = {name: value for name in ("count", "keep") if (value := getattr(options, name)) is not None}
    files = FileOptions(options.out or Path("generated"), **given)
    model = _open_model(options)
    task = model.choose_task(options.task)
    if generates_files(model, task):
        for path in generate_files(model, task, options.prompt, sampling, files):
            _print_line(str(path))
        return
    if options.out is not None or given:
        raise InputError(
            "out, count and keep are for pictures, tunes and sounds, but a text is printed: leave them out"
        )
    for text in generate(model, task, options.prompt, sampling):
        sys.stdout.write(printable(text, keep="\n\t"))
        sys.stdout.flush()
    _print_line("")


def act_heads(options: argparse.Namespace) -> None:
    """Print the scores of a run without each attention head, and the heads that carry the agreement of words."""
    from rich.console import Console
    from rich.progress import track

    from unifier.console import print_rows
    from unifier.files import write_csv
    from unifier.inference.heads import describe_carrier, measure_heads, to_rows
    from unifier_tokenizers import InputError

    if options.examples < 1:
        raise InputError(f"examples={options.examples}: at least 1 example is needed")
    if options.out and not options.out.parent.is_dir():
        raise InputError(f"{options.out} cannot be written: the folder {options.out.parent} does not exist")
    model = _open_model(options)
    measured = measure_heads(model, model.choose_task(options.task), options.examples, options.head)
    progress = Console(stderr=True)
    effects = list(track(measured, "heads", console=progress, transient=True, disable=not progress.is_terminal))
    print_rows(to_rows(effects))
    for category in effects[0].agreement:
        _print_line(describe_carrier(effects, category))
    if options.out:
        write_csv(options.out, to_rows(effects))


def act_neighbors(options: argparse.Namespace) -> None:
    """Print the nearest words of each word or analogy."""
    from unifier.inference.neighbors import VectorTable, parse_queries, write_neighbors

    _write_utf8()
    queries = parse_queries(options.words)
    model = _open_model(options)
    table = VectorTable(model, model.choose_task(options.task))
    write_neighbors(table, queries, sys.stdout, count=options.count, style=options.format)


def act_translate(options: argparse.Namespace) -> None:
    """Translate a file or standard input line by line."""
    from contextlib import nullcontext
    from dataclasses import fields

    from unifier.inference.translate import AlignmentPage, DecodingOptions, open_input, translate
    from unifier.inference.translator import Translator

    _write_utf8()
    decoding = DecodingOptions(**{field.name: getattr(options, field.name) for field in fields(DecodingOptions)})
    translator = Translator(
        _open_model(options),
        task=options.task,
        align=bool(options.attention),
        candidates=decoding.candidates,
        to=options.to,
    )
    page = AlignmentPage(options.attention) if options.attention else nullcontext()
    with open_input(options.file) as file, page as alignments:
        name = "standard input" if options.file in (None, "-") else options.file
        translate(translator, file, name, sys.stdout, decoding, alignments)


def _is_address(text: str) -> bool:
    """Return True for the address of a Ray cluster."""
    return text == "auto" or ("=" not in text and text.rpartition(":")[2].isdecimal())


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


def run_this_file(file: str) -> NoReturn:
    """Run an experiment's file like the command `unifier run FILE`, with the arguments of the program."""
    sys.exit(main(["run", file, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
