"""Tensor shapes and parameter counts of an experiment, without training it."""

import reprlib
from collections.abc import Mapping
from typing import Any, get_type_hints

import torch

from unifier.comparison import Comparison
from unifier.config import build_described, check_settings, parse_setting
from unifier.config import load_experiment as find
from unifier.data.dataloader import collate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.source import BadExamples, Example, name_of, readable_examples
from unifier.experiment import Experiment, Task, check_seed
from unifier.network import Network
from unifier.training.cost import count_parameters
from unifier.trials.plan import first_varied, trial_settings
from unifier_tokenizers import InputError


def show(reference: str, settings: Mapping[str, Any], *, seed: Any) -> None:
    """Print, for each task of what FILE[:name] describes, the first training example's shape at every stop.

    Of a comparison, with the first value of each setting that varies, and what it varies between.
    """
    function = find(reference)
    torch.manual_seed(check_seed(parse_setting("seed", seed, int)))
    described = build_described(function, check_settings(function, settings), get_type_hints(function)["return"])
    if isinstance(described, Comparison):
        print(f"comparison {described.name}: seeds {', '.join(map(str, described.seeds))}")
        for name, values in described.grid.items():
            print(f"  varies {name} ({len(values)}): {', '.join(map(str, values))}; {name}={values[0]} is shown")
        for one in described.experiments:
            own = check_settings(one, trial_settings(described, one, first_varied(described)))
            show_experiment(build_described(one, own, Experiment))
    else:
        show_experiment(described)


def show_experiment(experiment: Experiment) -> None:
    """Print one experiment's stops and parameters."""
    network = Network(experiment).eval()  # here, so that it refuses what a run would
    print(f"experiment {experiment.name}")
    for name, task in experiment.tasks.items():
        example, encoded = first_readable(task, experiment.training.bad_examples)
        batch = collate(encoded, [0])
        with torch.no_grad():
            tokens = task.embed(batch)
            read = task.head.run_trunk(network.trunk, tokens)
            loss = task.head.loss(read, batch.target)
        stops = {
            "input": _brief(example.input),
            "target": _brief(example.target),
            "values (..., N)": format_shape(encoded.units(0).values),
            "positions (A, N)": format_shape(encoded.units(0).positions),
            "matrix (B, D, N)": format_shape(tokens.matrix),
            f"trunk: {type(experiment.trunk).__name__}": format_shape(read.matrix),
            f"target: {type(task.head).__name__}": format_shape(batch.target),
            "loss, untrained": f"{loss.item():.3f}",
        }
        print(f"  task {name}: {name_of(task.source)}")
        for stop, said in stops.items():
            print(f"    {stop:26} {said}")
    counts = count_parameters(experiment)
    print("  parameters " + ", ".join(f"{part} {count:,}" for part, count in counts.items()))


def first_readable(task: Task, bad_examples: BadExamples) -> tuple[Example, EncodedSplit]:
    """The first training example, raw and encoded; where bad ones are left out, the first that can be encoded."""
    why: InputError | None = None
    for example in readable_examples(open_split(task.source, "train"), bad_examples=bad_examples):
        try:
            return example, encode_split([example], task.tokenizer, task.head, desc=name_of(task.source))[0]
        except InputError as error:
            if bad_examples == "stop":
                raise
            why = why or error
    raise why or InputError(f"{name_of(task.source)}: none of the examples to train on can be read")


def format_shape(tensor: torch.Tensor) -> str:
    """A tensor's sides and type."""
    return f"{' x '.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"


def _brief(raw: Any) -> str:
    if isinstance(raw, str):
        return repr(raw)
    sides = getattr(getattr(raw, "waveform", raw), "shape", None)
    if sides is None:
        return reprlib.repr(raw)
    rate = f" at {raw.rate} Hz" if hasattr(raw, "rate") else ""
    return f"{type(raw).__name__} {' x '.join(map(str, sides))}{rate}"
