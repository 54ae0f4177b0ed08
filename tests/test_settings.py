"""Settings: the fields of setting groups are settings of the recipe."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from unifier import Experiment, Training
from unifier.config import check_settings
from unifier.files import to_json
from unifier.settings import REQUIRED, flatten, keyword_arguments, list_settings
from unifier_tokenizers import InputError


@dataclass(frozen=True)
class Model:
    """A setting group."""

    model: str = "transformer"
    """Which architecture. Anything else is left out."""
    dim: int = 8
    dropout: float = 0.1
    """Dropout probability of
    all layers."""


@dataclass(frozen=True)
class Head:
    """Another setting group, with a field of the same name."""

    dropout: float = 0.0


def recipe(*, data: str, model: Model = Model(dim=16), head: Head = Head(), fold: int | None = None) -> None:
    """Describe nothing.

    Args:
        data: The data set. Or its folder.
        fold: The fold
            to test on.

    Raises:
        InputError: Never.
    """


def test_list_settings_flattens_groups() -> None:
    settings = list_settings(recipe)
    assert list(settings) == ["data", "model", "dim", "model.dropout", "head.dropout", "fold"]
    assert {name: setting.default for name, setting in settings.items()} == {
        "data": REQUIRED,
        "model": "transformer",
        "dim": 16,
        "model.dropout": 0.1,
        "head.dropout": 0.0,
        "fold": None,
    }
    assert settings["dim"].type is int
    assert settings["fold"].type == int | None


def test_list_settings_takes_whole_explanations() -> None:
    docs = {name: setting.doc for name, setting in list_settings(recipe).items()}
    assert docs == {
        "data": "The data set. Or its folder.",
        "model": "Which architecture. Anything else is left out.",
        "dim": "",
        "model.dropout": "Dropout probability of all layers.",
        "head.dropout": "",
        "fold": "The fold to test on.",
    }


def test_required_group_takes_class_defaults() -> None:
    def part(*, model: Model) -> None: ...

    assert list_settings(part)["dim"].default == 8


def test_flatten_group_below_single_fields() -> None:
    whole = Model("gru", dim=4)
    assert flatten(recipe, {"model": whole, "dim": 5, "data": "a"}) == {
        "model": "gru",
        "model.dropout": 0.1,
        "dim": 5,
        "data": "a",
    }
    assert flatten(recipe, {"model": "gru"}) == {"model": "gru"}


def test_keyword_arguments_rebuild_groups() -> None:
    values = {name: setting.default for name, setting in list_settings(recipe).items()} | {"data": "a", "dim": 5}
    arguments = keyword_arguments(recipe, values)
    assert arguments == {"data": "a", "model": replace(Model(), dim=5), "head": Head(), "fold": None}


def trained(*, training: Training = Training(steps=1, optimizer=torch.optim.SGD)) -> Experiment: ...  # noqa: B008


def unstored(*, training: Training = Training(steps=1, optimizer=lambda groups, lr: 3)) -> Experiment: ...  # noqa: B008


def test_function_is_stored_as_its_import_path() -> None:
    stored = to_json(check_settings(trained, {"schedule": math.hypot}))
    assert (stored["optimizer"], stored["schedule"]) == ("torch.optim.sgd.SGD", "math.hypot")
    again = check_settings(trained, stored)
    assert again == check_settings(trained, {"schedule": "math.hypot"})
    assert (again["optimizer"]([torch.zeros(1)], lr=2).defaults["lr"], again["schedule"](3, 4)) == (2, 5)


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        (trained, {"schedule": lambda step, steps: 1}),
        (unstored, {}),
        (trained, {"schedule": "math.none"}),
        (trained, {"schedule": "os.path"}),
        (trained, {"optimizer": "sgd"}),
    ],
)
def test_function_without_import_path_is_refused(recipe: Any, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"the setting (schedule|optimizer)=.*(import path|function)"):
        check_settings(recipe, given)


@pytest.mark.parametrize("function", [lambda **options: options, lambda dim, /: dim], ids=["**", "positional"])
def test_unnamed_parameter_is_refused(function: object) -> None:
    with pytest.raises(InputError, match=r"options|dim"):
        list_settings(function)  # pyright: ignore[reportArgumentType]
