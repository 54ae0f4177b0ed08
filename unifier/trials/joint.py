"""Joint training of several experiments on one trunk, with their budgets, and shuffled trunks for transfer."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import torch

from unifier.comparison import MatchUnit
from unifier.experiment import Experiment, Task, Training
from unifier.training.start import COSTS, earlier_models, pretraining_cost
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError

BUDGET_UNITS: tuple[MatchUnit, ...] = get_args(MatchUnit)


def merge_experiments(parts: Sequence[Experiment]) -> Experiment:
    """Merge several experiments into one experiment with one trunk and the sum of all budgets.

    The joint experiment uses the trunk of the first experiment. The number of batches per joint step is the total over
    all experiments. With equal sampling of the tasks, each task has the same number of steps as in its own experiment.

    Raises:
        InputError: Two tasks have the same name, the trunks differ, or the training settings differ.
    """
    first, tasks = parts[0], dict[str, Task]()
    for part in parts:
        for name, task in part.tasks.items():
            if name in tasks:
                raise InputError(f'joint: {part.name} and another experiment have a task "{name}": rename one task')
            tasks[name] = task
        _check_same_trunk(first, part)
        for setting in fields(Training):
            expected, value = (getattr(each.training, setting.name) for each in (first, part))
            if setting.name not in BUDGET_UNITS and expected != value:
                raise InputError(
                    f"joint: {setting.name} is {expected} in {first.name} and {value} in {part.name}: "
                    f"give all experiments the same value"
                )
    amounts = {unit: [getattr(part.training, unit) for part in parts] for unit in BUDGET_UNITS}
    budget = {unit: None if None in values else sum(values) for unit, values in amounts.items()}
    if budget["steps"] is not None:
        if first.training.grad_accumulation > 1 and any(len(part.tasks) > 1 for part in parts):
            raise InputError(
                "joint: with grad_accumulation over 1 and several tasks in an experiment, steps cannot be compared: "
                "give budget_unit=tokens or budget_unit=flops"
            )
        budget["steps"] = round(budget["steps"] / len(parts))
    batches_per_step = first.training.grad_accumulation * len(parts)
    training = replace(first.training, grad_accumulation=batches_per_step, **budget)
    return Experiment(first.trunk, tasks, training, name="joint")


def _check_same_trunk(first: Experiment, other: Experiment) -> None:
    shapes = [{name: tensor.shape for name, tensor in each.trunk.state_dict().items()} for each in (first, other)]
    if shapes[0] != shapes[1]:
        raise InputError(f"joint: the trunks of {first.name} and {other.name} have different shapes: use one trunk")
    expected, values = trunk_hyperparameters(first.trunk), trunk_hyperparameters(other.trunk)
    for name in expected | values:
        if expected.get(name) != values.get(name):
            raise InputError(
                f"joint: the trunks differ: {name} is {expected.get(name)} in {first.name} and {values.get(name)} in "
                f"{other.name}"
            )


def trunk_hyperparameters(trunk: Trunk) -> dict[str, Any]:
    """Return the class and the plain attributes of each module of a trunk, such as dropout rates.

    The attributes and the weights determine the computation of the trunk. The keys of the result are paths such as
    `blocks.0.attention.heads`.
    """
    hyperparameters: dict[str, Any] = {}
    for path, module in trunk.named_modules():
        hyperparameters[f"{path} kind".strip()] = type(module).__name__
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str) and name != "training":
                hyperparameters[f"{path}.{name}".strip(".")] = value
    return hyperparameters


def budget_per_task(experiment: Experiment, unit: MatchUnit) -> float:
    """Return the budget of each task in the given unit.

    Raises:
        InputError: The experiment has no budget in the given unit.
    """
    amount = getattr(experiment.training, unit)
    if amount is None:
        raise InputError(
            f"{experiment.name} has no budget in {unit}: give the comparison a budget or another budget_unit"
        )
    return amount / _task_budgets(experiment, unit)


def with_budget(experiment: Experiment, unit: MatchUnit, amount: float) -> Experiment:
    """Return a copy of the experiment with the budget `amount` for each task in the given unit."""
    total = amount * _task_budgets(experiment, unit)
    budget = {**dict.fromkeys(BUDGET_UNITS), unit: round(total) if unit in ("tokens", "steps") else total}
    return replace(experiment, training=replace(experiment.training, **budget))


def subtract_pretraining(experiment: Experiment, unit: MatchUnit) -> Experiment:
    """Return a copy of the experiment whose budget is smaller by the cost of the trained models that it uses.

    An experiment without a trained model, as start or as teacher, is returned unchanged.

    Raises:
        InputError: The cost of a trained model is unknown in the given unit, or the budget is not larger.
    """
    training, models = experiment.training, earlier_models(experiment)
    if not models:
        return experiment
    uses = ", ".join(model.use for model in models)
    way_out = "or give the comparison count_pretraining=False"
    if unit not in COSTS:
        raise InputError(
            f"{uses}: the cost of a trained model is not known in {unit}: "
            f"give budget_unit={', '.join(COSTS)}, {way_out}"
        )
    cost, budget = pretraining_cost(models)[unit], getattr(training, unit)
    for model in models:
        if not model.facts.get("budget"):
            raise InputError(f"{model.use}: the model's folder has no record of its cost: use another model, {way_out}")
    if cost >= budget:
        raise InputError(
            f"{uses}: the pretraining took {cost:,.0f} {unit}, and the budget is {budget:,.0f}: give a larger budget, "
            f"{way_out}"
        )
    return replace(experiment, training=replace(training, **{unit: budget - cost}))


def _task_budgets(experiment: Experiment, unit: MatchUnit) -> float:
    """Return the ratio of the experiment's budget to the budget of one task. Tasks may share steps, but not tokens."""
    count = len(experiment.tasks)
    return max(count / experiment.training.grad_accumulation, 1) if unit == "steps" else count


def shuffle(trunk: Trunk, seed: int) -> None:
    """Permute the entries within each weight tensor of a trunk.

    The permutation preserves the distribution of weight values, but destroys the learned function. The running means
    and variances of batch norms are also permuted.
    """
    generator = torch.Generator().manual_seed(seed)
    buffers = (buffer for buffer in trunk.buffers() if buffer.is_floating_point())
    with torch.no_grad():
        for tensor in (*trunk.parameters(), *buffers):
            order = torch.randperm(tensor.numel(), generator=generator)
            tensor.copy_(tensor.flatten()[order].view_as(tensor))
