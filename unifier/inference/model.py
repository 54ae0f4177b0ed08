"""Trained models. The function `load` opens a model's folder."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, final, get_args

import torch

from unifier.analysis.activations import layer_activations, mean_tokens
from unifier.comparison import SHARE
from unifier.config import build_described, check_settings, load_experiment, split_reference
from unifier.data.dataloader import Batch, apply_objective
from unifier.data.source import use_starting_folders
from unifier.experiment import Experiment, check_fitted, recording_fitted
from unifier.files import read_json
from unifier.heads.token_classification import describe_labels
from unifier.inference.stream import stream_results
from unifier.models.folder import MODEL_FOLDER, ModelTask, StoredModel, find_model, list_model_files, read_model
from unifier.models.hub import upload_model
from unifier.network import Network
from unifier.nn.int8 import round_linear_layers
from unifier.nn.precision import default_device
from unifier.settings import list_settings
from unifier.training.experiment_copy import origin_of, warn_of_changed_experiment
from unifier.trials.joint import merge_experiments, with_budget
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

ComputeDtype = Literal["float32", "bfloat16", "int8"]
"""The number type of the computation. "int8" stores the weights of linear layers as 8-bit integers."""

INFERENCE_FACTOR = 4
"""Ratio of the batch size in inference to the batch size in training, as in validation."""


@final
class Model:
    """Trained network in evaluation mode, with the preparation of its inputs."""

    def __init__(self, stored: StoredModel, folder: Path) -> None:
        """Create the network.

        Args:
            stored: The content of the model's folder.
            folder: The model's folder, for messages and for `experiment`.
        """
        self.name, self.folder = stored.name, folder
        self.tasks: Mapping[str, ModelTask] = stored.tasks
        self.batch_tokens = stored.batch_tokens
        """The number of tokens per batch of the training."""
        self.facts = stored.facts
        """Scores, data and versions of the run."""
        self.network = Network(stored.trunk, stored.tasks).eval()
        self.device = torch.device("cpu")
        self.dtype: ComputeDtype = "float32"

    def to(self, device: str | None = None, dtype: ComputeDtype = "float32") -> Self:
        """Move the network to a device, choose the number type of the computation, and return the model.

        Args:
            device: "cpu", "cuda" or "mps". None means the accelerator if the machine has one, else the CPU.
            dtype: The number type. A model with the weights of "int8" cannot return to another number type.

        Raises:
            InputError: The machine does not have the device, or the number type is unknown or no longer possible.
        """
        devices = tuple(dict.fromkeys(("cpu", default_device())))
        device = device or devices[-1]
        if device not in devices:
            raise InputError(f"device={device}: this machine has only {', '.join(devices)}")
        dtype = check_choice("dtype", dtype, get_args(ComputeDtype))
        if self.dtype == "int8" != dtype:
            raise InputError(f"dtype={dtype}: the weights are already rounded to int8; load the model again")
        if dtype == "int8":
            round_linear_layers(self.network)
        self.device, self.dtype = torch.device(device), dtype
        self.network.to(self.device)
        return self

    @contextmanager
    def inference_mode(self) -> Generator[None]:
        """Compute without gradients, in the number type that `to` has chosen."""
        bfloat16 = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bfloat16")
        with torch.inference_mode(), bfloat16:
            yield

    def choose_task(self, task: str | None = None) -> str:
        """Return the name of a task.

        Args:
            task: The task's name. The name is required if the model has several tasks.

        Raises:
            InputError: The task is unknown, or the required name is missing.
        """
        if task is None and len(self.tasks) > 1:
            raise InputError(f"the model has several tasks: set `task` to one of {', '.join(self.tasks)}")
        if task is not None and task not in self.tasks:
            raise InputError(f"there is no task {task!r}: choose one of {', '.join(self.tasks)}")
        return task or next(iter(self.tasks))

    def predict(self, inputs: Sequence[Any], task: str | None = None) -> list[str]:
        """Return one answer per input, as a text.

        Args:
            inputs: Paths, PIL images, arrays, `Audio`, texts, or mappings for a mixture. Inputs are prepared as in
                training.
            task: The task's name. The name is required if the model has several tasks.

        Raises:
            InputError: The task is unknown, the required task is missing, or an input cannot be read.
        """
        part = self.tasks[task := self.choose_task(task)]
        return [
            describe_labels(part.head, part.tokenizer, raw, prediction) or part.head.describe(prediction)
            for raw, prediction in zip(inputs, self.predictions(inputs, task), strict=True)
        ]

    def predictions(
        self, inputs: Iterable[Any], task: str | None = None, *, bad_inputs: Literal["stop", "yield"] = "stop"
    ) -> Iterator[Any]:
        """Yield one prediction of the head per input, in the order of the inputs. Only a few batches are in memory.

        Args:
            inputs: See `predict`.
            task: See `predict`.
            bad_inputs: "stop" raises an error for the first input that cannot be read. "yield" yields the `InputError`
                as the prediction for this input.

        Raises:
            InputError: See `predict`.
        """
        check_choice("bad_inputs", bad_inputs, ("stop", "yield"))
        task = self.choose_task(task)

        def compute(batch: Batch) -> Mapping[int, Any]:
            with self.inference_mode():
                return self.network.predict_batch(task, batch.to(self.device))

        predictions = stream_results(inputs, self.tasks[task], compute, max_tokens=INFERENCE_FACTOR * self.batch_tokens)
        return predictions if bad_inputs == "yield" else _raise_errors(predictions)

    def evaluations(self, inputs: Iterable[Any], task: str | None = None) -> Iterator[Any]:
        """Yield the head's answer to the targets that the task's objective defines, for each input.

        An `InputError` is yielded for an input that cannot be read.

        Args:
            inputs: See `predict`.
            task: The name of a task with an objective, such as hidden words.
        """
        task = self.choose_task(task)
        objective = self.tasks[task].objective
        assert objective is not None, "the task has no objective"

        def compute(batch: Batch) -> Mapping[int, Any]:
            with self.inference_mode():
                return self.network.evaluate_batch(task, apply_objective(objective, batch).to(self.device))

        return stream_results(inputs, self.tasks[task], compute, max_tokens=INFERENCE_FACTOR * self.batch_tokens)

    def push_to_hub(self, repository: str, *, private: bool | None = None, message: str = "Upload a model") -> str:
        """Upload the model's folder to the Hugging Face hub, and return the address of the commit.

        Args:
            repository: USER/NAME. A repository that does not exist is created.
            private: True for a new repository that only its owner can read. None means the owner's default.
            message: The message of the commit.

        Raises:
            InputError: A file of the model has changed, the hub cannot be reached, or you may not write there.
        """
        return upload_model(self.folder, list_model_files(self.folder), repository, private=private, message=message)

    def embed(
        self,
        inputs: Iterable[Any],
        task: str | None = None,
        *,
        layer: str | None = None,
        bad_inputs: Literal["stop", "yield"] = "stop",
    ) -> Iterator[Any]:
        """Yield one vector (D,) per input: the output of a layer, averaged over the tokens of the input.

        Args:
            inputs: See `predict`.
            task: See `predict`.
            layer: The name of the layer, such as "blocks.0", or "columns" for the input of the trunk. None means the
                last layer.
            bad_inputs: See `predictions`.

        Raises:
            InputError: The layer is unknown. For other errors, see `predict`.
        """
        check_choice("bad_inputs", bad_inputs, ("stop", "yield"))
        parts, trunk = self.tasks[self.choose_task(task)], self.network.trunk
        names = ("columns", *(trunk.layer_outputs() or ("trunk",)))
        layer = names[-1] if layer is None else check_choice("layer", layer, names)

        def compute(batch: Batch) -> Mapping[int, Any]:
            with self.inference_mode():
                batch = batch.to(self.device)
                outputs = layer_activations(trunk, batch.embed(parts.tokenizer), parts.head.attention_mode)
                means = mean_tokens(outputs[layer], batch.mask).cpu()
            return dict(zip(batch.example_indices.tolist(), means, strict=True))

        vectors = stream_results(inputs, parts, compute, max_tokens=INFERENCE_FACTOR * self.batch_tokens)
        return vectors if bad_inputs == "yield" else _raise_errors(vectors)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment whose training produced the model. The run's experiment file is executed.

        Raises:
            InputError: The model's folder is not in the folder of a run, the experiment's file is missing, or the
                experiment has changed since the run.
        """
        run = self.folder.parent
        if self.folder.name != MODEL_FOLDER or not (run / "settings.json").exists():
            raise InputError(f"{self.folder}: a model has an experiment only in the folder of its run")
        return load_run_experiment(run)


def _raise_errors(predictions: Iterable[Any]) -> Iterator[Any]:
    """Yield the predictions until the first InputError, which is raised."""
    for index, prediction in enumerate(predictions):
        if isinstance(prediction, InputError):
            raise InputError(f"input {index}: {prediction}") from prediction
        yield prediction


def load(source: str | Path, *, revision: str | None = None, classes: Sequence[type] = ()) -> Model:
    """Open a trained model. No code in its folder is executed.

    Args:
        source: The folder of a model or of a finished run, or hub:USER/NAME for a model on the Hugging Face hub.
        revision: A branch, a tag or a commit on the hub. None means the main branch.
        classes: Your own classes that the model consists of, if they are in no installed package.

    Raises:
        InputError: The folder contains no model, a file is missing or broken, or the hub cannot be reached.
    """
    folder = find_model(source, revision)
    return Model(read_model(folder, classes), folder)


def load_run_experiment(folder: Path) -> Experiment:
    """Build the experiment of a run again, with the settings and vocabularies that the run stored.

    Raises:
        InputError: A file is missing or broken, or the experiment has changed since the run.
    """
    stored = read_json(folder / "settings.json", name=str, settings=dict)
    check_fitted(folder, stored)
    origin = origin_of(folder, stored)
    warn_of_changed_experiment(folder, stored)
    with recording_fitted(folder), use_starting_folders(stored):
        if isinstance(origin, list):
            experiment = merge_experiments(_load_parts(folder, origin, stored["settings"]))
        elif origin:
            experiment = _load_experiment(folder, origin, stored["settings"])
            if load_experiment(origin).__name__ == stored["name"]:  # Comparisons name runs after functions.
                experiment = replace(experiment, name=stored["name"])
        else:
            raise InputError(f"{folder}: settings.json names no experiment")
    if experiment.name != stored["name"]:
        raise InputError(f'{folder} is a run of "{stored["name"]}", but {origin} is "{experiment.name}"')
    return experiment


def _load_parts(folder: Path, origins: Sequence[str], settings: Mapping[str, Any]) -> list[Experiment]:
    """Build the experiments of a joint run, each with its own settings. Each experiment has a budget of one step."""
    if missing := [origin for origin in origins if not isinstance(settings.get(split_reference(origin)[1]), Mapping)]:
        raise InputError(f"{folder / 'settings.json'}: broken (it lacks the settings of {', '.join(missing)})")
    parts = [_load_experiment(folder, origin, settings[split_reference(origin)[1]]) for origin in origins]
    return [with_budget(part, "steps", 1) for part in parts]


def _load_experiment(folder: Path, reference: str, settings: Mapping[str, Any]) -> Experiment:
    """Build an experiment with the settings of a run."""
    if not Path(file := split_reference(reference)[0]).is_file():
        # The run of a notebook has no copy of its code.
        hint = "put the file back"
        if not any(folder.glob("experiment*.py")):
            hint = "it was a notebook's cell or a prompt; to use the experiment, define it in a file and train again"
        raise InputError(f"{folder}: the experiment's file {file} does not exist; {hint}")
    function = load_experiment(reference)
    # A comparison may vary the share of the training split, even if the experiment lacks the setting "share".
    known = list_settings(function)
    given = {name: value for name, value in settings.items() if name != SHARE or name in known}
    try:
        return build_described(function, check_settings(function, given), Experiment)
    except InputError as error:
        raise InputError(f"{folder / 'settings.json'}: {error}") from error
