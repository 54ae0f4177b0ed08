"""Runs are found by what they read and what they answer, whoever wrote the experiment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from unifier.config import list_experiments
from unifier.datasets.digits import Digits
from unifier.experiment import Experiment, Task
from unifier.heads.classification import ClassificationHead
from unifier.training.loggers import run_tags
from unifier_tokenizers import (
    Mixture,
    PatchTokenizer,
    SubwordTokenizer,
    Tokenizer,
    Units,
    Vocabulary,
    WaveformTokenizer,
)

ROOT = Path(__file__).parents[2] / "experiments"
D = 16


@pytest.mark.parametrize(
    ("file", "name", "settings", "tags"),
    [
        ("translation", "translation", {"depth": 1}, ["text", "translation"]),
        ("ladder", "one_rung", {"rung": "gru"}, ["text", "translation"]),
        ("ladder", "one_rung", {"rung": "prefix"}, ["text", "translation"]),
        ("pictures", "pictures", {}, ["image", "classification"]),
        ("genres", "genres", {}, ["audio", "classification"]),
        ("genres", "genres", {"task": "tags"}, ["audio", "tagging"]),
        ("genres_and_moods", "genres_and_moods", {}, ["audio", "classification", "tagging"]),
        ("one_trunk", "one_trunk", {}, ["text", "image", "audio", "translation", "classification"]),
    ],
)
def test_our_own_experiments(file: str, name: str, settings: dict[str, Any], tags: list[str]) -> None:
    build: Callable[..., Any] = list_experiments(ROOT / f"{file}.py")[name]
    described = build(dim=D, **settings)
    assert isinstance(described, Experiment)
    assert run_tags(described.tasks.values()) == tags


class Series(Tokenizer):
    """A modality of somebody else's."""

    def encode(self, raw: Any) -> Units:
        raise NotImplementedError

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        raise NotImplementedError


def test_a_mixture_is_all_its_members_and_a_kind_of_one_s_own_is_called_as_its_class() -> None:
    text = SubwordTokenizer(Vocabulary.fit(["a text"], size=300), D)
    members = {"text": text, "picture": PatchTokenizer(D), "sound": WaveformTokenizer(D, sample_rate=8000)}
    head = ClassificationHead(Digits.labels, D)
    mixed, own = (Task(Digits(), tokenizer, head) for tokenizer in (Mixture(members), Series(D)))
    assert run_tags([mixed]) == ["text", "image", "audio", "classification"]
    assert run_tags([own, mixed]) == ["Series", "text", "image", "audio", "classification"]
