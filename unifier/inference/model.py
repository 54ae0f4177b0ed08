"""Trained models. The function `load` loads a model from a run's folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from torch import Tensor

from unifier.comparison import SHARE
from unifier.config import build_described, check_settings, load_experiment, split_reference
from unifier.data.source import use_starting_folders
from unifier.experiment import Experiment, check_fitted, recording_fitted
from unifier.files import read_json
from unifier.network import Network
from unifier.settings import list_settings
from unifier.training.checkpoint import load_weights, read_checkpoint
from unifier.trials.joint import merge_experiments, with_budget
from unifier_tokenizers import InputError


@final
@dataclass(frozen=True)
class Model:
    """Trained network in evaluation mode, and the experiment whose training produced the network."""

    network: Network
    experiment: Experiment

    def predict(self, raws: Sequence[Any], task: str | None = None) -> list[str]:
        """Return one answer per raw input, as a text.

        Args:
            raws: Raw inputs of the task's tokenizer, such as texts, pictures or `Audio`.
            task: The task's name. The name is required if the model has several tasks.

        Raises:
            InputError: The task is unknown, the required task is missing, or an input cannot be encoded.
        """
        tasks = list(self.experiment.tasks)
        if task is None and len(tasks) > 1:
            raise InputError(f"the model has several tasks: set `task` to one of {', '.join(tasks)}")
        task = task or tasks[0]
        answers = self.network.predict(task, raws)
        return [self.experiment.tasks[task].head.describe(answer) for answer in answers]


def load(folder: str | Path, reference: str | None = None) -> Model:
    """Load the model of a run, with the weights that had the best validation score.

    The experiment's file is executed again, with the settings and vocabularies that the run stored. Data are read only
    if the experiment's function reads data. No file in the run's folder is executed.

    Args:
        folder: A run's folder.
        reference: FILE or FILE:name of the experiment, if the file was moved since the run. For a joint run, give the
            file that defines all experiments of the run.

    Raises:
        InputError: A file is missing or broken, or the experiment has changed since the run.
    """
    folder = Path(folder).absolute()
    stored = read_json(folder / "settings.json", name=str, settings=dict)
    check_fitted(folder, stored)
    checkpoint = folder / "checkpoints" / "best.ckpt"
    weights: dict[str, Tensor] = read_checkpoint(checkpoint)["state_dict"]
    origin = stored.get("study")
    if not isinstance(origin, str | list | None) or not all(isinstance(part, str) for part in origin or ()):
        raise InputError(f"{folder / 'settings.json'}: broken (study must be FILE:name, or a list of FILE:name)")
    if reference and Path(split_reference(reference)[0]).exists():
        file, name = split_reference(reference)
        reference = f"{Path(file).resolve()}{':' if name else ''}{name}"
    with recording_fitted(folder), use_starting_folders(stored):
        if isinstance(origin, list):
            parts = _load_parts(folder, origin, stored["settings"], reference)
            experiment, source = merge_experiments(parts), " and ".join(origin)
        elif source := reference or origin:
            experiment = _load_experiment(folder, source, stored["settings"])
            if load_experiment(source).__name__ == stored["name"]:  # Comparisons name runs after functions.
                experiment = replace(experiment, name=stored["name"])
        else:
            raise InputError(f"{folder}: settings.json names no experiment; give its file as --experiment FILE")
    if experiment.name != stored["name"]:
        raise InputError(f'{folder} is a run of "{stored["name"]}", but {source} is "{experiment.name}"')
    network = Network(experiment)
    # The learned weights of the losses are only needed in training.
    weights = {name: weight for name, weight in weights.items() if not name.startswith("log_variances.")}
    load_weights(network, weights, checkpoint, source)
    return Model(network.eval(), experiment)


def _load_parts(
    folder: Path, origins: Sequence[str], settings: Mapping[str, Any], reference: str | None
) -> list[Experiment]:
    """Build the experiments of a joint run, each with its own settings. Each experiment has a budget of one step."""
    if reference:
        file = split_reference(reference)[0]
        origins = [f"{file}:{split_reference(origin)[1]}" for origin in origins]
    if missing := [origin for origin in origins if not isinstance(settings.get(split_reference(origin)[1]), Mapping)]:
        raise InputError(f"{folder / 'settings.json'}: broken (it lacks the settings of {', '.join(missing)})")
    parts = [_load_experiment(folder, origin, settings[split_reference(origin)[1]]) for origin in origins]
    return [with_budget(part, "steps", 1) for part in parts]


def _load_experiment(folder: Path, reference: str, settings: Mapping[str, Any]) -> Experiment:
    """Build an experiment with the settings of a run."""
    if not Path(file := split_reference(reference)[0]).is_file():
        raise InputError(f"{folder}: the experiment {file} does not exist; give its new path as --experiment FILE")
    function = load_experiment(reference)
    # A comparison may vary the share of the training split, even if the experiment lacks the setting "share".
    known = list_settings(function)
    given = {name: value for name, value in settings.items() if name != SHARE or name in known}
    return build_described(function, check_settings(function, given), Experiment)
