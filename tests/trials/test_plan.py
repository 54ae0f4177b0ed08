"""The trials of a comparison, and cross-validation as a comparison over folds."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unifier import ClassificationHead, Comparison, Experiment, Task, Training, Transformer, run
from unifier.cli import main
from unifier.comparison import Control
from unifier.datasets import Digits, create_audio_dataset, create_image_dataset
from unifier.files import read_json, write_json
from unifier.report.conditions import group_conditions
from unifier.report.estimates import estimate
from unifier.report.read_results import read_results
from unifier.trials import plan
from unifier.trials.plan import Trial, count_trials, cross_validation, plan_trials
from unifier_tokenizers import InputError, PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

RECIPE = '''
"""Pictures of a folder."""
from unifier import Task, ClassificationHead, Experiment, Training, Transformer
from unifier.datasets.image_folder import ImageFolder
from unifier_tokenizers import PatchTokenizer

def shades(*, data: str, fold: int | None = None, steps: int = 2) -> Experiment:
    """Dark and bright."""
    source = ImageFolder(data, fold=fold)
    task = Task(source, PatchTokenizer(8, patch=4), ClassificationHead(source.labels, 8))
    return Experiment(Transformer(8, 1, 2, 8), {"shades": task}, Training(steps=steps, num_validations=1))
'''


def fine(*, steps: int = 4, depth: int = 1, patch: int = 2) -> Experiment:
    raise NotImplementedError


def coarse(*, steps: int = 4, depth: int = 1) -> Experiment:
    raise NotImplementedError


def test_plan_has_each_transfer_with_controls() -> None:
    comparison = Comparison("all", [fine, coarse], modes=("solo", "joint", "transfer"), budget_unit="steps")
    trials = list(plan_trials(comparison))
    assert [(trial.name, trial.start) for trial in trials if trial.mode == "solo"] == [("fine", None), ("coarse", None)]
    assert [trial.experiments for trial in trials if trial.mode == "joint"] == [(fine, coarse)]
    transfers = [(each.start, each.name, each.shuffled, each.trainable) for each in trials if each.mode == "transfer"]
    expected = [
        (start, name, shuffled, trainable)
        for start, name in ((fine, "coarse"), (coarse, "fine"))
        for shuffled in (False, True)
        for trainable in ("none", "norms", "all")
    ] + [(None, name, False, trainable) for name in ("fine", "coarse") for trainable in ("none", "norms")]
    assert sorted(transfers, key=str) == sorted(expected, key=str)
    assert len({trial.key for trial in trials}) == len(trials) == count_trials(comparison)


@pytest.mark.parametrize("controls", [("random",), ("shuffled",), ("random", "shuffled")], ids="-".join)
def test_transfers_and_controls_are_chosen(controls: tuple[Control, ...]) -> None:
    frozen = Comparison("one", [fine, coarse], modes=("transfer",), trainable=("none",))
    comparison = replace(frozen, transfers=[(fine, coarse)], controls=controls)
    transfers = [(each.start, each.name, each.shuffled) for each in plan_trials(comparison) if each.mode == "transfer"]
    expected = [(None, "coarse", False)] if "random" in controls else []
    expected += [(fine, "coarse", False)] + [(fine, "coarse", True)] * ("shuffled" in controls)
    assert transfers == expected
    with pytest.raises(InputError, match="untrained"):
        replace(frozen, controls=("untrained",))
    with pytest.raises(InputError, match="fine to fine"):
        replace(frozen, transfers=[(fine, fine)])


def test_showcase_comes_first_with_own_settings() -> None:
    comparison = Comparison("shown", [coarse], {"steps": 2}, seeds=(3, 4), showcase=fine, budget_unit="steps")
    first, *others = plan_trials(comparison)
    assert (first.name, first.seed, first.mode) == ("fine", 3, "showcase")
    assert plan.recorded_settings(comparison, first) == {"steps": 4, "depth": 1, "patch": 2}
    assert [trial.name for trial in others] == ["coarse", "coarse"]
    assert count_trials(comparison) == 3


def test_trunks_are_trained_before_transfers() -> None:
    comparison = Comparison("all", [fine, coarse], modes=("transfer",), grid={"patch": (1, 2), "share": (0.5, 1.0)})
    earlier: list[Trial] = []
    for trial in plan_trials(comparison):
        assert trial.start_trial() is None or trial.start_trial() in earlier
        earlier.append(trial)


def test_experiments_vary_the_settings_they_have() -> None:
    comparison = Comparison("grid", [fine, coarse], grid={"patch": (1, 2), "share": (0.5, 1.0)})
    planned = [(trial.name, dict(trial.varied)) for trial in plan_trials(comparison)]
    expected = [("fine", {"patch": patch, "share": share}) for patch in (1, 2) for share in (0.5, 1.0)]
    expected += [("coarse", {"share": share}) for share in (0.5, 1.0)]
    assert sorted(planned, key=str) == sorted(expected, key=str)
    comparison = Comparison("grid", [fine, coarse], {"depth": 3, "patch": 1}, grid={"steps": (5,)}, budget_unit="steps")
    assert plan.experiment_settings(comparison, fine, {"steps": 5}) == {"steps": 5, "depth": 3, "patch": 1}
    assert plan.experiment_settings(comparison, coarse, {"steps": 5, "share": 0.5}) == {"steps": 5, "depth": 3}


def test_solo_runs_for_transfers_are_pretraining() -> None:
    solo, joint = Trial(experiments=(fine,), seed=0), Trial(experiments=(fine, coarse), seed=0, mode="joint")
    apart = Comparison("all", [fine, coarse], modes=("solo", "joint"))
    transfer = replace(apart, modes=("solo", "joint", "transfer"))
    assert [plan.job_type(apart, trial) for trial in (solo, joint)] == ["train", "train"]
    jobs = [plan.job_type(transfer, trial) for trial in (solo, joint, replace(solo, mode="transfer"))]
    assert jobs == ["pretrain", "train", "transfer"]


def test_row_survives_json(tmp_path: Path) -> None:
    row = Trial(experiments=(fine,), seed=0, varied={"dim": float("inf"), "size": (8, 8)}).row()
    write_json(tmp_path / "row.json", row)
    assert read_json(tmp_path / "row.json") == row


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return a folder of dark and bright pictures: four of each per fold 1 to 3, and two painters per fold."""
    folder, lines = tmp_path / "pictures", ["file,fold,group"]
    for k in range(24):
        name = f"{('dark', 'bright')[k % 2]}/{k}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(0, 100, (8, 8, 3), np.uint8) + np.uint8(k % 2 * 150)
        Image.fromarray(pixels).save(folder / name)
        lines.append(f"{name},{1 + k // 8},painter {k // 4}")
    (folder / "folds.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "shades.py").write_text(RECIPE)
    return tmp_path / "shades.py"


def run_folds(recipe: Path, pictures: Path, *settings: str) -> int:
    """Run a cross-validation from the command line, and return its exit status."""
    out = ["--track", "off", "--out", str(recipe.parent / "runs")]
    return main(["run", str(recipe), f"data={pictures}", *settings, *out])


@pytest.mark.slow
def test_every_fold_is_tested_with_every_seed(recipe: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_folds(recipe, pictures, "folds=3", "seeds=4,5") == 0
    printed = capsys.readouterr().out
    folder = Path(printed.splitlines()[-1])
    content = read_json(folder / "comparison.json")
    assert [(row["varied"], row["seed"], row["result"]["settings"]["fold"]) for row in content["rows"]] == [
        ({"fold": fold}, seed, fold) for fold in (1, 2, 3) for seed in (4, 5)
    ]
    assert content["settings"] == {"data": str(pictures), "steps": 2, "folds": 3, "seeds": [4, 5]}
    scores = [row["result"]["metrics"]["test/shades/accuracy"] for row in content["rows"]]
    (condition,) = group_conditions(read_results(folder).rows)
    assert condition.score == estimate(np.reshape(scores, (3, 2)).mean(1), "fold")
    assert "over 3 folds" in printed
    kept = content["rows"][:5]
    (folder / "comparison.json").write_text(json.dumps({**content, "rows": kept, "status": "interrupted"}))
    assert main(["run", str(recipe), "--resume", str(folder), "--track", "off"]) == 0
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    assert (rows[:5], len(rows)) == (kept, 6)
    assert rows[5]["folder"] != content["rows"][5]["folder"]


@pytest.mark.slow
def test_folds_of_unequal_size_keep_their_epochs(recipe: Path, pictures: Path) -> None:
    """Give the last fold 7 examples instead of 8, and the setting `fold` no default."""
    text = RECIPE.replace("steps=steps", "epochs=12 / len(source.split('train'))")
    recipe.write_text(text.replace("fold: int | None = None", "fold: int"))
    lines = (pictures / "folds.csv").read_text().splitlines()
    (pictures / "folds.csv").write_text("\n".join(lines[:-1]))
    (pictures / lines[-1].split(",")[0]).unlink()
    assert run_folds(recipe, pictures, "folds=3") == 0
    (path,) = (recipe.parent / "runs").rglob("comparison.json")
    rows = json.loads(path.read_text())["rows"]
    assert [(row["result"]["status"], row["varied"]["fold"]) for row in rows] == [("finished", k) for k in (1, 2, 3)]
    assert len({row["result"]["data"]["shades"]["train"] for row in rows}) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["folds=5"], "has 3 folds (1, 2, 3)"),
        (["folds=3", "fold=2"], "fold=2 and folds=3"),
        (["folds=some"], "folds='some'"),
        (["folds=3", "seeds=0,0"], "[0, 0]"),
        (["folds=3", "dim=8"], "'dim'"),
    ],
)
def test_impossible_folds_are_refused(
    recipe: Path, pictures: Path, settings: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_folds(recipe, pictures, *settings) == 2
    assert message in capsys.readouterr().err
    assert not (recipe.parent / "runs").exists()


def test_folds_need_a_table_and_whole_groups(recipe: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pictures / "folds.csv"
    table.write_text(table.read_text().replace("dark/8.png,2,painter 2", "dark/8.png,2,painter 1"))
    assert run_folds(recipe, pictures, "folds=3") == 2
    assert "'painter 1'" in capsys.readouterr().err
    table.unlink()
    assert run_folds(recipe, pictures, "folds=3") == 2
    assert "has no folds" in capsys.readouterr().err


def digits(folds: Any) -> Experiment:
    """Return an experiment on digits whose folds have any names."""
    source: Any = SimpleNamespace(name="digits", folds=folds, split=Digits(val=10, test=10).split)
    task = Task(source, PatchTokenizer(8, channels=1), ClassificationHead(Digits.labels, 8))
    return Experiment(Transformer(8, 1, 2, 8), {"digits": task}, Training(steps=2))


def numbered(*, fold: int = 1) -> Experiment:
    return digits(tuple(np.unique([1, 2])))


def lettered(*, fold: int = 0) -> Experiment:
    return digits(("a", "b"))


def counted(*, fold: int = 0) -> Experiment:
    return digits(2)


def both(*, steps: int = 2) -> Comparison:
    return Comparison("both", [fine, coarse], {"steps": steps})


def test_folds_are_integers_of_the_source() -> None:
    comparison, settings = cross_validation(numbered, {"folds": 2}, 7)
    assert [(type(fold), fold) for fold in comparison.grid["fold"]] == [(int, 1), (int, 2)]
    assert (comparison.budget_unit, comparison.seeds, settings) == ("steps", [7], {"folds": 2, "seeds": (7,)})
    for make, name in ((lettered, "'a'"), (counted, "= 2")):
        with pytest.raises(InputError, match=name):
            cross_validation(make, {"folds": 2}, 0)
    for study, name in ((fine, "'fold'"), (both, "'folds'")):
        with pytest.raises(InputError, match=name):
            run(study, folds=2)


def test_data_sets_list_their_folds(pictures: Path) -> None:
    expected = {"emotify": range(5), "esc10": range(1, 6), "esc50": range(1, 6), "fsdd": range(6)}
    for name, folds in expected.items():
        assert list(getattr(create_audio_dataset(name), "folds", ())) == list(folds)
        for fold in folds:
            create_audio_dataset(name, fold=fold)
    assert not any(hasattr(create_audio_dataset(name), "folds") for name in ("embedded", "gtzan"))
    assert getattr(create_image_dataset(str(pictures)), "folds", ()) == (1, 2, 3)
