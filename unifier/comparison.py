"""What is compared: experiments under the same settings, seeds and budget, and which of their trunks are shared."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final, get_args

import numpy as np

from unifier.experiment import Experiment, LossWeighting, Trainable, check_name, check_seed
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

Mode = Literal["solo", "joint", "transfer"]
"""Each experiment on its own trunk; all on one; each on a trunk that another one has trained."""


MatchUnit = Literal["tokens", "flops", "steps", "seconds", "epochs"]


ExperimentFn = Callable[..., Experiment]


TrialRow = Mapping[str, Any]
"""A row of comparison.json: of one task of one trial."""


TRIAL_KEYS = ("experiment", "seed", "mode", "start", "shuffled", "trainable", "varied")
"""What no two trials have all in common, in a row."""


SHARE = "share"
"""The name, in `Comparison.vary`, of the share of the training split that is trained on."""


@final
@dataclass(frozen=True)
class Comparison:
    """Experiments run one after the other, each once for every seed, under the same settings and budget."""

    name: str
    experiments: Sequence[ExperimentFn]
    """Functions whose keyword arguments are their settings; two of one name would write over each other's rows."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Shared by all: each experiment has a setting of each of these names."""
    seeds: Sequence[int] = (0,)
    modes: Sequence[Mode] = ("solo",)
    """"joint" needs trunks of one shape and make, and the same training but for budgets. "transfer" trains every
    experiment on each other one's trained trunk, once for each of `tuned`, beside two controls: that trunk with the
    entries within each tensor shuffled, and a random trunk. Where all of it is trained, the latter is the solo run."""
    sampling_temperature: float = math.inf
    """How tasks trained together share their budgets, as `Training.temperature` says; equal shares are those of solo."""
    loss_weighting: LossWeighting = "fixed"
    """How the losses of tasks trained together are weighted, as `Training.weighting` says."""
    trainable: Sequence[Trainable] = ("none", "norms", "all")
    """What of a transferred trunk is trained."""
    budget_unit: MatchUnit = "tokens"
    """The unit of the budget at which each task stops, the same for all."""
    budget: float | None = None
    """That budget for each task; None takes the experiments' own, which must agree."""
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    """Settings tried with each of several values, all with all; each experiment varies those that it has. "share"
    trains on nested shares of the training split; a vocabulary, mean and spread are still learned of all of it."""
    search: int | None = None
    """How many of each experiment's combinations of `vary` are tried, chosen by validation scores so far (Optuna); None
    tries all."""
    question: str = ""
    """What it is to answer, in a sentence for the report."""

    def __post_init__(self) -> None:
        check_name(self.name)
        # numpy's arrays and numbers as Python's, or a file would say "8"
        object.__setattr__(self, "seeds", [to_python(seed) for seed in self.seeds])
        varied = {name: [to_python(value) for value in values] for name, values in self.grid.items()}
        object.__setattr__(self, "grid", varied)
        if odd := [one for one in self.experiments if not inspect.isfunction(one)]:
            raise InputError(f'the comparison "{self.name}" holds {odd[0]!r}, which is no function')
        names = [function.__name__ for function in self.experiments]
        if not names or not self.seeds or not self.modes:
            raise InputError(f'the comparison "{self.name}" needs an experiment and a seed, and a mode')
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f'the comparison "{self.name}" names an experiment or a seed twice: {names}, {self.seeds}')
        for seed in self.seeds:
            check_seed(seed)
        for mode in self.modes:
            if check_choice("mode", mode, get_args(Mode)) != "solo" and len(names) < 2:
                raise InputError(f'"{mode}" needs two experiments or more: "{self.name}" has {names[0]} alone')
        called = ["random", *names, *(f"{name}_shuffled" for name in names)]
        if "transfer" in self.modes and (two := next((one for one in called if called.count(one) > 1), None)):
            raise InputError(f'"{two}" is a control of the transfers of "{self.name}" too: rename that experiment')
        for tuned in self.trainable:
            check_choice("trainable", tuned, get_args(Trainable))
        check_choice("budget_unit", self.budget_unit, get_args(MatchUnit))
        for name, usual in (("sampling_temperature", math.inf), ("loss_weighting", "fixed")):
            if "joint" not in self.modes and (given := getattr(self, name)) != usual:
                raise InputError(
                    f'{name}={given} is of tasks trained together: give "{self.name}" the mode "joint" too'
                )
        known = {name for function in self.experiments for name in inspect.signature(function).parameters}
        for name, values in self.grid.items():
            if name != SHARE and name not in known:
                raise InputError(f"no experiment of \"{self.name}\" has the setting '{name}' that it varies")
            if name in get_args(MatchUnit) and (name != self.budget_unit or self.budget is not None):
                most = "each experiment's own" if self.budget is None else f"{self.budget:,.0f}"
                raise InputError(
                    f"'{name}' varies, and every task stops at {most} {self.budget_unit} whatever it is: "
                    f"match {name}, and leave the budget out"
                )
            if name == SHARE and SHARE in known:
                raise InputError(
                    f"'{SHARE}' varies, which is the share of the examples, and is a setting of an experiment too: "
                    "give that another name"
                )
            if not values or name in self.settings:
                raise InputError(f"'{name}' varies over {list(values)}: give it values here, and none in the settings")
        if self.search is not None and (self.search < 1 or not self.grid or tuple(self.modes) != ("solo",)):
            raise InputError(f"search={self.search}: a search tries at least one combination of `vary`, in mode solo")


def to_python(value: Any) -> Any:
    """A number of numpy's as one of Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value
