"""The command sweep, for sweeps of Weights & Biases."""

import argparse
import json

from unifier.commands.common import AddCommand, add_experiment, parse_settings


def add_sweep(add: AddCommand) -> None:
    """Add the command sweep."""
    sweep = add("sweep", help="create a W&B sweep over settings, and print the command for its agents")
    add_experiment(sweep)
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
