"""Several experiments' tasks on one trunk, and the same budget for each task of all.

Transfer: which trunk an experiment starts from, and which part of it is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import torch
from torch import Tensor

from unifier.comparison import MatchUnit
from unifier.experiment import PARTS, Experiment, Task, Trainable, Training, trunk_parts
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError

BUDGET_UNITS: tuple[MatchUnit, ...] = get_args(MatchUnit)


def merge_experiments(parts: Sequence[Experiment]) -> Experiment:
    """All tasks on the first one's trunk, with all their budgets; a step reads as many batches as theirs together.

    With equal shares and batches of one size that is a batch of each, and every task has as many steps as alone.

    Raises InputError where two tasks bear one name, the trunks are of different shapes or makes, or the experiments
    train in different ways, naming both.
    """
    first, tasks = parts[0], dict[str, Task]()
    for part in parts:
        for name, task in part.tasks.items():
            if name in tasks:
                raise InputError(f'joint: {part.name} has an task "{name}", as another experiment has')
            tasks[name] = task
        here, there = ({n: t.shape for n, t in one.trunk.state_dict().items()} for one in (first, part))
        if here != there:
            raise InputError(f"joint: the trunks of {first.name} and {part.name} are of different shapes")
        here, there = trunk_hyperparameters(first.trunk), trunk_hyperparameters(part.trunk)
        for name in here | there:
            if here.get(name) != there.get(name):
                raise InputError(
                    f"joint: the trunks differ: {name} is {here.get(name)} in {first.name} and {there.get(name)} in "
                    f"{part.name}"
                )
        for setting in fields(Training):
            own, other = (getattr(one.training, setting.name) for one in (first, part))
            if setting.name not in BUDGET_UNITS and own != other:
                raise InputError(
                    f"joint: {setting.name} is {own} in {first.name} and {other} in {part.name}: "
                    f"give the comparison one for all"
                )
    budgets = {unit: [getattr(part.training, unit) for part in parts] for unit in BUDGET_UNITS}
    whole = {unit: None if None in amounts else sum(amounts) for unit, amounts in budgets.items()}
    if whole["steps"] is not None:
        if first.training.grad_accumulation > 1 and any(len(part.tasks) > 1 for part in parts):
            raise InputError(
                "joint: steps of several batches, of experiments with several tasks: match tokens or FLOPs"
            )
        whole["steps"] = round(whole["steps"] / len(parts))
    training = replace(first.training, grad_accumulation=first.training.grad_accumulation * len(parts), **whole)
    return Experiment(first.trunk, tasks, training, name="joint")


def trunk_hyperparameters(trunk: Trunk) -> dict[str, Any]:
    """All that a trunk computes by but its weights: heads, dropout, rotation, by the place and name of each."""
    found: dict[str, Any] = {}
    for place, module in trunk.named_modules():
        found[f"{place} kind".strip()] = type(module).__name__
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str) and name != "training":
                found[f"{place}.{name}".strip(".")] = value
    return found


def budget_per_task(experiment: Experiment, unit: MatchUnit) -> float:
    """What each of its tasks may use; raises InputError where its budget is in other units."""
    amount = getattr(experiment.training, unit)
    if amount is None:
        raise InputError(
            f"{experiment.name} has no budget in {unit}: give the comparison a budget, or match another unit"
        )
    return amount / task_shares(experiment, unit)


def with_budget(experiment: Experiment, unit: MatchUnit, amount: float) -> Experiment:
    """The experiment, stopping at that amount for each of its tasks, and at nothing else."""
    whole = amount * task_shares(experiment, unit)
    budget = {**dict.fromkeys(BUDGET_UNITS), unit: round(whole) if unit in ("tokens", "steps") else whole}
    return replace(experiment, training=replace(experiment.training, **budget))


def task_shares(experiment: Experiment, unit: MatchUnit) -> float:
    """How many tasks' budgets make that of the experiment: steps are shared by the tasks that have batches in them."""
    tasks = len(experiment.tasks)
    return max(tasks / experiment.training.grad_accumulation, 1) if unit == "steps" else tasks


def with_trainable(experiment: Experiment, tuned: Trainable) -> Experiment:
    """The experiment, with the rest of its trunk frozen."""
    trained = {"none": (), "norms": ("norms",), "all": PARTS}[tuned]
    parts = trunk_parts(experiment.trunk)
    if tuned == "norms" and not parts["norms"]:
        raise InputError(f'trainable="norms": the trunk of "{experiment.name}" has no norms that learn: leave it out')
    frozen = tuple(part for part, parameters in parts.items() if parameters and part not in trained)
    training = experiment.training
    return replace(experiment, training=replace(training, frozen=tuple({*training.frozen, *frozen})))


def load_trunk(trunk: Trunk, weights: Mapping[str, Tensor], *, start: str) -> None:
    """Give a trunk the weights of the experiment `start`'s; raises InputError where they are of another shape."""
    own = {name: tensor.shape for name, tensor in trunk.state_dict().items()}
    if own != {name: tensor.shape for name, tensor in weights.items()}:
        raise InputError(f"the trunk of {start} has another shape than this one: give the comparison one dim and depth")
    trunk.load_state_dict(weights)


def shuffle(trunk: Trunk, seed: int) -> None:
    """Permute the entries within each tensor: this keeps the distribution of values and destroys what was learned.

    A norm's running means and variances are permuted too.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in (*trunk.parameters(), *(buffer for buffer in trunk.buffers() if buffer.is_floating_point())):
            order = torch.randperm(weights.numel(), generator=generator)
            weights.copy_(weights.flatten()[order].view_as(weights))
