"""The declaration of a comparison, and what it refuses."""

import itertools
from typing import Any

import numpy as np
import pytest

from unifier.comparison import Comparison, ExperimentFn, Mode
from unifier.experiment import Experiment
from unifier.trials.plan import count_trials
from unifier_tokenizers import InputError


def one(*, dim: int = 8) -> Experiment:
    raise AssertionError("a comparison builds no experiment")


def two(*, dim: int = 8) -> Experiment:
    raise AssertionError("a comparison builds no experiment")


def random() -> Experiment:
    raise NotImplementedError


def one_shuffled() -> Experiment:
    raise NotImplementedError


def budgeted(*, epochs: float = 1.0, tokens: int = 1000, share: float = 1.0) -> Experiment:
    raise NotImplementedError


def test_comparison_builds_no_experiment() -> None:
    comparison = Comparison("both", [one, two], settings={"dim": 16}, seeds=(0, 1))
    assert [function.__name__ for function in comparison.experiments] == ["one", "two"]


def test_numpy_numbers_become_pythons() -> None:
    numbers: Any = np.arange(2)
    comparison = Comparison("numbers", [one], seeds=numbers, grid={"dim": numbers + 1})
    assert [type(number) for number in (*comparison.seeds, *comparison.grid["dim"])] == [int] * 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *[({"name": name}, f'"{name}"') for name in ("", "a/b", "..", "a b")],
        ({"experiments": []}, "needs an experiment"),
        ({"experiments": [3]}, "3, which is not a function"),
        ({"experiments": [one, one]}, r"\['one', 'one'\]"),
        ({"seeds": ()}, "a seed"),
        ({"seeds": (1, 1)}, r"\[1, 1\]"),
        ({"seeds": (0, -1)}, "seed=-1"),
        ({"modes": ()}, "a mode"),
        ({"modes": ("alone",)}, "'alone'"),
        ({"experiments": [one], "modes": ("solo", "transfer")}, '"transfer" .* one alone'),
        ({"experiments": [one], "modes": ("joint",)}, '"joint" .* one alone'),
        ({"trainable": ("some",)}, "'some'"),
        ({"budget_unit": "minutes"}, "'minutes'"),
        ({"settings": {"depth": 3}}, "'depth'"),
        ({"grid": {"depth": (1, 2)}}, "'depth'"),
        ({"grid": {"dim": ()}}, "'dim'"),
        ({"grid": {"dim": (1,)}, "settings": {"dim": 2}}, "'dim'"),
        ({"experiments": [budgeted], "grid": {"share": (0.5, 1)}}, "'share'"),
        ({"experiments": [budgeted], "grid": {"epochs": (1, 2)}}, "'epochs' .* budget_unit=epochs"),
        ({"experiments": [budgeted], "grid": {"tokens": (1, 2)}, "budget": 5000}, "'tokens' .* 5,000 tokens"),
        ({"search": 1}, "search=1"),
        ({"search": 0, "grid": {"dim": (1, 2)}}, "search=0"),
        ({"search": 2, "grid": {"dim": (1, 2)}, "modes": ("solo", "joint")}, "search=2"),
    ],
    ids=itertools.count(),
)
def test_impossible_comparison_is_refused(changed: dict[str, Any], message: str) -> None:
    declared: dict[str, Any] = {"name": "both", "experiments": [one, two], **changed}
    with pytest.raises(InputError, match=message):
        Comparison(**declared)


@pytest.mark.parametrize("experiment", [random, one_shuffled])
def test_experiment_named_as_control_is_refused(experiment: ExperimentFn) -> None:
    with pytest.raises(InputError, match=f'"{experiment.__name__}"'):
        Comparison("both", [one, experiment], modes=("transfer",))
    assert count_trials(Comparison("both", [one, experiment])) == 2


@pytest.mark.parametrize("given", [{"sampling_temperature": 1.0}, {"loss_weighting": "uncertainty"}], ids=str)
def test_joint_options_need_the_mode_joint(given: dict[str, Any]) -> None:
    (name,) = given
    modes: list[list[Mode]] = [["solo"], ["solo", "transfer"]]
    for without_joint in modes:
        with pytest.raises(InputError, match=f"{name}="):
            Comparison("both", [one, two], modes=without_joint, **given)
    assert count_trials(Comparison("both", [one, two], modes=("solo", "joint"), **given)) == 3


def test_budget_may_vary_in_its_own_unit() -> None:
    comparison = Comparison("budgets", [budgeted], budget_unit="epochs", grid={"epochs": (1, 2)})
    assert count_trials(comparison) == 2
