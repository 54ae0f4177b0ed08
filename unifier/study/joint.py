"""Several experiments' arms on one trunk, and the same budget for each arm of all."""

from collections.abc import Sequence
from dataclasses import fields, replace

from unifier.study.comparison import Match
from unifier.study.experiment import Arm, Experiment, Training
from unifier_tokenizers import InputError

UNITS: tuple[Match, ...] = ("tokens", "flops", "steps", "seconds")


def together(parts: Sequence[Experiment]) -> Experiment:
    """All arms on the first one's trunk, with all their budgets.

    Raises InputError where two arms bear one name, the trunks are of different shapes, or the experiments train in
    different ways, naming both.
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
        for setting in fields(Training):
            own, other = (getattr(one.training, setting.name) for one in (first, part))
            if setting.name not in UNITS and own != other:
                raise InputError(
                    f"joint: {setting.name} is {own} in {first.name} and {other} in {part.name}: "
                    f"give the comparison one for all"
                )
    budgets = {unit: [getattr(part.training, unit) for part in parts] for unit in UNITS}
    whole = {unit: None if None in amounts else sum(amounts) for unit, amounts in budgets.items()}
    tags = dict.fromkeys(tag for part in parts for tag in part.tags)
    return Experiment("joint", first.trunk, arms, replace(first.training, **whole), tuple(tags))


def budget_of_arm(experiment: Experiment, unit: Match) -> float:
    """What each of its arms may use; raises InputError where its budget is in other units."""
    amount = getattr(experiment.training, unit)
    if amount is None:
        raise InputError(
            f"{experiment.name} has no budget in {unit}: give the comparison a budget, or match another unit"
        )
    return amount / len(experiment.arms)


def limit(experiment: Experiment, unit: Match, amount: float) -> Experiment:
    """The experiment, stopping at that amount for each of its arms, and at nothing else."""
    whole = amount * len(experiment.arms)
    budget = {**dict.fromkeys(UNITS), unit: round(whole) if unit in ("tokens", "steps") else whole}
    return replace(experiment, training=replace(experiment.training, **budget))
