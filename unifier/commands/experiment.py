"""The commands show and run, for an experiment or a comparison."""

import argparse
import os
from typing import Any, final

from unifier.commands.common import AddCommand, add_experiment, parse_settings, print_line
from unifier.distributed import failing_together, is_launched


def add_show_and_run(add: AddCommand) -> None:
    """Add the commands show and run."""
    show = add(
        "show", add_help=False, help="print tensor shapes, parameters, settings and an estimated time, without training"
    )
    run = add("run", add_help=False, help="run an experiment or a comparison, and print its folder as the last line")
    for command in (show, run):
        command.add_argument(
            "-h",
            "--help",
            nargs=0,
            action=HelpAction,
            help="print this help; after FILE, also print the settings of FILE",
        )
        add_experiment(command)
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


@final
class HelpAction(argparse.Action):
    """Option that prints the command's help. If a FILE is given, the help includes the settings of the file."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        """Print the help and exit. If a FILE is given, only store the help text as `options.help`."""
        if namespace.experiment is None:
            parser.print_help()
            parser.exit()
        namespace.help = parser.format_help()


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
        print_line(f"report: {folder / 'report.html'}")
    print_line(folder)
    return int(any(result.status != "finished" for result in results))


def _is_address(text: str) -> bool:
    """Return True for the address of a Ray cluster."""
    return text == "auto" or ("=" not in text and text.rpartition(":")[2].isdecimal())
