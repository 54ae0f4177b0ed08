"""Several experiments' arms on one trunk, and the same budget for each arm of all.

Transfer: which trunk an experiment starts from, and which part of it is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import torch
from torch import Tensor

from unifier.comparison import Match
from unifier.experiment import PARTS, Arm, Experiment, Training, Tuned, parts_of
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError

UNITS: tuple[Match, ...] = get_args(Match)


def together(parts: Sequence[Experiment]) -> Experiment:
    """All arms on the first one's trunk, with all their budgets; a step reads as many batches as theirs together.

    With equal shares and batches of one size that is a batch of each, and every arm has as many steps as alone.

    Raises InputError where two arms bear one name, the trunks are of different shapes or makes, or the experiments
    train in different ways, naming both.
    """
    first, arms = parts[0], dict[str, Arm]()
    for part in parts:
        for name, arm in part.arms.items():
            if name in arms:
                raise InputError(f'joint: {part.name} has an arm "{name}", as another experiment has')
            arms[name] = arm
        here, there = ({n: t.shape for n, t in one.trunk.state_dict().items()} for one in (first, part))
        if here != there:
            raise InputError(f"joint: the trunks of {first.name} and {part.name} are of different shapes")
        here, there = makes_of(first.trunk), makes_of(part.trunk)
        for name in here | there:
            if here.get(name) != there.get(name):
                raise InputError(
                    f"joint: the trunks differ: {name} is {here.get(name)} in {first.name} and {there.get(name)} in "
                    f"{part.name}"
                )
        for setting in fields(Training):
            own, other = (getattr(one.training, setting.name) for one in (first, part))
            if setting.name not in UNITS and own != other:
                raise InputError(
                    f"joint: {setting.name} is {own} in {first.name} and {other} in {part.name}: "
                    f"give the comparison one for all"
                )
    budgets = {unit: [getattr(part.training, unit) for part in parts] for unit in UNITS}
    whole = {unit: None if None in amounts else sum(amounts) for unit, amounts in budgets.items()}
    if whole["steps"] is not None:
        if first.training.accumulate > 1 and any(len(part.arms) > 1 for part in parts):
            raise InputError("joint: steps of several batches, of experiments with several arms: match tokens or FLOPs")
        whole["steps"] = round(whole["steps"] / len(parts))
    training = replace(first.training, accumulate=first.training.accumulate * len(parts), **whole)
    return Experiment("joint", first.trunk, arms, training)


def makes_of(trunk: Trunk) -> dict[str, Any]:
    """All that a trunk computes by but its weights: heads, dropout, rotation, by the place and name of each."""
    found: dict[str, Any] = {}
    for place, module in trunk.named_modules():
        found[f"{place} kind".strip()] = type(module).__name__
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str) and name != "training":
                found[f"{place}.{name}".strip(".")] = value
    return found


def budget_of_arm(experiment: Experiment, unit: Match) -> float:
    """What each of its arms may use; raises InputError where its budget is in other units."""
    amount = getattr(experiment.training, unit)
    if amount is None:
        raise InputError(
            f"{experiment.name} has no budget in {unit}: give the comparison a budget, or match another unit"
        )
    return amount / arms_in(experiment, unit)


def limit(experiment: Experiment, unit: Match, amount: float) -> Experiment:
    """The experiment, stopping at that amount for each of its arms, and at nothing else."""
    whole = amount * arms_in(experiment, unit)
    budget = {**dict.fromkeys(UNITS), unit: round(whole) if unit in ("tokens", "steps") else whole}
    return replace(experiment, training=replace(experiment.training, **budget))


def arms_in(experiment: Experiment, unit: Match) -> float:
    """How many arms' budgets make that of the experiment: steps are shared by the arms that have batches in them."""
    arms = len(experiment.arms)
    return max(arms / experiment.training.accumulate, 1) if unit == "steps" else arms


def tune(experiment: Experiment, tuned: Tuned) -> Experiment:
    """The experiment, with the rest of its trunk frozen."""
    trained = {"none": (), "norms": ("norms",), "all": PARTS}[tuned]
    parts = parts_of(experiment.trunk)
    if tuned == "norms" and not parts["norms"]:
        raise InputError(f'tuned="norms": the trunk of "{experiment.name}" has no norms that learn: leave it out')
    frozen = tuple(part for part, parameters in parts.items() if parameters and part not in trained)
    training = experiment.training
    return replace(experiment, training=replace(training, frozen=tuple({*training.frozen, *frozen})))


def load_weights(trunk: Trunk, weights: Mapping[str, Tensor], *, start: str) -> None:
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
