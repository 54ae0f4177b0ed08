"""The comparison of a GRU with a transformer on music: equal parameters, and a condition for each question."""

from collections import Counter
from pathlib import Path

import pytest

import unifier as uf
from tests.datasets.test_emotify import emotify
from unifier.config import list_experiments
from unifier.options import TrunkConfig
from unifier.trials.plan import plan_trials

EXPERIMENTS = list_experiments(Path(__file__).parents[2] / "experiments" / "music_readers.py")
RECIPE = EXPERIMENTS["music_readers"]


def test_readers_have_equal_numbers_of_parameters() -> None:
    choose_trunk = RECIPE.__globals__["choose_trunk"]
    trunks = [choose_trunk(reader, TrunkConfig()).build() for reader in ("gru", "transformer")]
    gru, transformer = (sum(weight.numel() for weight in trunk.parameters()) for trunk in trunks)
    assert gru == pytest.approx(transformer, rel=0.02)


def test_each_reader_is_trained_from_scratch_and_from_hidden_frames_for_each_fold_and_seed() -> None:
    comparison = RECIPE(folds=(0, 3), crops=(1, 5), seeds=(0, 1))
    assert isinstance(comparison, uf.Comparison)
    trials = Counter(
        (trial.name, trial.mode, trial.varied["reader"])
        for trial in plan_trials(comparison)
        if trial.name != "hidden_frames"
    )
    modes, readers = ("solo", "transfer"), ("gru", "transformer")
    folds_crops_and_seeds = 2 * 2 * 2
    assert trials == {
        (name, mode, reader): folds_crops_and_seeds
        for name in ("music_genres", "music_moods")
        for mode in modes
        for reader in readers
    }


@pytest.mark.parametrize("name", ["hidden_frames", "music_genres", "music_moods"])
def test_each_reader_multiplies_the_learning_rate_by_its_factor(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emotify(tmp_path / "emotify_16k", samples=16000)
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    training = uf.Training(tokens=1000, learning_rate=4e-3)
    for reader, factor in RECIPE.__globals__["LEARNING_RATE_FACTORS"].items():
        experiment = EXPERIMENTS[name](reader=reader, training=training)
        assert isinstance(experiment, uf.Experiment)
        assert experiment.training.learning_rate == pytest.approx(4e-3 * factor)


def test_budget_of_comparison_is_a_setting() -> None:
    comparison = RECIPE(folds=(0,), training=uf.Training(tokens=1000))
    assert isinstance(comparison, uf.Comparison)
    assert comparison.settings["training"].tokens == 1000
