"""What is compared is named once."""

import math
from pathlib import Path
from typing import Any

import pytest

from unifier import run
from unifier.comparison import Comparison, ExperimentFn, Mode
from unifier.datasets.digits import Digits
from unifier.experiment import Experiment, Task, Training
from unifier.files import read_json, write_json
from unifier.heads.classification import ClassificationHead
from unifier.inference.load import load
from unifier.trials.plan import Trial, count_trials
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer


def one() -> Experiment:
    raise AssertionError("describing a comparison builds nothing")


def two() -> Experiment:
    raise AssertionError("describing a comparison builds nothing")


def test_a_comparison_builds_none_of_its_experiments() -> None:
    comparison = Comparison("both", [one, two], settings={"dim": 16}, seeds=(0, 1))
    assert [function.__name__ for function in comparison.experiments] == ["one", "two"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_its_name_is_that_of_a_folder(name: str) -> None:
    with pytest.raises(InputError, match="names a folder"):
        Comparison(name, [one])


def test_an_empty_one_compares_nothing() -> None:
    with pytest.raises(InputError, match="needs an experiment and a seed"):
        Comparison("none", [])
    with pytest.raises(InputError, match="needs an experiment and a seed"):
        Comparison("none", [one], seeds=())


def test_what_is_named_twice_would_write_over_itself() -> None:
    with pytest.raises(InputError, match="twice"):
        Comparison("same", [one, one])
    with pytest.raises(InputError, match="twice"):
        Comparison("same", [one], seeds=(1, 1))


def test_it_is_said_which_mode_needs_a_second_experiment() -> None:
    orders: list[list[Mode]] = [["solo", "transfer"], ["transfer", "solo"]]
    for modes in orders:
        with pytest.raises(InputError, match='"transfer" needs two experiments or more: "alone" has one alone'):
            Comparison("alone", [one], modes=modes)


def random() -> Experiment:
    raise AssertionError("describing a comparison builds nothing")


def one_shuffled() -> Experiment:
    raise AssertionError("describing a comparison builds nothing")


@pytest.mark.parametrize("odd", [random, one_shuffled])
def test_an_experiment_is_not_called_as_a_control_is(odd: ExperimentFn) -> None:
    with pytest.raises(InputError, match=f'"{odd.__name__}" is a control of the transfers of "both" too'):
        Comparison("both", [one, odd], modes=("transfer",))
    assert count_trials(Comparison("both", [one, odd])) == 2


def test_seeds_that_are_none() -> None:
    with pytest.raises(InputError, match="seed=-1"):
        Comparison("same", [one], seeds=(0, -1))


@pytest.mark.parametrize("given", [{"sampling_temperature": 1.0}, {"loss_weighting": "uncertainty"}], ids=str)
def test_what_is_of_tasks_trained_together_is_not_asked_of_those_alone(given: dict[str, Any]) -> None:
    (name,) = given
    apart: list[list[Mode]] = [["solo"], ["solo", "transfer"]]
    for modes in apart:
        with pytest.raises(InputError, match=f'{name}=.* is of tasks trained together: give "both" the mode "joint"'):
            Comparison("both", [one, two], modes=modes, **given)
    assert count_trials(Comparison("both", [one, two], modes=("solo", "joint"), **given)) == 3


def longer(*, epochs: float = 1.0, tokens: int = 1000) -> Experiment:
    raise AssertionError("describing a comparison builds nothing")


def test_a_budget_that_stops_no_task_does_not_vary() -> None:
    with pytest.raises(
        InputError, match="'epochs' varies, and every task stops at each experiment's own tokens whatever"
    ):
        Comparison("budgets", [longer], grid={"epochs": (1, 2)})
    with pytest.raises(InputError, match="'tokens' varies, and every task stops at 5,000 tokens whatever it is"):
        Comparison("budgets", [longer], budget=5000, grid={"tokens": (1000, 2000)})
    assert count_trials(Comparison("budgets", [longer], budget_unit="epochs", grid={"epochs": (1, 2)})) == 2


def plain(*, dim: int = 8) -> Experiment:
    """Called otherwise than its function, as where several are made of one."""
    task = Task(Digits(val=100, test=100), PatchTokenizer(dim, channels=1), ClassificationHead(Digits.labels, dim))
    training = Training(steps=1, batch_tokens=64, num_validations=1)
    return Experiment(Transformer(dim, 1, 2, 8), {"digits": task}, training, name="pictures")


def named() -> Comparison:
    return Comparison("named", [plain], budget_unit="steps")


def test_a_run_s_folder_and_result_are_called_as_its_row_is(tmp_path: Path) -> None:
    (result,) = run(named, out=tmp_path, track="off")
    (folder,) = (tmp_path / "named").iterdir()
    (row,) = read_json(folder / "comparison.json")["rows"]
    assert row["experiment"] == row["result"]["name"] == result.name == result.folder.parent.name == "plain"
    assert load(result.folder)[0].name == "plain"


def test_a_trial_says_what_it_is_as_a_file_says_it(tmp_path: Path) -> None:
    """Or a comparison that goes on would not know it again."""
    row = Trial(experiments=(one,), seed=0, varied={"dim": math.inf, "size": (8, 8)}).row()
    write_json(tmp_path / "row.json", row)
    assert read_json(tmp_path / "row.json") == row
