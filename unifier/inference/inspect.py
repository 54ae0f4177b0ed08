"""Tensor shapes, parameter counts and the estimated training time of an experiment before training."""

import math
import reprlib
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, get_type_hints

import torch
from torch.utils.flop_counter import FlopCounterMode

from unifier.comparison import Comparison
from unifier.config import build_comparison, build_described, check_settings, load_experiment, parse_setting
from unifier.data.dataloader import Batch, apply_objective, collate, planned_lengths
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.source import BadExamples, Example, name_of, readable_examples
from unifier.experiment import Experiment, Task, Training, check_seed
from unifier.files import format_duration
from unifier.network import Network
from unifier.nn.precision import default_device, has_fast_bfloat16
from unifier.training.cost import count_parameters
from unifier.training.optimizers import create_optimizer
from unifier.trials.plan import experiment_settings, first_varied
from unifier_tokenizers import InputError

MAX_MEASURE_SECONDS = 4.0
"""The training time is not estimated if the measurement would take longer than this many seconds."""
SMALL_BATCH_DIVISOR = 16
"""The size of a full batch, divided by the size of a small batch whose time predicts the time of a full batch."""


def show(reference: str, settings: Mapping[str, Any], *, seed: Any) -> None:
    """Print shapes, parameters and the estimated time of an experiment, or of each experiment of a comparison.

    A comparison is shown with the first value of each varied setting.

    Args:
        reference: FILE[:name] of the experiment or the comparison.
        settings: A mapping from setting to value. A text is converted to the type of the setting.
        seed: The seed of the random initial weights.
    """
    function = load_experiment(reference)
    torch.manual_seed(check_seed(parse_setting("seed", seed, int)))
    if get_type_hints(function)["return"] is not Comparison:
        show_experiment(build_described(function, check_settings(function, settings), Experiment))
        return
    comparison, _ = build_comparison(function, settings)
    print(f"comparison {comparison.name}: seeds {', '.join(map(str, comparison.seeds))}")
    for name, values in comparison.grid.items():
        print(f"  varies {name} ({len(values)}): {', '.join(map(str, values))}; {name}={values[0]} is shown")
    for make in comparison.experiments:
        values = experiment_settings(comparison, make, first_varied(comparison))
        show_experiment(build_described(make, values, Experiment))


def show_experiment(experiment: Experiment) -> None:
    """Print the shape of the first training example at each stage, the parameters and the estimated time."""
    network = Network.from_experiment(experiment).eval()  # The constructor raises InputError for wrong settings.
    splits: dict[str, EncodedSplit] = {}
    print(f"experiment {experiment.name}")
    for name, task in experiment.tasks.items():
        example, splits[name] = first_readable(task, experiment.training.bad_examples)
        batch = objective_batch(task, collate(splits[name], [0]))
        with torch.no_grad():
            tokens = batch.embed(task.tokenizer)
            output = task.head.run_trunk(network.trunk, tokens)
            loss = task.head.loss(output, batch.target)
        stages = {
            "input": _brief(example.input),
            "target": _brief(example.target),
            "values (..., N)": format_shape(splits[name].units(0).values),
            "positions (A, N)": format_shape(splits[name].units(0).positions),
            "matrix (B, D, N)": format_shape(tokens.matrix),
            f"trunk: {type(experiment.trunk).__name__}": format_shape(output.matrix),
            f"target: {type(task.head).__name__}": format_shape(batch.target),
            "loss, untrained": f"{loss.item():.3f}",
        }
        width = max(26, *map(len, stages))
        print(f"  task {name}: {name_of(task.source)}")
        for stage, text in stages.items():
            print(f"    {stage:{width}} {text}")
    counts = count_parameters(experiment)
    print("  parameters " + ", ".join(f"{part} {count:,}" for part, count in counts.items()))
    with suppress(Exception):  # If a training step fails, no estimate is printed.
        if (line := estimate_training(experiment, network, splits)) is not None:
            print(f"  {line}")


def objective_batch(task: Task, batch: Batch) -> Batch:
    """Return a batch with the targets of the task's objective, or unchanged if the task has no objective."""
    return batch if task.objective is None else apply_objective(task.objective, batch)


def first_readable(task: Task, bad_examples: BadExamples) -> tuple[Example, EncodedSplit]:
    """Return the first readable training example, raw and encoded.

    Raises:
        InputError: `bad_examples` is "stop" and the first example is unreadable, or all examples are unreadable.
    """
    first_error: InputError | None = None
    for example in readable_examples(open_split(task.source, "train"), bad_examples=bad_examples):
        try:
            check = task.objective and task.objective.check
            desc = name_of(task.source)
            return example, encode_split([example], task.tokenizer, task.head, check=check, desc=desc)[0]
        except InputError as error:
            if bad_examples == "stop":
                raise
            first_error = first_error or error
    raise first_error or InputError(f"{name_of(task.source)}: all training examples are unreadable")


def estimate_training(experiment: Experiment, network: Network, splits: Mapping[str, EncodedSplit]) -> str | None:
    """Estimate the training time from one step of each task, on a batch of copies of the task's first example.

    The estimate excludes augmentation, validation and padding. The steps change the network's weights.

    Args:
        experiment: The experiment.
        network: The network of the experiment.
        splits: The first training example of each task.

    Returns:
        A line of text, or None if the measurement would take more than `MAX_MEASURE_SECONDS`.
    """
    training = experiment.training
    if training.seconds is not None:
        return f"training takes {format_duration(training.seconds)}, as set by seconds={training.seconds:g}"
    start = time.perf_counter()
    device = torch.device(default_device())
    network.to(device).train()
    optimizer = create_optimizer(training, network, network.trunk)
    lengths = {
        name: int(planned_lengths(split, None, experiment.tasks[name].objective)[0].max())
        for name, split in splits.items()
    }
    seconds, flops = 0.0, 0.0
    for name, split in splits.items():
        count = max(training.batch_tokens // lengths[name], 1)
        num_small = math.ceil(count / SMALL_BATCH_DIVISOR)
        single, small, batch = (
            objective_batch(experiment.tasks[name], collate(split, [0] * n)).to(device) for n in (1, num_small, count)
        )
        with FlopCounterMode(display=False) as counter:  # The first step warms up the device.
            _time_step(network, optimizer, name, single, training)
        flops += counter.get_total_flops() * count
        small_seconds = _time_step(network, optimizer, name, small, training)
        if time.perf_counter() - start + small_seconds * count / num_small > MAX_MEASURE_SECONDS:
            return None
        seconds += _time_step(network, optimizer, name, batch, training)
    per_step = training.grad_accumulation / len(splits)
    steps = _count_steps(experiment, lengths, flops * per_step)
    duration = format_duration(steps * seconds * per_step)
    return f"training takes about {duration} on this machine: {steps:,} steps of {seconds * per_step:.3g} s"


def _time_step(
    network: Network, optimizer: torch.optim.Optimizer, task: str, batch: Batch, training: Training
) -> float:
    """Return the seconds that a forward pass, a backward pass and an optimizer step take together."""
    device = batch.mask.device
    bf16 = training.precision == "bf16" and has_fast_bfloat16(device.type)
    start = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        loss = network.loss(task, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _count_steps(experiment: Experiment, lengths: Mapping[str, int], flops_per_step: float) -> int:
    """Estimate the number of steps of a run, assuming that all examples have the length of the first example."""
    training = experiment.training
    tokens_per_step = training.batch_tokens * training.grad_accumulation
    tokens_per_epoch = sum(
        len(open_split(task.source, "train")) * lengths[name] for name, task in experiment.tasks.items()
    )
    steps = {
        "steps": lambda amount: amount,
        "tokens": lambda amount: amount / tokens_per_step,
        "flops": lambda amount: amount / flops_per_step,
        "epochs": lambda amount: amount * tokens_per_epoch / tokens_per_step,
    }
    return math.ceil(min(steps[unit](amount) for unit, amount in training.budget.items()))


def format_shape(tensor: torch.Tensor) -> str:
    """Format a tensor's shape and data type, such as "16 x 4 uint8"."""
    return f"{' x '.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"


def _brief(raw: Any) -> str:
    """Return a short description of a raw value. Arrays are described by their shape."""
    if isinstance(raw, str):
        return repr(raw)
    shape = getattr(getattr(raw, "waveform", raw), "shape", None)
    if shape is None:
        return reprlib.repr(raw)
    rate = f" at {raw.sample_rate} Hz" if hasattr(raw, "sample_rate") else ""
    return f"{type(raw).__name__} {' x '.join(map(str, shape))}{rate}"
