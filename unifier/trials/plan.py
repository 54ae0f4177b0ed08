"""The trials of a comparison, in the order in which they run."""

import inspect
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from unifier.comparison import SHARE, TRIAL_KEYS, Comparison, ExperimentFn, MatchUnit, Mode, TrialRow, to_python
from unifier.config import build_described, check_settings, parse_setting
from unifier.data.source import name_of
from unifier.experiment import Experiment, Trainable
from unifier.files import to_json
from unifier.trials.joint import BUDGET_UNITS
from unifier_tokenizers.errors import InputError


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a comparison."""

    experiments: tuple[ExperimentFn, ...]
    """One; several are trained together."""
    seed: int
    varied: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that are not the same in all trials."""
    start: ExperimentFn | None = None
    """Whose trained trunk it begins from, instead of one drawn at random."""
    shuffled: bool = False
    """Whether that trunk's weights are shuffled within each tensor first."""
    trainable: Trainable = "all"
    mode: Mode = "solo"

    @property
    def name(self) -> str:
        """That of its function, by which the comparison and its report know it; or "joint"."""
        return "joint" if self.mode == "joint" else self.experiments[0].__name__

    def row(self) -> dict[str, Any]:
        """What tells this trial from the others, as a row of comparison.json says it."""
        return {
            "experiment": self.name,
            "seed": self.seed,
            "mode": self.mode,
            "start": self.start and self.start.__name__,
            "shuffled": self.shuffled,
            "trainable": self.trainable,
            "varied": to_json(self.varied),
        }


def trial_key(row: TrialRow) -> str:
    """What tells a row's trial from the others, as one text."""
    return json.dumps({name: row[name] for name in TRIAL_KEYS}, sort_keys=True)


def varied_settings(varied: Mapping[str, Any], *makes: ExperimentFn) -> dict[str, Any]:
    """The varied settings that one of these experiments has."""
    known = {SHARE}.union(*(inspect.signature(make).parameters for make in makes))
    return {name: value for name, value in varied.items() if name in known}


def trial_settings(comparison: Comparison, make: ExperimentFn, varied: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that one experiment is given: the shared ones, and those that it has of the `varied` ones."""
    return {
        **comparison.settings,
        **{name: value for name, value in varied_settings(varied, make).items() if name != SHARE},
    }


def first_varied(comparison: Comparison) -> dict[str, Any]:
    """What varies, with the first value of each."""
    return {name: values[0] for name, values in comparison.grid.items()}


def count_trials(comparison: Comparison) -> int:
    """How many there will be, if none fails; of a search without looking at every combination."""
    if comparison.search is None:
        return sum(1 for _ in plan_trials(comparison))
    grids = [math.prod(map(len, varied_settings(comparison.grid, make).values())) for make in comparison.experiments]
    return sum(min(comparison.search, grid) for grid in grids) * len(comparison.seeds)


def plan_trials(comparison: Comparison) -> Iterator[Trial]:
    """All runs, each after those whose trunks it begins from."""
    planned: list[dict[str, Any]] = []
    for values in itertools.product(*comparison.grid.values()):
        varied = dict(zip(comparison.grid, values, strict=True))
        for seed in comparison.seeds:
            for trial in _trials(comparison, varied, seed):
                if trial.row() not in planned:  # an experiment may lack the settings that vary
                    planned.append(trial.row())
                    yield trial


def _trials(comparison: Comparison, varied: Mapping[str, Any], seed: int) -> Iterator[Trial]:
    if set(comparison.modes) & {"solo", "transfer"}:
        for make in comparison.experiments:
            yield Trial(experiments=(make,), seed=seed, varied=varied_settings(varied, make))
    if "joint" in comparison.modes:
        makes = tuple(comparison.experiments)
        yield Trial(experiments=makes, seed=seed, varied=varied_settings(varied, *makes), mode="joint")
    if "transfer" not in comparison.modes:
        return
    for make, tuned in itertools.product(comparison.experiments, comparison.trainable):
        if tuned != "all":
            yield Trial(
                experiments=(make,), seed=seed, varied=varied_settings(varied, make), trainable=tuned, mode="transfer"
            )
        for start, shuffled in itertools.product(comparison.experiments, (False, True)):
            if start is not make:
                yield Trial(
                    experiments=(make,),
                    seed=seed,
                    varied=varied_settings(varied, make, start),
                    start=start,
                    shuffled=shuffled,
                    trainable=tuned,
                    mode="transfer",
                )


def cross_validation(make: ExperimentFn, given: Mapping[str, Any], seed: int) -> tuple[Comparison, dict[str, Any]]:
    """A comparison of all `folds` with each of the `seeds` (by default `seed` alone); and the settings that repeat it.

    Raises InputError where the experiment has no setting `fold`, or its data other folds than asked for.
    """
    settings = dict(given)
    folds = parse_setting("folds", settings.pop("folds"), int)
    seeds = parse_setting("seeds", settings.pop("seeds", (seed,)), tuple[int, ...])
    if "fold" not in inspect.signature(make).parameters:
        raise InputError(f"folds={folds}: {make.__name__} has no setting 'fold', so it cannot test on each in turn")
    if "fold" in settings:
        raise InputError(f"fold={settings['fold']} and folds={folds}: give fold to test on one, or folds to on each")
    parameter = inspect.signature(make).parameters["fold"]
    any_fold = {"fold": 1} if parameter.default is parameter.empty else {}  # there are 1 and 0, or 1 and 2
    checked = check_settings(make, settings | any_fold)
    experiment = build_described(make, checked, Experiment)
    settings = {name: value for name, value in checked.items() if name != "fold"}
    sources = [task.source for task in experiment.tasks.values()]
    for source in sources:
        if not isinstance(own := getattr(source, "folds", ()), Iterable):
            said = f"{name_of(source)} says folds = {own}"
            raise InputError(f"folds={folds}: {said}: give their numbers, such as (1, 2, 3)")
    known = {tuple(map(to_python, getattr(source, "folds", ()))) for source in sources}
    names, numbers = " and ".join(name_of(source) for source in sources), min(known)
    if len(known) > 1 or not numbers:
        own = "; data of your own have those in the column fold of their table, or of folds.csv in their folder"
        raise InputError(f"folds={folds}: {names} has no folds, or not the same in all tasks{own}")
    if odd := [fold for fold in numbers if not isinstance(fold, int)]:
        raise InputError(f"folds={folds}: {names} calls a fold {odd[0]!r}: number them")
    if len(numbers) != folds:
        raise InputError(
            f"folds={folds}: {names} has {len(numbers)} folds ({', '.join(map(str, numbers))}): "
            f"give folds={len(numbers)}, or fold={numbers[0]} for one alone"
        )
    budgets: list[MatchUnit] = [unit for unit in BUDGET_UNITS if getattr(experiment.training, unit) is not None]
    if len(budgets) > 1:
        raise InputError(f"folds={folds}: {make.__name__} stops at one of {', '.join(budgets)}: give it one alone")
    comparison = Comparison(make.__name__, [make], settings, seeds, budget_unit=budgets[0], grid={"fold": numbers})
    return comparison, {**settings, "folds": folds, "seeds": seeds}
