"""The plan of a comparison: its trials in order of execution, and the settings of each trial."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from unifier.comparison import (
    SHARE,
    TRIAL_KEYS,
    Comparison,
    ExperimentFn,
    MatchUnit,
    TrialMode,
    TrialRow,
    to_python,
)
from unifier.config import build_described, check_settings, experiment_reference, parse_setting
from unifier.data.source import name_of
from unifier.experiment import Experiment, Trainable
from unifier.files import to_json
from unifier.folders import TRIALS_FOLDER
from unifier.report.conditions import condition_label
from unifier.report.read_results import COMPARISON_TERMS
from unifier.settings import REQUIRED, list_settings
from unifier.training.result import Result
from unifier.trials.joint import BUDGET_UNITS
from unifier_tokenizers import InputError


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a comparison."""

    experiments: tuple[ExperimentFn, ...]
    """The function of the experiment, or the functions of several experiments for a joint trial."""
    seed: int
    varied: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The values of varied settings."""
    start: ExperimentFn | None = None
    """The experiment that trains the initial trunk, or None for a random initial trunk."""
    shuffled: bool = False
    """True if the weights of the initial trunk are permuted within each tensor before training."""
    trainable: Trainable = "all"
    mode: TrialMode = "solo"

    @property
    def name(self) -> str:
        """The name of the trial in rows and reports: "joint", or the name of the experiment's function."""
        return "joint" if self.mode == "joint" else self.experiments[0].__name__

    @property
    def key(self) -> str:
        """A text that identifies the trial within its comparison."""
        return trial_key(self.row())

    def row(self) -> dict[str, Any]:
        """Return the entries of a row in comparison.json that identify this trial."""
        return {
            "experiment": self.name,
            "seed": self.seed,
            "mode": self.mode,
            "start": self.start and self.start.__name__,
            "shuffled": self.shuffled,
            "trainable": self.trainable,
            "varied": to_json(self.varied),
        }

    def start_trial(self) -> "Trial | None":
        """Return the solo trial that trains the initial trunk, or None if the initial trunk is random."""
        if self.start is None:
            return None
        return Trial(experiments=(self.start,), seed=self.seed, varied=varied_settings(self.varied, self.start))


def plan_trials(comparison: Comparison) -> Iterator[Trial]:
    """Yield all trials of a comparison without a search. Trials that train a trunk precede trials that reuse it."""
    planned: list[dict[str, Any]] = []
    if comparison.showcase is not None:
        yield Trial(experiments=(comparison.showcase,), seed=comparison.seeds[0], mode="showcase")
    for values in itertools.product(*comparison.grid.values()):
        varied = dict(zip(comparison.grid, values, strict=True))
        for seed in comparison.seeds:
            for trial in _trials(comparison, varied, seed):
                if trial.row() not in planned:  # An experiment without the varied settings would be repeated.
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
    pairs = comparison.transfers
    if pairs is None:
        pairs = [
            (start, make) for start, make in itertools.product(comparison.experiments, repeat=2) if start is not make
        ]
    for make, trainable in itertools.product(comparison.experiments, comparison.trainable):
        starts = [start for start, trained in pairs if trained is make]
        if trainable != "all" and starts and "random" in comparison.controls:
            own = varied_settings(varied, make)
            yield Trial(experiments=(make,), seed=seed, varied=own, trainable=trainable, mode="transfer")
        orders = (False, True) if "shuffled" in comparison.controls else (False,)
        for start, shuffled in itertools.product(starts, orders):
            yield Trial(
                experiments=(make,),
                seed=seed,
                varied=varied_settings(varied, make, start),
                start=start,
                shuffled=shuffled,
                trainable=trainable,
                mode="transfer",
            )


def count_trials(comparison: Comparison) -> int:
    """Return the number of trials that a comparison runs, assuming that none of the trials fails."""
    if comparison.search is None:
        return sum(1 for _ in plan_trials(comparison))
    sizes = [math.prod(map(len, varied_settings(comparison.grid, make).values())) for make in comparison.experiments]
    return sum(min(comparison.search, size) for size in sizes) * len(comparison.seeds)


def trial_key(row: TrialRow) -> str:
    """Return a text that identifies the row's trial within its comparison."""
    return json.dumps({name: row[name] for name in TRIAL_KEYS}, sort_keys=True)


def trial_rows(trial: Trial, result: Result) -> list[dict[str, Any]]:
    """Return a trial's rows for comparison.json, one per task. Paths are relative to the comparison's folder."""
    common = {"folder": f"{TRIALS_FOLDER}/{result.folder.name}", "result": result.content()}
    return [{**trial.row(), "task": task, **common} for task in result.tasks]


def describe_trial(trial: Trial) -> str:
    """Return a description of a trial for a status line: its experiments, its condition and its seed."""
    names = " + ".join(make.__name__ for make in trial.experiments)
    return f"{names} ({condition_label(trial.row())}), seed {trial.seed}"


def trial_reference(trial: Trial) -> str | list[str]:
    """Return FILE:name of a trial's experiment, or the list of FILE:name of a joint trial's experiments."""
    references = [experiment_reference(make) for make in trial.experiments]
    return references if trial.mode == "joint" else references[0]


def job_type(comparison: Comparison, trial: Trial) -> str:
    """Return the job type of a trial in Weights & Biases."""
    if trial.mode == "transfer":
        return "transfer"
    return "pretrain" if trial.mode == "solo" and "transfer" in comparison.modes else "train"


def comparison_terms(comparison: Comparison) -> dict[str, Any]:
    """Return the settings that all tasks of a comparison share, in the format of comparison.json."""
    return to_json({name: to_python(getattr(comparison, name)) for name in COMPARISON_TERMS})


def varied_settings(varied: Mapping[str, Any], *makes: ExperimentFn) -> dict[str, Any]:
    """Return the varied settings that at least one of the given experiments has."""
    known = {SHARE}.union(*(list_settings(make) for make in makes))
    return {name: value for name, value in varied.items() if name in known}


def first_varied(comparison: Comparison) -> dict[str, Any]:
    """Return the first value of each varied setting."""
    return {name: values[0] for name, values in comparison.grid.items()}


def experiment_settings(comparison: Comparison, make: ExperimentFn, varied: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of one experiment in a trial, including defaults.

    The values are the comparison's shared settings and the varied settings. Settings that the experiment does not have
    are ignored.
    """
    settings = list_settings(make)
    known = {*settings, *(setting.parameter for setting in settings.values())}
    given = {name: value for name, value in {**comparison.settings, **varied}.items() if name in known}
    return check_settings(make, given)


def recorded_settings(comparison: Comparison, trial: Trial) -> dict[str, Any]:
    """Return the settings for result.json of a trial, separately for each experiment of a joint trial."""
    if trial.mode == "showcase":
        return check_settings(trial.experiments[0], {})
    settings = {make.__name__: experiment_settings(comparison, make, trial.varied) for make in trial.experiments}
    share = {SHARE: trial.varied[SHARE]} if SHARE in trial.varied else {}
    return {**(settings if trial.mode == "joint" else settings[trial.name]), **share}


def cross_validation(make: ExperimentFn, given: Mapping[str, Any], seed: int) -> tuple[Comparison, dict[str, Any]]:
    """Create a comparison for cross-validation, in which only the setting `fold` varies.

    Args:
        make: The experiment's function, which has the setting `fold`.
        given: The settings of the experiment, the number of folds as `folds`, and optionally `seeds`.
        seed: The seed that is used if `seeds` is not given.

    Returns:
        The comparison, and the settings with which the comparison can be repeated.

    Raises:
        InputError: The experiment has no setting `fold`, or the data do not have the requested folds.
    """
    settings = dict(given)
    folds = parse_setting("folds", settings.pop("folds"), int)
    seeds = parse_setting("seeds", settings.pop("seeds", (seed,)), tuple[int, ...])
    fold = list_settings(make).get("fold")
    if fold is None:
        raise InputError(f"folds={folds}: {make.__name__} has no setting 'fold', so it cannot test on each fold")
    if "fold" in settings:
        raise InputError(f"fold={settings['fold']} and folds={folds}: give only one of them")
    placeholder = {"fold": 1} if fold.default is REQUIRED else {}  # Folds are numbered from 0 or 1, so fold 1 exists.
    checked = check_settings(make, settings | placeholder)
    experiment = build_described(make, checked, Experiment)
    settings = {name: value for name, value in checked.items() if name != "fold"}
    numbers = _fold_numbers(experiment, folds)
    units: list[MatchUnit] = [unit for unit in BUDGET_UNITS if getattr(experiment.training, unit) is not None]
    if len(units) > 1:
        raise InputError(f"folds={folds}: {make.__name__} has the budgets {', '.join(units)}: give it only one")
    comparison = Comparison(
        make.__name__,
        [make],
        settings,
        seeds,
        count_pretraining=False,  # All folds start from the same model, and a budget in epochs has no common unit.
        budget_unit=units[0],
        grid={"fold": numbers},
    )
    return comparison, {**settings, "folds": folds, "seeds": seeds}


def _fold_numbers(experiment: Experiment, folds: int) -> tuple[int, ...]:
    """Return the numbers of the folds that all tasks have. Raise InputError if the data do not have `folds` folds."""
    sources = [task.source for task in experiment.tasks.values()]
    for source in sources:
        if not isinstance(value := getattr(source, "folds", ()), Iterable):
            fault = f"{name_of(source)} defines folds = {value}"
            raise InputError(f"folds={folds}: {fault}: list the numbers of the folds, such as (1, 2, 3)")
    distinct = {tuple(map(to_python, getattr(source, "folds", ()))) for source in sources}
    names, numbers = " and ".join(name_of(source) for source in sources), min(distinct)
    if len(distinct) > 1 or not numbers:
        hint = "; define folds in the column `fold` of your data's table, or in folds.csv in your data's folder"
        raise InputError(f"folds={folds}: {names} has no folds, or the tasks have different folds{hint}")
    if invalid := [number for number in numbers if not isinstance(number, int)]:
        raise InputError(f"folds={folds}: {names} has a fold named {invalid[0]!r}: name folds by integers")
    if len(numbers) != folds:
        raise InputError(
            f"folds={folds}: {names} has {len(numbers)} folds ({', '.join(map(str, numbers))}): "
            f"give folds={len(numbers)}, or fold={numbers[0]} to test on one fold"
        )
    return numbers
