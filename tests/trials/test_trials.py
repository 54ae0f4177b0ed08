"""The trials of a comparison: what each begins from, what it may use, and what is not run again."""

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from torch import Tensor

from unifier import Comparison, Experiment, Result, run
from unifier.cli import main
from unifier.data.source import Example, SplitName
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.inference.load import load
from unifier.report.conditions import condition_label, group_conditions
from unifier.report.read_results import read_results
from unifier.training.fit import RunContext
from unifier.trials.plan import plan_trials
from unifier.trials.trials import TrialRunner
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")
D = 8


class Few:
    """Forty digits, each split the same."""

    labels = Digits.labels

    def __init__(self, name: str) -> None:
        self.name = name
        self.examples = list(Digits().split("train"))[:40]

    def split(self, name: SplitName) -> list[Example]:
        return self.examples


def study(name: str, patch: int, steps: int, depth: int, learning_rate: float = 1e-3) -> Experiment:
    task = Task(Few(name), PatchTokenizer(D, patch=patch, channels=1), ClassificationHead(Digits.labels, D))
    training = Training(steps=steps, batch_tokens=128, num_validations=1, num_workers=0, learning_rate=learning_rate)
    return Experiment(Transformer(D, depth, 2, 8), {name: task}, training, name=name)


def fine(*, steps: int = 4, depth: int = 1, patch: int = 2) -> Experiment:
    return study("fine", patch, steps, depth)


def coarse(*, steps: int = 4, depth: int = 1) -> Experiment:
    return study("coarse", 4, steps, depth)


def longer() -> Experiment:
    return study("longer", 4, 6, 1)


def other() -> Experiment:
    return study("other", 4, 4, 1, learning_rate=1e-2)


def diverging(*, steps: int = 4, depth: int = 1) -> Experiment:
    made = study("diverging", 4, steps, depth)
    made.trunk.register_forward_hook(lambda trunk, given, read: read._replace(matrix=read.matrix * float("nan")))
    return made


def matrix(*, seeds: tuple[int, ...] = (0,)) -> Comparison:
    return Comparison(
        "matrix",
        [fine, coarse],
        seeds=seeds,
        modes=("solo", "joint", "transfer"),
        trainable=("none", "norms", "all"),
        budget_unit="steps",
        question="Whose trunk is worth what?",
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    run(matrix, out=out, track="off")
    return next((out / "matrix").iterdir())


def content(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "comparison.json").read_text())


def weights(row: dict[str, Any], name: str = "best") -> dict[str, Tensor]:
    state = torch.load(Path(row["folder"]) / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]
    return {key.removeprefix("trunk."): tensor for key, tensor in state.items() if key.startswith("trunk.")}


def find(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (found,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return found


def test_the_plan_holds_every_pair_with_its_controls_once(whole: Path) -> None:
    rows = content(whole)["rows"]
    assert sum(row["mode"] == "solo" for row in rows) == 2
    assert [row["task"] for row in rows if row["mode"] == "joint"] == ["fine", "coarse"]
    transfers = [
        (row["start"], row["experiment"], row["shuffled"], row["trainable"])
        for row in rows
        if row["mode"] == "transfer"
    ]
    trained = [
        (start, name, shuffled, tuned)
        for start, name in (("fine", "coarse"), ("coarse", "fine"))
        for shuffled in (False, True)
        for tuned in ("none", "norms", "all")
    ]
    random = [(None, name, False, tuned) for name in ("fine", "coarse") for tuned in ("none", "norms")]
    assert sorted(transfers, key=str) == sorted(trained + random, key=str)
    assert content(whole)["status"] == "finished"
    assert content(whole)["question"] == "Whose trunk is worth what?"


def test_a_folder_of_its_runs_is_reported_as_the_whole_is(whole: Path) -> None:
    def shown(folder: Path, experiment: str) -> dict[tuple[str, str], Any]:
        rows = [row for row in read_results(folder).rows if row["experiment"] == experiment]
        return {(one.task, one.label): one.scores for one in group_conditions(rows)}

    for experiment in ("fine", "joint"):
        assert shown(whole.parents[1] / experiment, experiment) == shown(whole, experiment)


def test_a_trunk_that_several_trained_is_loaded_with_all_their_tasks(whole: Path) -> None:
    row = find(content(whole)["rows"], mode="joint", task="fine")
    loaded = load(row["folder"])
    experiment, model = loaded.experiment, loaded.network
    assert (experiment.name, list(experiment.tasks)) == ("joint", ["fine", "coarse"])
    assert all(torch.equal(part, weights(row)[name]) for name, part in model.trunk.state_dict().items())


def by_epochs() -> Experiment:
    made = study("by_epochs", 4, 4, 1)
    return replace(made, training=replace(made.training, steps=None, epochs=2.0))


def unlike() -> Comparison:
    return Comparison("unlike", [fine, by_epochs], modes=("joint",), budget_unit="tokens", budget=400)


def test_so_is_one_of_experiments_with_budgets_in_other_units_wherever_their_file_is_now(tmp_path: Path) -> None:
    (row,) = run(unlike, out=tmp_path, track="off")
    assert list(load(row.folder).experiment.tasks) == ["fine", "by_epochs"]
    path = Path(row.folder) / "settings.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "study": ["/gone/file.py:fine", "/gone/file.py:by_epochs"]}))
    with pytest.raises(InputError, match="say where it is now"):
        load(row.folder)
    assert list(load(row.folder, f"{__file__}:fine")[0].tasks) == ["fine", "by_epochs"]


def test_how_losses_were_weighed_is_no_part_of_what_is_loaded(whole: Path, tmp_path: Path) -> None:
    folder = copytree(find(content(whole)["rows"], mode="joint", task="fine")["folder"], tmp_path / "weighed")
    path = folder / "checkpoints" / "best.ckpt"
    kept = torch.load(path, weights_only=True)
    kept["state_dict"]["log_variances.fine"] = torch.zeros(())
    torch.save(kept, path)
    assert load(folder)[0].name == "joint"
    kept["state_dict"]["unknown.fine"] = torch.zeros(())
    torch.save(kept, path)
    with pytest.raises(InputError, match="does not fit"):
        load(folder)


def test_a_frozen_trunk_is_the_trained_one_as_it_was(whole: Path) -> None:
    rows = content(whole)["rows"]
    given = weights(find(rows, experiment="fine", mode="solo"))
    kept = weights(find(rows, experiment="coarse", start="fine", shuffled=False, trainable="none"), "last")
    assert all(torch.equal(given[name], tensor) for name, tensor in kept.items())
    tuned = weights(find(rows, experiment="coarse", start="fine", shuffled=False, trainable="norms"), "last")
    moved = {name for name in given if not torch.equal(given[name], tuned[name])}
    assert moved == {name for name in given if "norm" in name}


def test_a_shuffled_trunk_has_the_same_weights_elsewhere(whole: Path) -> None:
    rows = content(whole)["rows"]
    given = weights(find(rows, experiment="fine", mode="solo", seed=0))
    shuffled = weights(find(rows, experiment="coarse", start="fine", shuffled=True, trainable="none", seed=0), "last")
    for name, tensor in given.items():
        assert torch.equal(tensor.flatten().sort().values, shuffled[name].flatten().sort().values)
    assert not torch.equal(given["blocks.0.attention.out.weight"], shuffled["blocks.0.attention.out.weight"])


def test_a_random_trunk_left_as_it_is_is_the_one_that_solo_began_from(whole: Path) -> None:
    rows = content(whole)["rows"]
    left = [
        weights(find(rows, experiment=name, mode="transfer", start=None, trainable="none", seed=0), "last")
        for name in ("fine", "coarse")
    ]
    torch.manual_seed(0)
    drawn = Transformer(D, 1, 2, 8).state_dict()
    for kept in left:
        assert all(torch.equal(drawn[name], tensor) for name, tensor in kept.items())


def test_tasks_trained_together_have_what_each_has_alone(whole: Path) -> None:
    rows = content(whole)["rows"]
    joint = find(rows, experiment="joint", task="fine", seed=0)
    solo = find(rows, experiment="fine", mode="solo", seed=0)
    for task in ("fine", "coarse"):
        assert joint["result"]["task_budgets"][task]["steps"] == 4
    assert joint["result"]["budget"]["steps"] == 4  # a batch of each task in each
    assert solo["result"]["task_budgets"]["fine"]["steps"] == 4
    assert (Path(joint["folder"]) / "interference.csv").exists()
    assert not (Path(solo["folder"]) / "interference.csv").exists()


@pytest.mark.parametrize(("budget_unit", "budget"), [("tokens", 640), ("flops", 2e6), ("steps", 5)])
def test_each_task_stops_at_the_budget_that_is_matched(tmp_path: Path, match: Any, budget: float) -> None:
    comparison = Comparison("matched", [fine, coarse], modes=("solo", "joint"), budget_unit=match, budget=budget)
    trials = TrialRunner(comparison, RunContext(tmp_path, "study", wandb="off"))
    for trial in plan_trials(comparison):
        trials.run(trial)
    step = {"tokens": 128, "flops": 1e6, "steps": 1}[match]
    for result in trials.results:
        for spent in result.task_budgets.values():
            assert budget - step <= spent[match] <= budget + step


def test_tasks_trained_together_share_and_weigh_as_asked(tmp_path: Path) -> None:
    asked = Comparison(
        "asked",
        [fine, coarse],
        modes=("joint",),
        budget_unit="steps",
        sampling_temperature=2.0,
        loss_weighting="uncertainty",
    )
    (trial,) = plan_trials(asked)
    training = TrialRunner(asked, RunContext(tmp_path, "study", wandb="off")).build(trial).training
    assert (training.sampling_temperature, training.loss_weighting, training.steps) == (2.0, "uncertainty", 4)
    assert training.grad_accumulation == 2


def refuse(message: str, **described: Any) -> None:
    comparison = Comparison("refused", **described)
    trials = TrialRunner(comparison, RunContext(Path("nowhere"), "study", wandb="off"))
    with pytest.raises(InputError, match=message):
        deque(map(trials.build, plan_trials(comparison)), maxlen=0)


def test_what_cannot_be_matched_or_trained_together_is_named() -> None:
    refuse("fine stops at 4 steps an task and longer at 6", experiments=[fine, longer], match="steps")
    refuse("fine has no budget in tokens", experiments=[fine])
    refuse(
        "learning_rate is 0.001 in fine and 0.01 in other", experiments=[fine, other], match="steps", modes=("joint",)
    )
    deeper = {"experiments": [fine, longer], "settings": {}, "budget_unit": "steps", "budget": 4, "modes": ("joint",)}
    refuse("the trunks of fine and longer are of different shapes", **deeper, grid={"depth": (2,)})


def unmatched() -> Comparison:
    return Comparison("unmatched", [fine, longer], budget_unit="steps")


def test_nothing_is_trained_where_experiments_cannot_be_matched(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fine stops at 4 steps an task and longer at 6"):
        run(unmatched, out=tmp_path, track="off")
    assert not list(tmp_path.iterdir())


def hopeless() -> Comparison:
    return Comparison(
        "hopeless", [diverging, fine], modes=("solo", "transfer"), trainable=("none",), budget_unit="steps"
    )


def test_what_begins_from_a_run_that_diverged_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(hopeless, out=tmp_path, track="off")
    (folder,) = (tmp_path / "hopeless").iterdir()
    found = content(folder)
    assert find(found["rows"], experiment="diverging", mode="solo")["result"]["error"].startswith("diverged")
    assert any("fine (diverging, frozen), seed 0: left out" in problem for problem in found["problems"])
    printed = "".join(capsys.readouterr())
    assert all(
        f": {row['experiment']} ({condition_label(row)}), seed 0" in printed for row in read_results(folder).rows
    )
    assert find(found["rows"], experiment="fine", mode="solo")["result"]["status"] == "finished"


def grid() -> Comparison:
    return Comparison("grid", [fine, coarse], budget_unit="steps", grid={"patch": (1, 2), "share": (0.5, 1.0)})


def test_experiments_vary_the_settings_they_have() -> None:
    planned = [(trial.name, dict(trial.varied)) for trial in plan_trials(grid())]
    assert sorted(planned, key=str) == sorted(
        [("fine", {"patch": patch, "share": share}) for patch in (1, 2) for share in (0.5, 1.0)]
        + [("coarse", {"share": share}) for share in (0.5, 1.0)],
        key=str,
    )


def test_a_share_is_of_the_training_split_alone_and_such_a_run_is_loaded(tmp_path: Path) -> None:
    results = run(grid, out=tmp_path, track="off")
    data = {(r.name, r.settings.get("patch"), r.settings["share"]): r.data[r.name] for r in results}
    assert data["fine", 1, 0.5]["train"] == 20
    assert data["fine", 1, 1.0]["train"] == 40
    assert {one["val"] for one in data.values()} == {40}
    assert (load(results[0].folder)[0].name, results[0].settings["share"]) == ("fine", 0.5)


def shares() -> Comparison:
    return Comparison("shares", [fine], budget_unit="steps", seeds=(0, 1), grid={"share": (0.5,)})


def test_each_seed_draws_a_share_of_its_own(tmp_path: Path) -> None:
    first, second = run(shares, out=tmp_path, track="off")
    assert first.data["fine"]["sha256"] != second.data["fine"]["sha256"]
    assert first.data["fine"]["train"] == second.data["fine"]["train"] == 20


def test_a_function_that_is_not_annotated_is_said_to_describe_a_comparison(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="<lambda> returns Comparison, where Experiment is expected"):
        run(lambda: shares(), out=tmp_path, track="off")


def deep(*, depth: int) -> Experiment:
    return study("deep", 4, 2, depth)


def depths() -> Comparison:
    return Comparison("depths", [deep], budget_unit="steps", grid={"depth": (1, 0)})


def test_a_setting_without_a_default_may_vary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = run(depths, out=tmp_path, track="off")
    assert [result.settings["depth"] for result in results] == [1, 0]
    assert main(["show", f"{__file__}:depths"]) == 0
    assert "experiment deep" in capsys.readouterr().out


def test_the_whole_says_what_repeats_it_and_its_runs_nothing_for_no_command_does(whole: Path) -> None:
    assert "test_trials.py:matrix seeds=0\n" in (whole / "report.html").read_text()
    for row in content(whole)["rows"]:
        assert "unifier run" not in (Path(row["folder"]) / "report.html").read_text()


def hunt() -> Comparison:
    return Comparison("hunt", [fine], budget_unit="steps", grid={"patch": (1, 2, 4), "depth": (0, 1)}, search=3)


def test_a_search_tries_so_many_combinations_and_the_same_ones_again(tmp_path: Path) -> None:
    def tried(results: list[Result]) -> list[Any]:
        return [(result.settings["patch"], result.settings["depth"]) for result in results]

    first = tried(run(hunt, out=tmp_path, track="off"))
    assert 1 <= len(first) <= 3
    assert len(set(first)) == len(first)
    assert tried(run(hunt, out=tmp_path, track="off")) == first
