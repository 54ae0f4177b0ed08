"""load: a run's experiment, and its network with the weights that validated best."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from unifier.comparison import SHARE
from unifier.config import build_described, check_settings, split_reference
from unifier.config import load_experiment as find
from unifier.experiment import Experiment, recording_fitted
from unifier.files import read_json
from unifier.network import Network
from unifier.training.checkpoint import load_weights, read_checkpoint
from unifier.trials.joint import merge_experiments, with_budget
from unifier_tokenizers import InputError


def load(folder: str | Path, reference: str | None = None) -> tuple[Experiment, Network]:
    """The experiment of a run, and its network in evaluation mode; no more of the data is read than it reads itself.

    The file that describes the experiment is run again, with the settings and the vocabularies that the run kept, and
    those of all experiments that were trained together; `reference` (FILE:name) says where one is now, or the file of
    all of them, if it was moved.
    Nothing of the run's folder is run as a program.
    Raises InputError where something lacks, or the experiment has changed since.
    """
    folder = Path(folder)
    kept = read_json(folder / "settings.json", name=str, settings=dict)
    weights: dict[str, Tensor] = read_checkpoint(checkpoint := folder / "checkpoints" / "best.ckpt")["state_dict"]
    references = kept.get("study")
    with recording_fitted(folder):
        if isinstance(references, list):
            if reference:
                references = [f"{split_reference(reference)[0]}:{split_reference(one)[1]}" for one in references]
            parts = [_described(folder, one, kept["settings"][split_reference(one)[1]])[0] for one in references]
            # As in training, when their comparison had given them one.
            alike = [with_budget(part, "steps", 1) for part in parts]
            experiment, reference = merge_experiments(alike), " and ".join(references)
        elif reference := reference or references:
            experiment, called = _described(folder, reference, kept["settings"])
            if called == kept["name"]:  # as a comparison calls its runs
                experiment = replace(experiment, name=called)
        else:
            raise InputError(f"{folder}: it does not say which experiment it ran; name it: --experiment FILE")
    if experiment.name != kept["name"]:
        raise InputError(f'{folder} is a run of "{kept["name"]}", and {reference} is "{experiment.name}"')
    model = Network(experiment)
    # What weighs several losses against each other is of their training alone.
    own = {name: part for name, part in weights.items() if not name.startswith("log_variances.")}
    load_weights(model, own, checkpoint, reference)
    return experiment, model.eval()


def _described(folder: Path, reference: str, settings: Mapping[str, Any]) -> tuple[Experiment, str]:
    """The experiment of that name under a run's settings, and how its function is called."""
    if not Path(file := split_reference(reference)[0]).is_file():
        raise InputError(f"{folder}: its experiment {file} is not there; say where it is now: --experiment FILE")
    function = find(reference)
    # A comparison may have varied the share of the training split, which is none of the experiment's own settings.
    known = inspect.signature(function).parameters
    own = {name: value for name, value in settings.items() if name != SHARE or name in known}
    return build_described(function, check_settings(function, own), Experiment), function.__name__
