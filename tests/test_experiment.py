"""Declarations are checked when they are made, and frozen parts of a model are not trained."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unifier import (
    ClassificationHead,
    ConvolutionalTrunk,
    LanguageModelingHead,
    MeanAttentionTrunk,
    NextToken,
    RecurrentTrunk,
    ScoreRange,
    Transformer,
    Trunk,
)
from unifier.data.dataloader import collate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.datasets import Digits
from unifier.experiment import (
    MODEL_PARTS,
    Experiment,
    ModelPart,
    Task,
    Trainable,
    Training,
    fitted,
    freeze,
    recording_fitted,
    save_fitted,
)
from unifier.training.lightning_module import UnifierModule
from unifier_tokenizers import InputError, PatchTokenizer, PixelTokenizer, Vocabulary

D = 8


def task(dim: int = D, head_dim: int | None = None) -> Task:
    return Task(Digits(), PatchTokenizer(dim, channels=1), ClassificationHead("ab", head_dim or dim))


def experiment(*names: str, name: str | None = "pictures", dim: int = D, head_dim: int | None = None) -> Experiment:
    tasks = {one: task(dim, head_dim) for one in names}
    return Experiment(Transformer(D, 1, 2, 8), tasks, Training(steps=1), name=name)


@pytest.mark.parametrize("name", ["digits", "en-de", "a_1", "2", "été"])
def test_task_name_of_word_characters_is_accepted(name: str) -> None:
    assert list(experiment(name, name=None).tasks) == [name]


@pytest.mark.parametrize("name", ["keys", "pop", "training", "forward", "a.b", "", "a/b", "a b", ".."])
def test_task_name_unusable_by_torch_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f'"{name}"'):
        experiment("digits", name)


def test_experiment_needs_tasks_and_a_name_of_a_folder() -> None:
    for name in ("", "a/b", "a b", "..", "."):
        with pytest.raises(InputError, match=f'"{name}"'):
            experiment("digits", name=name)
    with pytest.raises(InputError, match="tasks="):
        experiment()


@pytest.mark.parametrize("sizes", [{"dim": 2 * D, "head_dim": D}, {"head_dim": 2 * D}], ids=["tokenizer", "head"])
def test_task_of_another_dim_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf'"digits".*dim={2 * D}.*dim={D}'):
        experiment("digits", **sizes)


def test_training_takes_seconds_or_other_budgets() -> None:
    assert Training(epochs=1.5).budget == {"epochs": 1.5}
    assert Training(steps=1, tokens=2, flops=3).budget == {"steps": 1, "tokens": 2, "flops": 3}
    assert Training(seconds=1).budget == {}
    with pytest.raises(InputError, match="budget"):
        Experiment(Transformer(D, 1, 2, 8), {"digits": task()}, Training())
    with pytest.raises(InputError, match="seconds=1"):
        Training(steps=1, seconds=1)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_task_with_impossible_loss_weight_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match=f"loss_weight={weight}"):
        replace(task(), loss_weight=weight)
    assert replace(task(), loss_weight=0.0).loss_weight == 0


COUNTS = ("steps", "tokens", "batch_tokens", "grad_accumulation", "average_last", "num_validations", "patience")
POSITIVE = ("learning_rate", "grad_clip", "flops")


@pytest.mark.parametrize(
    "settings",
    [
        *({name: value} for name in COUNTS for value in (0, -1, math.nan, math.inf)),
        *({name: value} for name in POSITIVE for value in (0.0, -1.0, math.nan, math.inf)),
        {"epochs": 1.0, "steps": None, "sampling_temperature": 2.0},
        *({"sampling_temperature": value} for value in (0.0, -1.0, math.nan)),
        *({"warmup_ratio": value} for value in (-0.1, 1.1, math.nan)),
        {"frozen": ["feet"]},
        {"trainable": "some"},
        {"loss_weighting": "learned"},
        {"weight_decay": -0.1},
        *({"num_workers": value} for value in (-1, 1001, 2**63)),
        {"schedule": "linear"},
        {"precision": "fp16"},
        {"compile": "yes"},
        {"compile": "reduce-overhead", "grad_accumulation": 2},
        {"bad_examples": "ignore"},
        {"average_last": 3, "num_validations": 2},
        {"patience": 2, "refit": True},
        {"ema_decay": 0.9, "average_last": 2},
    ],
    ids=str,
)
def test_training_refuses_impossible_values(settings: dict[str, Any]) -> None:
    (name, value), *_ = settings.items()
    with pytest.raises(InputError) as error:
        Training(**dict[str, Any](steps=1) | settings)
    assert name in str(error.value)
    assert str(value).strip("[]'") in str(error.value)


def test_training_accepts_values_at_the_edge() -> None:
    assert Training(steps=1, warmup_ratio=0, weight_decay=0, num_workers=0).warmup_ratio == 0
    assert Training(steps=1, warmup_ratio=1, patience=1, average_last=8).warmup_ratio == 1


def transformer() -> Trunk:
    return Transformer(D, 2, 2, 12)


def model(trunk: Trunk, *frozen: ModelPart, trainable: Trainable = "all") -> UnifierModule:
    source = Digits(val=10, test=10)
    digits = Task(source, PatchTokenizer(D, channels=1, positions="learned"), ClassificationHead(source.labels, D))
    training = Training(steps=1, frozen=frozen, trainable=trainable)
    return UnifierModule(Experiment(trunk, {"digits": digits}, training, name="frozen"))


def train_split(module: UnifierModule, size: int) -> EncodedSplit:
    digits = module.tasks["digits"]
    return encode_split(list(open_split(digits.source, "train"))[:size], digits.tokenizer, digits.head)[0]


def names_changed_by_a_step(module: UnifierModule) -> set[str]:
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    module.loss("digits", collate(train_split(module, 8), range(8))).backward()
    optimizers = module.configure_optimizers()  # The scheduler holds only a weak reference to the optimizer.
    optimizers["optimizer"].step()
    return {name for name, parameter in module.named_parameters() if not torch.equal(parameter, before[name])}


def belongs_to(part: str, name: str) -> bool:
    """Return True if the name of a parameter of `model` places it in the part."""
    if not name.startswith("trunk."):
        return name.startswith(f"{part}s.") or (part == "positions" and ".encoding." in name)
    return part == ("norms" if "norm" in name else "feed_forward" if "feed_forward" in name else "attention")


@pytest.mark.parametrize("part", MODEL_PARTS)
def test_freeze_part_trains_all_other_parameters(part: ModelPart) -> None:
    names = {name for name, _ in model(transformer()).named_parameters()}
    unchanged = names - names_changed_by_a_step(model(transformer(), part))
    assert unchanged == {name for name in names if belongs_to(part, name)} != set()


@pytest.mark.parametrize("trainable", ["none", "norms"])
def test_freeze_trunk_trains_tokenizer_and_head(trainable: Trainable) -> None:
    names = {name for name, _ in model(transformer()).named_parameters()}
    unchanged = names - names_changed_by_a_step(model(transformer(), trainable=trainable))
    trunk = {name for name in names if name.startswith("trunk.")}
    assert unchanged == {name for name in trunk if trainable == "none" or not belongs_to("norms", name)}


def test_freeze_trainable_adds_to_frozen_parts() -> None:
    changed = names_changed_by_a_step(model(transformer(), "tokenizer", trainable="norms"))
    assert {name.split(".")[0] for name in changed} == {"trunk", "heads"}
    with pytest.raises(InputError, match="trainable=none"):
        model(transformer(), "tokenizer", "head", trainable="none")


@pytest.mark.parametrize(
    "make",
    [transformer, lambda: MeanAttentionTrunk(D, 2, 12), lambda: RecurrentTrunk(D, 2), lambda: ConvolutionalTrunk(D, 2)],
    ids=["transformer", "mean_attention", "recurrent", "convolutional"],
)
def test_freeze_all_parts_covers_any_trunk(make: Callable[[], Trunk]) -> None:
    parts: tuple[ModelPart, ...] = ("norms", "attention")
    parts = (*parts, "feed_forward") if hasattr(make(), "blocks") else parts
    assert not any(name.startswith("trunk.") for name in names_changed_by_a_step(model(make(), *parts)))
    assert any(name.startswith("trunk.") for name in names_changed_by_a_step(model(make(), *parts[1:])))


def test_freeze_part_without_parameters_is_refused() -> None:
    with pytest.raises(InputError, match='frozen="feed_forward"'):
        model(RecurrentTrunk(D, 1), "feed_forward")
    with pytest.raises(InputError, match="nroms"):
        model(transformer(), "nroms")  # pyright: ignore[reportArgumentType]


def test_freeze_reduces_counted_flops() -> None:
    def flops(*frozen: ModelPart) -> float:
        module = model(transformer(), *frozen)
        module.prepare({"digits": train_split(module, 4)})
        return float(module.costs["digits"](16, 1))

    # A product has three passes: forward, for its input, for its weight. Freezing drops the last one.
    assert 0.6 < flops("attention", "feed_forward") / flops() < 0.8


def test_freeze_shared_table_with_one_of_its_parts() -> None:
    module = model(transformer())
    table = nn.Embedding(3, D)
    module.tokenizers["digits"].register_module("table", table)
    module.heads["digits"].register_module("table", table)
    training = Training(steps=1, frozen=("tokenizer",))
    freeze(training, module.trunk, module.tokenizers.values(), module.heads.values())
    assert not table.weight.requires_grad


def test_fitted_values_are_read_back_from_a_run(tmp_path: Path) -> None:
    vocabulary = Vocabulary.fit(["a b", "b c"], size=20, level="word")
    with recording_fitted() as values:
        assert fitted("words", lambda: vocabulary) is vocabulary
        assert fitted("length", lambda: 3) == 3
        with pytest.raises(InputError, match='"words"'):
            fitted("words", lambda: vocabulary)
    save_fitted(values, tmp_path)
    with recording_fitted(tmp_path) as values:
        assert fitted("words", lambda: Vocabulary.fit(["d"], level="word")).encode("a c") == vocabulary.encode("a c")
        assert fitted("length", lambda: 4) == 3
        assert fitted("new", lambda: 5) == 5, "a value that the run did not store is fitted"
    assert set(values) == {"words", "length", "new"}
    assert fitted("length", lambda: 6) == 6, "nothing is recorded outside the block"


def test_score_range_of_labels_is_not_used_with_an_objective() -> None:
    labels, tokenizer = Digits(), PixelTokenizer(D, side=4, grays=4)
    head = LanguageModelingHead(4, D, unit="pixel", context=16)
    chance = ScoreRange("nats_per_pixel", 1.0, None, "own")
    assert task().resolved_score_range == Digits.score_range
    assert Task(labels, tokenizer, head, objective=NextToken()).resolved_score_range is None
    assert Task(labels, tokenizer, head, objective=NextToken(), score_range=chance).error_at_chance() == 1.0
