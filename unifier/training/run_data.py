"""The data of a run: encoded splits, checks of the targets, and the batches of training and evaluation."""

from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, replace
from pathlib import Path

from unifier.data.dataloader import BudgetUnit, Objective, TrainDataLoader
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, concat
from unifier.data.prepare import EncodedTask, prepare_task
from unifier.data.source import SPLITS, SplitName, check_direction, describe_example, name_of, target_of
from unifier.experiment import Experiment, Training
from unifier.training.lightning_module import UnifierModule
from unifier.training.parallel import check_batch_size, compute_once
from unifier.training.result import DivergedError
from unifier_tokenizers import InputError

EVALUATION_FACTOR = 4
"""Ratio of the batch size in evaluation to the batch size in training. Evaluation stores no gradients."""


def encode_tasks(experiment: Experiment, known: MutableMapping[str, EncodedTask]) -> dict[str, EncodedTask]:
    """Return all encoded tasks of an experiment. Tasks that are not in `known` are encoded and added to `known`.

    Raises InputError for an example that cannot be encoded.
    """
    training = experiment.training
    new_tasks = {name: task for name, task in experiment.tasks.items() if name not in known}
    for task in new_tasks.values():
        if (score_range := task.resolved_score_range) is not None:  # Check before encoding, which may take hours.
            check_direction(name_of(task.source), score_range, task.head.lower_is_better)
    for name, task in new_tasks.items():
        encoded = compute_once(
            lambda task=task: prepare_task(
                task.source,
                task.tokenizer,
                task.head,
                task.objective,
                bad_examples=training.bad_examples,
                num_workers=training.num_workers,
            )
        )
        score_range = task.resolved_score_range
        described = {**encoded.data, "score_range": score_range and asdict(score_range)}
        known[name] = replace(encoded, data=described)
    return {name: known[name] for name in experiment.tasks}


def objectives_of(experiment: Experiment) -> dict[str, Objective]:
    """Return a mapping from each task with an objective to the objective."""
    return {name: task.objective for name, task in experiment.tasks.items() if task.objective is not None}


def stream_tasks(experiment: Experiment) -> list[str]:
    """Return the tasks whose head has a memory."""
    return [name for name, task in experiment.tasks.items() if task.head.memory]


def check_targets(experiment: Experiment, encoded: Mapping[str, EncodedTask]) -> None:
    """Raise InputError if the head of a task cannot compute scores on a split that the run evaluates."""
    for name, task in experiment.tasks.items():
        for split in SPLITS[2 if experiment.training.refit else 1 :]:
            examples = open_split(task.source, split)
            try:
                task.head.check_targets(
                    target_of(examples, index) for index in encoded[name].splits[split].indices.tolist()
                )
            except InputError as error:
                raise InputError(f"{name_of(task.source)}, {split}: {error}") from error


def select_splits(training: Training, encoded: Mapping[str, EncodedTask]) -> dict[SplitName, dict[str, EncodedSplit]]:
    """Return the three splits of all tasks. With `refit`, the training split includes the validation split."""
    splits: dict[SplitName, dict[str, EncodedSplit]] = {
        split: {task: data.splits[split] for task, data in encoded.items()} for split in SPLITS
    }
    if training.refit:
        splits["train"] = {task: concat(split, splits["val"][task]) for task, split in splits["train"].items()}
    return splits


def plan_batches(
    experiment: Experiment,
    model: UnifierModule,
    train: Mapping[str, EncodedSplit],
    seed: int,
    done: int | None,
    resume: Path | None,
) -> TrainDataLoader:
    """Create the training batches of the run, and set the model's number of steps.

    Raises InputError if a resumed run has already made more steps than its budget allows.
    """
    training = experiment.training
    model.prepare(train)
    batches = TrainDataLoader(
        train,
        max_tokens=training.batch_tokens,
        seed=seed,
        budget=budget_in_batches(training),
        costs=model.costs,
        temperature=training.sampling_temperature,
        augment={name: task.augmentation for name, task in experiment.tasks.items() if task.augmentation is not None},
        objectives=objectives_of(experiment),
        streams=stream_tasks(experiment),
        grad_accumulation=training.grad_accumulation,
    )
    check_batch_size(batches)
    steps = total_steps(training, batches)
    if done and steps and done > steps:
        raise InputError(
            f"{resume}: the run is at step {done:,}, but {experiment.name} now ends at {steps:,}: start a new run"
        )
    model.planned_steps = steps or model.planned_steps
    return batches


def budget_in_batches(training: Training) -> dict[BudgetUnit, float]:
    """Return the budget with optimizer steps converted to batches."""
    return {
        unit: amount * (training.grad_accumulation if unit == "steps" else 1)
        for unit, amount in training.budget.items()
    }


def total_steps(training: Training, batches: TrainDataLoader) -> int | None:
    """Return the number of optimizer steps, or None for a budget in seconds."""
    return None if batches.num_batches is None else batches.num_batches // training.grad_accumulation


def explain_divergence(
    error: DivergedError, experiment: Experiment, encoded: Mapping[str, EncodedTask]
) -> DivergedError:
    """Add the likely cause to an error: an example with NaN or infinity, else the learning rate."""
    trained = SPLITS[: 2 if experiment.training.refit else 1]
    for name, task in experiment.tasks.items():
        for split in trained:
            if (index := find_nonfinite(encoded[name].splits[split])) is not None:
                example = describe_example(open_split(task.source, split), index)
                return DivergedError(
                    f'{error}: task "{name}", {split} split, {example} contains NaN or infinity: '
                    "correct or remove the example"
                )
    return DivergedError(f"{error}: try a lower learning_rate or a longer warm-up")


def find_nonfinite(split: EncodedSplit) -> int | None:
    """Return the index of the first example with NaN or infinity in its values or target, or None."""
    for row, index in enumerate(split.indices.tolist()):
        tensors = (split.values[row], split.target(row))
        if not any(tensor.is_floating_point() for tensor in tensors):
            return None  # All examples of a split have equal dtypes.
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            return index
    return None
