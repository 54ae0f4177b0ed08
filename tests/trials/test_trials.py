"""Trials that are really trained: their initial trunks, budgets and folders."""

import errno
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from unifier import ClassificationHead, Comparison, Experiment, Task, Training, Transformer, load, run
from unifier.comparison import MatchUnit
from unifier.data import prepare
from unifier.data.prepare import describe_data
from unifier.data.source import Example, SplitName
from unifier.datasets import Digits
from unifier.files import read_json
from unifier.report.conditions import group_conditions
from unifier.report.read_results import read_results
from unifier.training import fit, trackers
from unifier.training.run_context import RunContext
from unifier.trials.plan import plan_trials
from unifier.trials.trials import TrialRunner
from unifier_tokenizers import InputError, PatchTokenizer, SubwordTokenizer, Vocabulary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]

D = 8


class Few:
    """Forty digits, the same in each split."""

    labels = Digits.labels

    def __init__(self, name: str) -> None:
        self.name = name
        self.examples = list(Digits().split("train"))[:40]

    def split(self, name: SplitName) -> list[Example]:
        return self.examples


def study(name: str, patch: int, steps: int, depth: int, learning_rate: float = 1e-3) -> Experiment:
    task = Task(Few(name), PatchTokenizer(D, patch=patch, channels=1), ClassificationHead(Digits.labels, D))
    training = Training(steps=steps, batch_tokens=128, num_validations=1, num_workers=0, learning_rate=learning_rate)
    return Experiment(Transformer(D, depth, 2, 8), {name: task}, training)


def fine(*, steps: int = 4, depth: int = 1, patch: int = 2) -> Experiment:
    return study("fine", patch, steps, depth)


def coarse(*, steps: int = 4, depth: int = 1) -> Experiment:
    return replace(study("coarse", 4, steps, depth), name="another_name")


def longer() -> Experiment:
    return study("longer", 4, 6, 1)


def faster() -> Experiment:
    return study("faster", 4, 4, 1, learning_rate=1e-2)


def by_epochs() -> Experiment:
    experiment = study("by_epochs", 4, 4, 1)
    return replace(experiment, training=replace(experiment.training, steps=None, epochs=2.0))


def pair(*, seeds: tuple[int, ...] = (0,)) -> Comparison:
    return Comparison("pair", [fine, coarse], seeds=seeds, modes=("solo", "joint"), budget_unit="steps")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a comparison of three runs."""
    out = tmp_path_factory.mktemp("runs")
    run(pair, out=out, track="off")
    return next((out / "pair").iterdir())


def content(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "comparison.json").read_text())


def find(rows: Sequence[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (row,) = (row for row in rows if all(row[name] == value for name, value in wanted.items()))
    return row


def weights(folder: Path, name: str) -> dict[str, Tensor]:
    """Return the trunk's weights in a checkpoint of a run."""
    state = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]
    return {key.removeprefix("trunk."): tensor for key, tensor in state.items() if key.startswith("trunk.")}


def test_rows_and_folders_carry_function_names(whole: Path) -> None:
    rows = content(whole)["rows"]
    tasks = ("fine", "coarse")
    expected = [*((task, task) for task in tasks), *(("joint", task) for task in tasks)]
    assert [(row["experiment"], row["task"]) for row in rows] == expected
    for row in rows:
        settings = json.loads((whole / row["folder"] / "settings.json").read_text())
        assert row["experiment"] == row["result"]["name"] == settings["name"]
        assert settings["comparison"] == "pair"
        assert row["experiment"] in row["folder"]
        assert "unifier run" not in (whole / row["folder"] / "report.html").read_text()
    assert load(whole / rows[1]["folder"]).experiment.name == "coarse"
    assert "test_trials.py:pair seeds=0\n" in (whole / "report.html").read_text()


def test_folder_of_trials_reports_like_the_whole(whole: Path) -> None:
    whole_scores, scores = (
        {(each.task, each.label): each.scores for each in group_conditions(read_results(folder).rows)}
        for folder in (whole, whole / "trials")
    )
    assert scores == whole_scores


def test_joint_run_loads_with_all_its_tasks(whole: Path) -> None:
    folder = whole / find(content(whole)["rows"], mode="joint", task="fine")["folder"]
    model = load(folder)
    assert (model.experiment.name, list(model.experiment.tasks)) == ("joint", ["fine", "coarse"])
    trained = weights(folder, "best")
    assert all(torch.equal(tensor, trained[name]) for name, tensor in model.network.trunk.state_dict().items())


def test_joint_tasks_have_the_budget_of_solo_runs(whole: Path) -> None:
    rows = content(whole)["rows"]
    joint, solo = find(rows, mode="joint", task="fine"), find(rows, experiment="fine", mode="solo")
    assert {task: spent["steps"] for task, spent in joint["result"]["task_budgets"].items()} == {"fine": 4, "coarse": 4}
    assert joint["result"]["budget"]["steps"] == 4, "a step has a batch of each task"
    assert solo["result"]["task_budgets"]["fine"]["steps"] == 4
    assert (whole / joint["folder"] / "interference.csv").exists()
    assert not (whole / solo["folder"] / "interference.csv").exists()


def test_transferred_trunks_start_as_told(tmp_path: Path) -> None:
    comparison = Comparison("transfers", [fine, coarse], modes=("transfer",), budget_unit="steps")
    runner = TrialRunner(comparison, RunContext(tmp_path, "study", wandb="off"))
    folders: dict[tuple[bool, bool, str], Path] = {}
    for trial in plan_trials(comparison):
        if trial.mode == "solo" or (trial.name == "coarse" and trial.trainable != "all"):
            runner.run([trial], tmp_path)
            result = runner.result(trial)
            assert result
            if trial.mode == "transfer":
                folders[trial.start is fine, trial.shuffled, trial.trainable] = result.folder
    trained = weights(runner.results[0].folder, "best")
    frozen, shuffled = (weights(folders[True, shuffled, "none"], "last") for shuffled in (False, True))
    assert all(torch.equal(trained[name], tensor) for name, tensor in frozen.items())
    for name, tensor in trained.items():
        assert torch.equal(tensor.flatten().sort().values, shuffled[name].flatten().sort().values)
    assert not torch.equal(trained["blocks.0.attention.out.weight"], shuffled["blocks.0.attention.out.weight"])
    norms = weights(folders[True, False, "norms"], "last")
    changed = {name for name in trained if not torch.equal(trained[name], norms[name])}
    assert changed == {name for name in trained if "norm" in name}
    torch.manual_seed(0)
    initial = Transformer(D, 1, 2, 8).state_dict()
    random = weights(folders[False, False, "none"], "last")
    assert all(torch.equal(initial[name], tensor) for name, tensor in random.items())


class Sentences:
    """Two sentences, the same in each split."""

    labels = ("first", "second")

    def __init__(self, name: str, first: str, second: str) -> None:
        self.name, self.texts = name, (first, second)

    def split(self, name: SplitName) -> list[Example]:
        return [Example(text, label) for text, label in zip(self.texts, self.labels, strict=True)] * 4


def sentences(name: str, first: str, second: str) -> Experiment:
    tokenizer = SubwordTokenizer(Vocabulary.fit([first, second], size=7, level="word"), D)
    tokenizer.embedding.weight.data.fill_(0.1 * len(name))
    task = Task(Sentences(name, first, second), tokenizer, ClassificationHead(Sentences.labels, D))
    return Experiment(Transformer(D, 1, 2, 8), {name: task}, Training(steps=2, num_validations=1, num_workers=0))


def dogs() -> Experiment:
    return sentences("dogs", "a dog", "a dog sleeps")


def more_dogs() -> Experiment:
    return sentences("more_dogs", "dog sleeps a", "a dog sleeps")


def cats() -> Experiment:
    return sentences("cats", "a cat", "a cat eats")


@pytest.mark.parametrize("start_tokenizers", [True, False])
def test_equal_tokenizer_is_handed_over_with_the_trunk(start_tokenizers: bool, tmp_path: Path) -> None:
    def by_transfer() -> Comparison:
        pairs = [(dogs, more_dogs), (dogs, cats), (cats, dogs)]
        more: dict[str, Any] = {"start_tokenizers": start_tokenizers, "transfers": pairs, "controls": ()}
        return Comparison(
            "by_transfer",
            [dogs, more_dogs, cats],
            modes=("transfer",),
            trainable=("none",),
            budget_unit="steps",
            **more,
        )

    results = run(by_transfer, out=tmp_path, track="off")
    (rows,) = [content(folder)["rows"] for folder in (tmp_path / "by_transfer").iterdir()]
    handed = [row["result"]["lineage"]["tokenizers"] for row in rows if row["start"]]
    assert sorted(handed) == [[], [], ["more_dogs"] if start_tokenizers else []]
    tables = [load(result.folder).network.state_dict() for result in results if result.name in ("dogs", "more_dogs")]
    first, moved = tables[0]["tokenizers.dogs.embedding.weight"], tables[-1]["tokenizers.more_dogs.embedding.weight"]
    assert ((first - moved).abs().max() < 0.1) == start_tokenizers


def started(*, start: str = "") -> Experiment:
    experiment = fine()
    return replace(experiment, training=replace(experiment.training, start=start))


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({}, 1000 - 512),
        ({"count_pretraining": False}, 1000),
        ({"budget": 512}, "512 tokens"),
        ({"budget_unit": "steps"}, "not known"),
    ],
)
def test_pretraining_is_subtracted_from_the_budget(more: dict[str, Any], tokens: int | str, whole: Path) -> None:
    folder = str(whole / find(content(whole)["rows"], experiment="fine", mode="solo")["folder"])
    given: dict[str, Any] = {"budget_unit": "tokens", "budget": 1000, **more}
    comparison = Comparison("counted", [started], {"start": folder}, **given)
    if isinstance(tokens, str):
        with pytest.raises(InputError, match=tokens):
            build(comparison)
    else:
        assert [experiment.training.tokens for experiment in build(comparison)] == [tokens]


def test_trial_is_tracked_in_its_comparison_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "WeightsAndBiases", opened := MagicMock())
    comparison = Comparison("alone", [fine], budget_unit="steps")
    (trial,) = plan_trials(comparison)
    TrialRunner(comparison, RunContext(tmp_path, "study", wandb="offline")).run([trial], tmp_path / "alone" / "id")
    opened.assert_called_once()
    assert opened.call_args.args[0].group == "id"


def halved() -> Comparison:
    return Comparison("halved", [twice, coarse], budget_unit="steps")


def twice(*, steps: int = 4) -> Experiment:
    experiment = study("twice", 4, steps, 1)
    return replace(experiment, training=replace(experiment.training, num_validations=2))


def test_killed_run_resumes_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uninterrupted, *_ = run(halved, out=tmp_path / "uninterrupted", track="off")
    save, load_weights, loads = pl.Trainer.save_checkpoint, fit.load_weights, list[int]()

    def fail_after_two_steps(trainer: pl.Trainer, path: str, *_: Any) -> None:
        if trainer.global_step > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(trainer, path)

    with monkeypatch.context() as patch:
        patch.setattr(pl.Trainer, "save_checkpoint", fail_after_two_steps)
        with pytest.raises(OSError, match="No space left"):
            run(halved, out=tmp_path / "runs", track="off")
    (folder,) = (tmp_path / "runs" / "halved").iterdir()
    (started,) = (folder / "trials").iterdir()
    (started / "result.json").unlink()
    (tmp_path / "latest").symlink_to(folder)
    monkeypatch.setattr(fit, "load_weights", lambda *given: (loads.append(1), load_weights(*given)))
    result, *_ = run(halved, track="off", resume=tmp_path / "latest")
    assert (len(loads), result.folder, content(folder)["problems"]) == (1, started, [])
    assert (result.metrics, result.budget["steps"]) == (uninterrupted.metrics, 4)
    assert {row["result"]["status"] for row in content(folder)["rows"]} == {"finished"}
    assert {path.name for path in tmp_path.iterdir()} == {"uninterrupted", "runs", "latest"}


@pytest.mark.parametrize(("unit", "budget", "step"), [("tokens", 640, 128), ("flops", 2e6, 1e6), ("steps", 5, 1)])
def test_each_task_stops_at_its_budget(unit: MatchUnit, budget: float, step: float, tmp_path: Path) -> None:
    comparison = Comparison("matched", [fine, coarse], modes=("solo", "joint"), budget_unit=unit, budget=budget)
    runner = TrialRunner(comparison, RunContext(tmp_path, "study", wandb="off"))
    runner.run(plan_trials(comparison), tmp_path)
    spent = [amounts[unit] for result in runner.results for amounts in result.task_budgets.values()]
    assert len(spent) == 4
    assert all(budget - step <= amount <= budget + step for amount in spent)


def unlike() -> Comparison:
    return Comparison("unlike", [fine, by_epochs], modes=("joint",), budget_unit="tokens", budget=400)


def test_experiment_of_a_joint_run_needs_its_file(tmp_path: Path) -> None:
    (result,) = run(unlike, out=tmp_path, track="off")
    assert list(load(result.folder).experiment.tasks) == ["fine", "by_epochs"]
    path = result.folder / "settings.json"
    settings = read_json(path)
    path.write_text(json.dumps({**settings, "study": ["/gone/file.py:fine", "/gone/file.py:by_epochs"]}))
    with pytest.raises(InputError, match="/gone/file"):
        _ = load(result.folder).experiment
    assert list(load(result.folder).tasks) == ["fine", "by_epochs"]


def shares() -> Comparison:
    return Comparison("shares", [fine], budget_unit="steps", seeds=(0, 1), grid={"share": (0.5, 1.0)})


def test_share_shrinks_each_seeds_training_split(tmp_path: Path) -> None:
    results = run(shares, out=tmp_path, track="off")
    sizes = [(result.settings["share"], result.data["fine"]["train"], result.data["fine"]["val"]) for result in results]
    assert sizes == [(0.5, 20, 40)] * 2 + [(1.0, 40, 40)] * 2
    hashes = [result.data["fine"]["sha256"] for result in results]
    assert hashes[0] != hashes[1]
    assert hashes[2] == hashes[3]
    assert load(results[0].folder).experiment.name == "fine"


def build(comparison: Comparison) -> list[Experiment]:
    runner = TrialRunner(comparison, RunContext(Path("unused"), "study", wandb="off"))
    return [runner.fitter.build(trial) for trial in plan_trials(comparison)]


def test_joint_training_shares_and_weights_as_set() -> None:
    joint = Comparison("joint", [fine, coarse], modes=("joint",), budget_unit="steps")
    (experiment,) = build(replace(joint, sampling_temperature=2.0, loss_weighting="uncertainty"))
    training = experiment.training
    assert (training.sampling_temperature, training.loss_weighting, training.steps) == (2.0, "uncertainty", 4)
    assert training.grad_accumulation == 2


@pytest.mark.parametrize(
    ("experiments", "more", "message"),
    [
        ((fine, longer), {}, r"fine .* 4 .* longer .* 6"),
        ((fine,), {"budget_unit": "tokens"}, "fine has no budget in tokens"),
        ((fine, faster), {"modes": ("joint",)}, "learning_rate is 0.001 in fine and 0.01 in faster"),
        (
            (fine, longer),
            {"budget": 4, "modes": ("joint",), "grid": {"depth": (2,)}},
            "fine and longer",
        ),
    ],
)
def test_incompatible_experiments_are_refused(experiments: tuple[Any, ...], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(replace(Comparison("refused", experiments, budget_unit="steps"), **more))


def unmatched() -> Comparison:
    return Comparison("unmatched", [fine, longer], budget_unit="steps")


def test_incompatible_experiments_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fine .* 4 .* longer .* 6"):
        run(unmatched, out=tmp_path, track="off")
    assert not list(tmp_path.iterdir())


def test_function_of_another_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="<lambda> returns Comparison"):
        run(lambda: shares(), out=tmp_path, track="off")


def test_pretrained_trunk_has_no_random_control() -> None:
    def pretrained() -> Experiment:
        experiment = fine()
        experiment.trunk.pretrained = True
        return experiment

    (solo, *_) = build(Comparison("study", [pretrained, coarse], modes=("solo",), budget_unit="steps"))
    assert solo.trunk.pretrained
    for make, settings, named in ((pretrained, {}, "pretrained"), (started, {"start": "elsewhere"}, "elsewhere")):
        with pytest.raises(InputError, match=named):
            build(Comparison("study", [make, coarse], settings, modes=("transfer",), budget_unit="steps"))


@pytest.mark.parametrize("modes", [("solo",), ("joint",), ("solo", "joint")], ids="-".join)
def test_each_task_is_encoded_once(modes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []

    def describe(source: Any, skipped: Any) -> dict[str, Any]:
        described.append(source.name)
        return describe_data(source, skipped)

    monkeypatch.setattr(prepare, "describe_data", describe)
    comparison = Comparison("once", [fine, coarse], seeds=(0, 1), modes=modes, budget_unit="steps")
    runner = TrialRunner(comparison, RunContext(tmp_path, "once", wandb="off"))
    runner.run(plan_trials(comparison), tmp_path)
    assert sorted(described) == ["coarse", "fine"]


def test_changed_setting_is_encoded_again(tmp_path: Path) -> None:
    def varied() -> Comparison:
        return Comparison("varied", [fine, coarse], modes=("joint",), budget_unit="steps", grid={"patch": (2, 4)})

    costs = [result.task_budgets["fine"] for result in run(varied, out=tmp_path, track="off")]
    assert [cost["tokens"] / cost["examples"] for cost in costs] == [16, 4]
