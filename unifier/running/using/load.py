"""A run, as it was when it did best in validation."""

import inspect
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from unifier.network import Network
from unifier.running.registry import experiment as find
from unifier.running.registry import split_reference
from unifier.running.settings import check_settings
from unifier.study.comparison import SHARE
from unifier.study.experiment import Experiment
from unifier.study.files import read_json
from unifier.study.fitted import remembering
from unifier.study.joint import together
from unifier_tokenizers import InputError


def origin(function: Callable[..., Any]) -> str:
    """FILE:name of an experiment's function, by which a run finds it again."""
    return f"{Path(inspect.getfile(function)).resolve()}:{function.__name__}"


def load(folder: str | Path, reference: str | None = None) -> tuple[Experiment, Network]:
    """The experiment of a run, and its network in evaluation mode; no more of the data is read than it reads itself.

    The file that describes the experiment is run again, with the settings and the vocabularies that the run kept, and
    those of all experiments that were trained together; `reference` (FILE:name) says where one is now, if it was moved.
    Nothing of the run's folder is run as a program.
    Raises InputError where something lacks, or the experiment has changed since.
    """
    folder = Path(folder)
    kept = read_json(folder / "settings.json", settings=dict)
    checkpoint = folder / "checkpoints" / "best.ckpt"
    if not zipfile.is_zipfile(checkpoint):
        said = "broken" if checkpoint.exists() else "no such file; the run was stopped before its first validation"
        raise InputError(f"{checkpoint}: {said}")
    references = kept.get("study")
    with remembering(folder):
        if isinstance(references, list):
            parts = [_described(folder, one, kept["settings"][split_reference(one)[1]]) for one in references]
            experiment, reference = together(parts), " and ".join(references)
        elif reference := reference or references:
            experiment = _described(folder, reference, kept["settings"])
        else:
            raise InputError(f"{folder}: it does not say which experiment it ran; name it: --experiment FILE")
    if experiment.name != kept["name"]:
        raise InputError(f'{folder} is a run of "{kept["name"]}", and {reference} is "{experiment.name}"')
    model = Network(experiment)
    try:
        weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
        # What weighs several losses against each other is of their training alone.
        model.load_state_dict({n: w for n, w in weights.items() if not n.startswith("log_variances.")})
    except (RuntimeError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise InputError(f"{checkpoint} does not fit {reference}; was that changed since? ({reason})") from error
    return experiment, model.eval()


def _described(folder: Path, reference: str, settings: Mapping[str, Any]) -> Experiment:
    """The experiment of that name under a run's settings."""
    if not Path(file := split_reference(reference)[0]).is_file():
        raise InputError(f"{folder}: its experiment {file} is not there; say where it is now: --experiment FILE")
    function = find(reference)
    # A comparison may have varied the share of the training split, which is none of the experiment's own settings.
    known = inspect.signature(function).parameters
    own = {name: value for name, value in settings.items() if name != SHARE or name in known}
    experiment = function(**check_settings(function, own))
    if not isinstance(experiment, Experiment):
        raise InputError(f"{folder} is a run of an experiment, and {reference} is a comparison")
    return experiment
