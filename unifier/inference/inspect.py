"""Tensor shapes and parameter counts of an experiment, without training it."""

import reprlib
from collections.abc import Mapping
from typing import Any, get_type_hints

import torch

from unifier.comparison import Comparison
from unifier.config import check_settings, convert, describe
from unifier.config import experiment as find
from unifier.data.dataloader import collate
from unifier.data.dataset import split_of
from unifier.data.encoding import Encoded, encode_split
from unifier.data.source import BadExamples, Example, name_of, readable
from unifier.experiment import Arm, Experiment, check_seed
from unifier.network import Network
from unifier.training.cost import count_parameters
from unifier.trials.plan import first_varied, trial_settings
from unifier_tokenizers import InputError


def show(reference: str, settings: Mapping[str, Any], *, seed: Any) -> None:
    """Print, for each arm of what FILE[:name] describes, the first training example's shape at every stop.

    Of a comparison, with the first value of each setting that varies, and what it varies between.
    """
    function = find(reference)
    torch.manual_seed(check_seed(convert("seed", seed, int)))
    described = describe(function, check_settings(function, settings), get_type_hints(function)["return"])
    if isinstance(described, Comparison):
        print(f"comparison {described.name}: seeds {', '.join(map(str, described.seeds))}")
        for name, values in described.vary.items():
            print(f"  varies {name} ({len(values)}): {', '.join(map(str, values))}; {name}={values[0]} is shown")
        for one in described.experiments:
            own = check_settings(one, trial_settings(described, one, first_varied(described)))
            show_experiment(describe(one, own, Experiment))
    else:
        show_experiment(described)


def show_experiment(experiment: Experiment) -> None:
    """Print one experiment's stops and parameters."""
    network = Network(experiment).eval()  # here, so that it refuses what a run would
    print(f"experiment {experiment.name}")
    for name, arm in experiment.arms.items():
        example, encoded = first_of(arm, experiment.training.bad_examples)
        batch = collate(encoded, [0])
        with torch.no_grad():
            tokens = arm.embed(batch)
            read = arm.head.read(network.trunk, tokens)
            loss = arm.head.loss(read, batch.target)
        stops = {
            "input": _brief(example.input),
            "target": _brief(example.target),
            "values (..., N)": shape(encoded.units(0).values),
            "positions (A, N)": shape(encoded.units(0).positions),
            "matrix (B, D, N)": shape(tokens.matrix),
            f"trunk: {type(experiment.trunk).__name__}": shape(read.matrix),
            f"target: {type(arm.head).__name__}": shape(batch.target),
            "loss, untrained": f"{loss.item():.3f}",
        }
        print(f"  arm {name}: {name_of(arm.source)}")
        for stop, said in stops.items():
            print(f"    {stop:26} {said}")
    counts = count_parameters(experiment)
    print("  parameters " + ", ".join(f"{part} {count:,}" for part, count in counts.items()))


def first_of(arm: Arm, bad_examples: BadExamples) -> tuple[Example, Encoded]:
    """The first training example, raw and encoded; where bad ones are left out, the first that can be encoded."""
    why: InputError | None = None
    for example in readable(split_of(arm.source, "train"), bad_examples=bad_examples):
        try:
            return example, encode_split([example], arm.tokenizer, arm.head, said=name_of(arm.source))[0]
        except InputError as error:
            if bad_examples == "stop":
                raise
            why = why or error
    raise why or InputError(f"{name_of(arm.source)}: none of the examples to train on can be read")


def shape(tensor: torch.Tensor) -> str:
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
