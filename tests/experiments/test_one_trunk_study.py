"""The comparison of experts: every number of experts is trained solo and joint, with all seeds."""

from pathlib import Path

import unifier as uf
from unifier.config import list_experiments
from unifier.trials.plan import experiment_settings, plan_trials

FILE = Path(__file__).parents[2] / "experiments" / "one_trunk_study.py"


def test_each_number_of_experts_is_trained_solo_and_joint() -> None:
    comparison = list_experiments(FILE)["experts_in_one_trunk"](experts=(1, 4), seeds=(0, 1))
    assert isinstance(comparison, uf.Comparison)
    trials = [(trial.name, trial.varied["experts"], trial.seed) for trial in plan_trials(comparison)]
    names = ("multi30k", "fashion_mnist", "emotify", "joint")
    assert sorted(trials) == sorted((name, count, seed) for name in names for count in (1, 4) for seed in (0, 1))
    for make in comparison.experiments:
        settings = [experiment_settings(comparison, make, {"experts": count}) for count in (1, 4)]
        changed = {name for name in settings[0] if settings[0][name] != settings[1][name]}
        assert changed == {"experts"}
        assert [each["experts"] for each in settings] == [1, 4]
