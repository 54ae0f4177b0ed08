"""Weights & Biases sweeps over the settings of an experiment. Agents on any number of machines can run a sweep."""

import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from unifier.comparison import Comparison
from unifier.config import build_described, check_settings, load_experiment, parse_setting, split_reference
from unifier.experiment import Experiment, check_seed
from unifier.training.wandb_run import project_name, wandb_mode
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line

Method = Literal["grid", "random", "bayes"]


def sweep_configuration(
    reference: str, given: Mapping[str, str], *, metric: str, method: str, runs: int | None
) -> dict[str, Any]:
    """Build the configuration of a sweep: the values of each setting, and the command that an agent runs.

    Args:
        reference: FILE[:name] of the experiment.
        given: The comma-separated values of each setting, including `seed`.
        metric: The validation metric to optimize, such as val/score. An error is minimized.
        method: The search method: "grid", "random" or "bayes".
        runs: The maximum number of runs, or None with method="grid".

    Raises:
        InputError: `unifier run` would reject a value, or the options contradict each other.
    """
    function = load_experiment(reference)
    if get_type_hints(function)["return"] is Comparison:
        raise InputError(f"{reference} is a comparison, but a sweep varies one experiment: give an experiment")
    if check_choice("method", method, get_args(Method)) != "grid" and runs is None:
        raise InputError(f"a sweep with method {method} never ends: give the number of runs as --runs N")
    if runs is not None and runs < 1:
        raise InputError(f"--runs {runs}: at least 1 is needed")
    if not metric.startswith("val/"):
        raise InputError(
            f"--metric {metric}: give a validation metric, such as val/score; test scores are not for tuning"
        )
    texts = {name: text.split(",") for name, text in given.items()}
    if not texts:
        raise InputError("a sweep needs settings that vary: give each setting its values, as in dim=64,128 seed=0,1")
    first = {name: values[0] for name, values in texts.items() if name != "seed"}
    check_settings(function, first)

    def parse(name: str, text: str) -> Any:
        if name == "seed":
            return check_seed(parse_setting(name, text, int))
        return check_settings(function, first | {name: text})[name]

    parameters = {name: [parse(name, text) for text in values] for name, values in texts.items()}
    if True in parameters.get("refit", ()):
        raise InputError("refit=true: a sweep needs validation scores; give refit=false, and refit after the sweep")
    return {
        "name": function.__name__,
        "project": project_name(Path(split_reference(reference)[0]).stem),
        "program": reference,
        "command": ["${env}", "unifier", "run", reference, "${args_no_hyphens}"],
        "method": method,
        "metric": {"name": metric, "goal": _goal(function, check_settings(function, first), metric)},
        "parameters": {name: {"values": values} for name, values in parameters.items()},
    } | ({"run_cap": runs} if runs is not None else {})


def _goal(function: Callable[..., Any], settings: Mapping[str, Any], metric: str) -> Literal["maximize", "minimize"]:
    """Return the goal of a metric. The experiment is built for every metric except val/score, which is maximized.

    Raises:
        InputError: The experiment has no task with the name in the metric.
    """
    if metric == "val/score":
        return "maximize"
    tasks = build_described(function, settings, Experiment).tasks
    task, _, name = metric.removeprefix("val/").rpartition("/")
    if task not in tasks:
        raise InputError(
            f"--metric {metric}: give val/score, or val/TASK/METRIC with one of the tasks {', '.join(tasks)}"
        )
    return "minimize" if name in tasks[task].head.lower_is_better else "maximize"


def start_sweep(configuration: Mapping[str, Any]) -> str:
    """Create the sweep at W&B, and return the id of the sweep.

    Raises:
        InputError: No API key is set, or W&B cannot be reached.
    """
    if (mode := wandb_mode(None)) != "online":
        raise InputError(f"a sweep needs W&B online, but its mode is {mode}: log in, or print the sweep with --dry")
    import wandb

    try:
        with redirect_stdout(sys.stderr):
            return wandb.sweep(dict(configuration))
    except Exception as error:  # W&B raises its own errors and network errors.
        raise InputError(f"W&B did not create the sweep: {one_line(error)}") from error
