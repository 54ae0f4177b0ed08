"""Comparison: the declaration of experiments that run under the same settings, seeds and budget."""

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
"""Each experiment on its own trunk; all on one trunk; each on a trunk that another experiment has trained."""

TrialMode = Literal["solo", "joint", "transfer", "showcase"]
"""A mode, or the only run of `Comparison.showcase`."""

MatchUnit = Literal["tokens", "flops", "steps", "seconds", "epochs"]

ExperimentFn = Callable[..., Experiment]

TrialRow = Mapping[str, Any]
"""A row of comparison.json: one task of one trial."""

TRIAL_KEYS = ("experiment", "seed", "mode", "start", "shuffled", "trainable", "varied")
"""The keys of a row that identify its trial within the comparison."""

SHARE = "share"
"""The name, in `Comparison.grid`, of the share of the training split that is used."""

TRIALS_FOLDER = "trials"
"""The folder, inside a comparison's, that holds the folders of its runs."""


@final
@dataclass(frozen=True)
class Comparison:
    """Experiments that run one after the other, once per seed, under the same settings and budget."""

    name: str
    experiments: Sequence[ExperimentFn]
    """Functions whose keyword arguments are their settings. Their names differ, because rows are found by name."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values shared by all experiments, by setting or by setting group; each experiment is given those that it has."""
    seeds: Sequence[int] = (0,)
    modes: Sequence[Mode] = ("solo",)
    """"joint" trains all experiments on one trunk. It needs trunks of one shape and equal training, except budgets.

    "transfer" trains each experiment on each other one's trained trunk, once for each of `trainable`. It adds two
    controls: that trunk with the entries of each tensor permuted, and a random trunk. With everything trainable, the
    random trunk is that of the solo run.
    """
    sampling_temperature: float = math.inf
    """How joint tasks share their budget, as in `Training.sampling_temperature`. Infinity gives solo's equal shares."""
    loss_weighting: LossWeighting = "fixed"
    """How the losses of joint tasks are weighted, as in `Training.loss_weighting`."""
    trainable: Sequence[Trainable] = ("none", "norms", "all")
    """The parts of a transferred trunk that train; each is a condition."""
    transfers: Sequence[tuple[ExperimentFn, ExperimentFn]] | None = None
    """The pairs of the mode "transfer": whose trunk is taken, and which experiment is trained on it. None is all."""
    showcase: ExperimentFn | None = None
    """An experiment that is trained first, with its own settings and budget and the first seed.

    The report opens with its scores and examples. It is part of no comparison.
    """
    budget_unit: MatchUnit = "tokens"
    """The unit of the budget at which each task stops."""
    budget: float | None = None
    """The budget of each task; None takes the experiments' own budgets, which must be equal."""
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    """Values to try by setting, in all combinations; each experiment varies the settings that it has.

    "share" trains on nested shares of the training split; vocabularies and normalization still use all of it.
    """
    search: int | None = None
    """The number of combinations of `grid` to try per experiment, chosen by validation scores (Optuna); None is all."""
    question: str = ""
    """The question that the comparison answers, in a sentence for the report."""

    def __post_init__(self) -> None:
        check_name(self.name)
        # NumPy's numbers become Python's, because JSON would hold them as texts.
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
            raise InputError(f'the comparison "{self.name}" holds {odd[0]!r}, which is not a function')
        names = [function.__name__ for function in self.experiments]
        if not names or not self.seeds or not self.modes:
            raise InputError(f'the comparison "{self.name}" needs an experiment and a seed, and a mode')
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f'the comparison "{self.name}" names an experiment or a seed twice: {names}, {self.seeds}')

    def _check_modes(self) -> None:
        names = [function.__name__ for function in self.experiments]
        for mode in self.modes:
            if check_choice("mode", mode, get_args(Mode)) != "solo" and len(names) < 2:
                raise InputError(f'"{mode}" needs two experiments or more: "{self.name}" has {names[0]} alone')
        labels = ["random", *names, *(f"{name}_shuffled" for name in names)]
        if "transfer" in self.modes and (twice := next((each for each in labels if labels.count(each) > 1), None)):
            raise InputError(f'"{twice}" is also a control of the transfers of "{self.name}": rename that experiment')
        for start, make in self.transfers or ():
            if start is make or not {start, make} <= set(self.experiments):
                raise InputError(f"transfers: {start.__name__} to {make.__name__} is no pair of the experiments")
        for trainable in self.trainable:
            check_choice("trainable", trainable, get_args(Trainable))
        for name, default in (("sampling_temperature", math.inf), ("loss_weighting", "fixed")):
            if "joint" not in self.modes and (value := getattr(self, name)) != default:
                raise InputError(f'{name}={value} needs joint training: give "{self.name}" the mode "joint" too')

    def _check_settings(self) -> None:
        settings = [setting for function in self.experiments for setting in list_settings(function).values()]
        known = {setting.name for setting in settings}
        if unknown := self.settings.keys() - known - {setting.parameter for setting in settings}:
            raise InputError(f"no experiment of \"{self.name}\" has the setting '{min(unknown)}'")
        for name, values in self.grid.items():
            if name != SHARE and name not in known:
                raise InputError(f"no experiment of \"{self.name}\" has the setting '{name}' that it varies")
            if name in get_args(MatchUnit) and (name != self.budget_unit or self.budget is not None):
                budget = "each experiment's own" if self.budget is None else f"{self.budget:,.0f}"
                raise InputError(
                    f"'{name}' varies, but every task stops at {budget} {self.budget_unit} all the same: "
                    f"give budget_unit={name}, and leave the budget out"
                )
            if name == SHARE and SHARE in known:
                raise InputError(
                    f"'{SHARE}' varies, which is the share of the examples, and is a setting of an experiment too: "
                    "give that another name"
                )
            if not values or name in self.settings:
                raise InputError(f"'{name}' varies over {list(values)}: give it values here, and none in the settings")
        if self.search is not None and (self.search < 1 or not self.grid or tuple(self.modes) != ("solo",)):
            raise InputError(f"search={self.search}: a search tries at least one combination of `grid`, in mode solo")


def to_python(value: Any) -> Any:
    """Return a NumPy number as a Python number, and any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value
