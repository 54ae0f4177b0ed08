"""An experiment's settings as a W&B sweep, for agents on any number of machines."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from unifier.comparison import Comparison
from unifier.config import check_settings, load_experiment, parse_setting, split_reference
from unifier.experiment import check_seed
from unifier.training.loggers import wandb_mode
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line

Method = Literal["grid", "random", "bayes"]


def sweep_configuration(
    reference: str, given: Mapping[str, str], *, metric: str, method: str, runs: int | None
) -> dict[str, Any]:
    """What W&B needs to know: each setting of FILE[:name] with its values, and the command that an agent runs.

    `given` holds values with commas between them, by the name of the setting or as `seed`; `metric` is one of
    validation's, higher being better; `runs` is the most there will be. Raises InputError for what `unifier run` would
    not take.
    """
    function = load_experiment(reference)
    if get_type_hints(function)["return"] is Comparison:
        raise InputError(f"{reference} is a comparison, and a run of a sweep is one experiment: name that one")
    if check_choice("method", method, get_args(Method)) != "grid" and runs is None:
        raise InputError(f"method {method} never ends by itself: give --runs N")
    if runs is not None and runs < 1:
        raise InputError(f"--runs {runs}: at least 1 is needed")
    if not metric.startswith("val/"):
        raise InputError(f"--metric {metric}: one of validation is expected, such as val/score; tests are not tuned on")
    values = {name: texts.split(",") for name, texts in given.items()}
    if not values:
        raise InputError("a sweep varies something: give it settings with their values, such as dim=64,128 seed=0,1")
    first = {name: texts[0] for name, texts in values.items() if name != "seed"}
    check_settings(function, first)

    def read(name: str, text: str) -> Any:
        if name == "seed":
            return check_seed(parse_setting(name, text, int))
        return check_settings(function, first | {name: text})[name]

    parameters = {name: [read(name, text) for text in texts] for name, texts in values.items()}
    if True in parameters.get("refit", ()):
        raise InputError("refit=true: no validation is left for a sweep to choose by; refit what it found")
    return {
        "name": function.__name__,
        "project": Path(split_reference(reference)[0]).stem,
        "program": reference,
        "command": ["${env}", "unifier", "run", reference, "${args_no_hyphens}"],
        "method": method,
        "metric": {"name": metric, "goal": "maximize"},
        "parameters": {name: {"values": several} for name, several in parameters.items()},
    } | ({"run_cap": runs} if runs is not None else {})


def start_sweep(configuration: Mapping[str, Any]) -> str:
    """Make the sweep at W&B; returns its id. Raises InputError where no key is known, or W&B is out of reach."""
    if (mode := wandb_mode(None)) != "online":
        raise InputError(f"a sweep lives at W&B, and the mode here is {mode}: log in there, or take --dry to see it")
    import wandb

    try:
        with redirect_stdout(sys.stderr):
            return wandb.sweep(dict(configuration))
    except Exception as error:  # W&B's own, and whatever its network raises
        raise InputError(f"W&B did not make the sweep: {one_line(error)}") from error
