"""Cross-validation: an experiment once for every fold of its data, as a comparison."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from unifier.data.source import name_of
from unifier.running.settings import check_settings, convert, describe
from unifier.study.comparison import Comparison, Make, Match, plain
from unifier.study.experiment import Experiment
from unifier.study.joint import UNITS
from unifier_tokenizers import InputError


def cross_validation(make: Make, given: Mapping[str, Any], seed: int) -> tuple[Comparison, dict[str, Any]]:
    """A comparison of all `folds` with each of the `seeds` (by default `seed` alone); and the settings that repeat it.

    Raises InputError where the experiment has no setting `fold`, or its data other folds than asked for.
    """
    settings = dict(given)
    folds = convert("folds", settings.pop("folds"), int)
    seeds = convert("seeds", settings.pop("seeds", (seed,)), tuple[int, ...])
    if "fold" not in inspect.signature(make).parameters:
        raise InputError(f"folds={folds}: {make.__name__} has no setting 'fold', so it cannot test on each in turn")
    if "fold" in settings:
        raise InputError(f"fold={settings['fold']} and folds={folds}: give fold to test on one, or folds to on each")
    parameter = inspect.signature(make).parameters["fold"]
    any_fold = {"fold": 1} if parameter.default is parameter.empty else {}  # there are 1 and 0, or 1 and 2
    checked = check_settings(make, settings | any_fold)
    experiment = describe(make, checked, Experiment)
    settings = {name: value for name, value in checked.items() if name != "fold"}
    sources = [arm.source for arm in experiment.arms.values()]
    for source in sources:
        if not isinstance(own := getattr(source, "folds", ()), Iterable):
            said = f"{name_of(source)} says folds = {own}"
            raise InputError(f"folds={folds}: {said}: give their numbers, such as (1, 2, 3)")
    known = {tuple(map(plain, getattr(source, "folds", ()))) for source in sources}
    names, numbers = " and ".join(name_of(source) for source in sources), min(known)
    if len(known) > 1 or not numbers:
        own = "; data of your own have those in the column fold of their table, or of folds.csv in their folder"
        raise InputError(f"folds={folds}: {names} has no folds, or not the same in all arms{own}")
    if odd := [fold for fold in numbers if not isinstance(fold, int)]:
        raise InputError(f"folds={folds}: {names} calls a fold {odd[0]!r}: number them")
    if len(numbers) != folds:
        raise InputError(
            f"folds={folds}: {names} has {len(numbers)} folds ({', '.join(map(str, numbers))}): "
            f"give folds={len(numbers)}, or fold={numbers[0]} for one alone"
        )
    budgets: list[Match] = [unit for unit in UNITS if getattr(experiment.training, unit) is not None]
    if len(budgets) > 1:
        raise InputError(f"folds={folds}: {make.__name__} stops at one of {', '.join(budgets)}: give it one alone")
    comparison = Comparison(make.__name__, [make], settings, seeds, match=budgets[0], vary={"fold": numbers})
    return comparison, {**settings, "folds": folds, "seeds": seeds}
