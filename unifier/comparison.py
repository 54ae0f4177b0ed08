"""Comparison: the declaration of experiments that run with the same settings, seeds and budget."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final, get_args

import numpy as np

from unifier.experiment import Experiment, LossWeighting, Trainable, check_name, check_seed
from unifier.settings import list_settings
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

Mode = Literal["solo", "joint", "transfer"]
"""An experiment has its own trunk ("solo"), a shared trunk ("joint"), or another experiment's trunk ("transfer")."""

Control = Literal["random", "shuffled"]
"""A trunk that a transferred trunk is compared with: a random trunk, or the transferred trunk with permuted weights."""

TrialMode = Literal["solo", "joint", "transfer", "showcase"]
"""The mode of a trial. The run of `Comparison.showcase` has the mode "showcase"."""

MatchUnit = Literal["tokens", "flops", "steps", "seconds", "epochs"]

ExperimentFn = Callable[..., Experiment]

TrialRow = Mapping[str, Any]
"""A row of comparison.json. Each row describes one task of one trial."""

TRIAL_KEYS = ("experiment", "seed", "mode", "start", "shuffled", "trainable", "varied")
"""The keys of a row that together identify a trial of the comparison."""

SHARE = "share"
"""The key in `Comparison.grid` for the share of the training split that is used."""


@final
@dataclass(frozen=True)
class Comparison:
    """Experiments that run one after another, once per seed, with the same settings and budget."""

    name: str
    experiments: Sequence[ExperimentFn]
    """The functions that build the experiments. The names of the functions must be different."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of settings or setting groups. An experiment uses only the settings that the experiment has."""
    seeds: Sequence[int] = (0,)
    modes: Sequence[Mode] = ("solo",)
    """The kinds of trials, one or more of "solo", "joint" and "transfer".

    "joint" trains all experiments on one trunk. All trunks must have the same shape. The training settings may differ
    only in their budgets.

    "transfer" trains each experiment on the trained trunk of every other experiment, once for each value of
    `trainable`. The field `controls` lists the trunks that a transferred trunk is compared with.
    """
    sampling_temperature: float = math.inf
    """The sampling temperature of joint training (see `Training`). Infinity means that all tasks get equal shares."""
    loss_weighting: LossWeighting = "fixed"
    """The weighting of the losses in joint training (see `Training.loss_weighting`)."""
    trainable: Sequence[Trainable] = ("none", "norms", "all")
    """The parts of a transferred trunk that are trained. Each value of `trainable` is one condition."""
    transfers: Sequence[tuple[ExperimentFn, ExperimentFn]] | None = None
    """Pairs of (experiment that trains the trunk, experiment that starts from the trunk). None means all pairs."""
    controls: Sequence[Control] = ("random", "shuffled")
    """The trunks that each transferred trunk is compared with.

    "random" is an untrained trunk. If the whole trunk is trained, the solo run is the random control. "shuffled" is the
    transferred trunk after the entries of each tensor were permuted.
    """
    start_tokenizers: bool = True
    """Hand over the tokenizer with the transferred trunk, if class, shapes and vocabulary are equal."""
    count_pretraining: bool = True
    """Subtract the cost of a trained model from the budget of an experiment that starts from the model.

    False is marked on every table and figure of the report. The pretraining of a transferred trunk is never counted.
    """
    showcase: ExperimentFn | None = None
    """An experiment that is trained first, with its own settings, its own budget and the first seed.

    The report begins with the scores and examples of the showcase. The showcase is excluded from all comparisons.
    """
    budget_unit: MatchUnit = "tokens"
    """The unit of the budget after which the training of a task stops."""
    budget: float | None = None
    """The budget of each task. None means the experiments' own budgets, which must be equal."""
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    """The values to try for each setting, in all combinations. Each experiment varies only the settings that it has.

    The key "share" varies the share of the training split that is used. A smaller share is always a subset of a larger
    share. Vocabularies and normalization always use the whole training split.
    """
    search: int | None = None
    """The number of combinations of `grid` to try per experiment, chosen by Optuna. None means all combinations."""
    question: str = ""
    """The question that the comparison answers, as shown in the report."""

    def __post_init__(self) -> None:
        check_name(self.name)
        # JSON would store NumPy numbers as texts, so NumPy numbers are converted to Python numbers.
        object.__setattr__(self, "seeds", [to_python(seed) for seed in self.seeds])
        grid = {name: [to_python(value) for value in values] for name, values in self.grid.items()}
        object.__setattr__(self, "grid", grid)
        self._check_experiments()
        for seed in self.seeds:
            check_seed(seed)
        self._check_modes()
        check_choice("budget_unit", self.budget_unit, get_args(MatchUnit))
        self._check_settings()

    def _check_experiments(self) -> None:
        if odd := [each for each in self.experiments if not inspect.isfunction(each)]:
            raise InputError(f'the comparison "{self.name}" contains {odd[0]!r}, which is not a function')
        names = [function.__name__ for function in self.experiments]
        if not names or not self.seeds or not self.modes:
            raise InputError(f'the comparison "{self.name}" needs an experiment, a seed and a mode')
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f'the comparison "{self.name}" has an experiment or a seed twice: {names}, {self.seeds}')

    def _check_modes(self) -> None:
        names = [function.__name__ for function in self.experiments]
        for mode in self.modes:
            if check_choice("mode", mode, get_args(Mode)) != "solo" and len(names) < 2:
                raise InputError(f'"{mode}" needs two or more experiments, but "{self.name}" has {names[0]} alone')
        labels = ["random", *names, *(f"{name}_shuffled" for name in names)]
        if "transfer" in self.modes and (twice := next((each for each in labels if labels.count(each) > 1), None)):
            raise InputError(f'"{twice}" is also the name of a control in "{self.name}": rename the experiment')
        for start, make in self.transfers or ():
            if start is make or not {start, make} <= set(self.experiments):
                raise InputError(f"transfers: {start.__name__} to {make.__name__} is not a pair of two experiments")
        for trainable in self.trainable:
            check_choice("trainable", trainable, get_args(Trainable))
        for control in self.controls:
            check_choice("control", control, get_args(Control))
        for name, default in (("sampling_temperature", math.inf), ("loss_weighting", "fixed")):
            if "joint" not in self.modes and (value := getattr(self, name)) != default:
                raise InputError(f'{name}={value} needs joint training: add the mode "joint" to "{self.name}"')

    def _check_settings(self) -> None:
        settings = [setting for function in self.experiments for setting in list_settings(function).values()]
        known = {setting.name for setting in settings}
        if unknown := self.settings.keys() - known - {setting.parameter for setting in settings}:
            raise InputError(f"no experiment of \"{self.name}\" has the setting '{min(unknown)}'")
        for name, values in self.grid.items():
            if name != SHARE and name not in known:
                raise InputError(f"no experiment of \"{self.name}\" has the setting '{name}' that the grid varies")
            if name in get_args(MatchUnit) and (name != self.budget_unit or self.budget is not None):
                budget = "each experiment's own" if self.budget is None else f"{self.budget:,.0f}"
                raise InputError(
                    f"'{name}' varies without effect, because every task stops at {budget} {self.budget_unit}: "
                    f"give budget_unit={name}, and leave out the budget"
                )
            if name == SHARE and SHARE in known:
                raise InputError(
                    f"'{SHARE}' in a grid means the share of the training split, but an experiment has a setting of "
                    "this name: rename the setting"
                )
            if not values or name in self.settings:
                raise InputError(
                    f"'{name}' varies over {list(values)}: give values in the grid, and none in the settings"
                )
        if self.search is not None and (self.search < 1 or not self.grid or tuple(self.modes) != ("solo",)):
            raise InputError(f"search={self.search}: a search needs 1 or more combinations, a grid, and the mode solo")


def to_python(value: Any) -> Any:
    """Return a NumPy number as a Python number, and any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value
