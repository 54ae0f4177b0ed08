"""What is trained is checked as it is described, before a second of training is spent on it."""

import math
from dataclasses import replace
from typing import Any

import pytest

from unifier.datasets.digits import Digits
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer

D = 8


def task(dim: int = D) -> Task:
    return Task(Digits(), PatchTokenizer(dim, channels=1), ClassificationHead("ab", dim))


def experiment(*names: str, name: str = "pictures", dim: int = D) -> Experiment:
    return Experiment(Transformer(D, 1, 2, 8), {one: task(dim) for one in names}, Training(steps=1), name=name)


@pytest.mark.parametrize("name", ["digits", "en-de", "a_1", "2", "été"])
def test_names_of_tasks(name: str) -> None:
    assert list(experiment(name).tasks) == [name]


@pytest.mark.parametrize("name", ["keys", "pop", "training", "forward", "a.b", "", "a/b", "a b", ".."])
def test_names_that_torch_or_a_path_refuses(name: str) -> None:
    with pytest.raises(InputError, match="cannot name an task") as error:
        experiment("digits", name)
    assert f'"{name}"' in str(error.value)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "..", "."])
def test_names_of_experiments_are_names_of_folders(name: str) -> None:
    with pytest.raises(InputError, match="names a folder"):
        experiment("digits", name=name)


def test_an_experiment_without_tasks() -> None:
    with pytest.raises(InputError, match='"pictures" has no task'):
        experiment()


def test_columns_that_the_trunk_cannot_read() -> None:
    with pytest.raises(InputError, match=f'task "digits" makes columns of D = {2 * D}, and the trunk reads D = {D}'):
        experiment("digits", dim=2 * D)


def test_a_head_that_cannot_read_what_the_trunk_makes() -> None:
    pictures = Task(Digits(), PatchTokenizer(D, channels=1), ClassificationHead("ab", 2 * D))
    with pytest.raises(
        InputError, match=f'head of task "digits" reads columns of D = {2 * D}, and the trunk makes D = {D}'
    ):
        Experiment(Transformer(D, 1, 2, 8), {"digits": pictures}, Training(steps=1), name="pictures")


def test_no_more_weights_are_averaged_than_there_are() -> None:
    with pytest.raises(InputError, match="average_last=3: of the weights at 2 validations"):
        Training(steps=1, average_last=3, num_validations=2)


def test_training_needs_a_budget_of_one_kind_or_the_other() -> None:
    with pytest.raises(InputError, match="steps, tokens, flops or seconds"):
        Training()
    assert Training(steps=1).budget == {"steps": 1}
    assert Training(epochs=1.5).budget == {"epochs": 1.5}
    assert Training(steps=1, tokens=2, flops=3).budget == {"steps": 1, "tokens": 2, "flops": 3}
    assert Training(seconds=1).budget == {}
    with pytest.raises(InputError, match=r"seconds=1 and \{'steps': 1\}: a budget in seconds stands alone"):
        Training(steps=1, seconds=1)


WHOLE = ("steps", "tokens", "batch_tokens", "grad_accumulation", "average_last", "num_validations")


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_an_task_s_loss_cannot_have(weight: float) -> None:
    with pytest.raises(InputError, match=f"weight={weight}: 0 or more is needed"):
        replace(task(), weight=weight)
    assert replace(task(), weight=0.0).loss_weight == 0, "scored, and not trained on"


@pytest.mark.parametrize(
    "given",
    [
        *({name: value} for name in WHOLE for value in (0, -1, math.nan, math.inf)),
        *(
            {name: value}
            for name in ("learning_rate", "grad_clip", "flops")
            for value in (0.0, -1.0, math.nan, math.inf)
        ),
        {"epochs": 1.0, "steps": None, "sampling_temperature": 2.0},
        *({"sampling_temperature": value} for value in (0.0, -1.0, math.nan)),
        {"frozen": ["feet"]},
        {"loss_weighting": "learned"},
        {"weight_decay": -0.1},
        {"num_workers": -1},
        {"warmup_ratio": -0.1},
        {"warmup_ratio": 1.1},
        {"warmup_ratio": math.nan},
        {"schedule": "linear"},
        {"precision": "fp16"},
        {"compile": "yes"},
        {"compile": "reduce-overhead", "grad_accumulation": 2},
        {"bad_examples": "ignore"},
    ],
    ids=str,
)
def test_values_that_train_nothing(given: dict[str, Any]) -> None:
    (name, value), *_ = given.items()
    with pytest.raises(InputError, match=name.replace("_", "[_ ]")) as error:
        Training(**dict[str, Any](steps=1) | given)
    assert str(value).strip("[]'") in str(error.value)


def test_values_at_the_edge() -> None:
    assert Training(steps=1, warmup_ratio=0, weight_decay=0, num_workers=0).warmup_ratio == 0
    assert Training(steps=1, warmup_ratio=1).warmup_ratio == 1
