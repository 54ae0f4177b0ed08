"""Start of a run from the weights of a trained model."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from unifier.experiment import Experiment
from unifier.models.folder import StoredModel, find_model, read_model
from unifier_tokenizers import InputError, PretrainedTextTokenizer, SubwordTokenizer, Tokenizer, WordTokenizer

COSTS = ("tokens", "flops", "seconds")
"""The costs of a trained model that a run that starts from the model inherits."""


def load_start(experiment: Experiment, classes: Iterable[type] = ()) -> dict[str, Any]:
    """Load the weights of the model `start` into the trunk and the tokenizers. Return the lineage of the run.

    The lineage names the trained model, its hash, the tasks whose tokenizers were loaded, and the cost of all training
    before the run. Without `start`, the lineage is empty.

    Args:
        experiment: The experiment whose trunk and tokenizers are loaded.
        classes: Classes of the trained model that are in no installed package and not in the experiment.

    Raises:
        InputError: The folder contains no model, or its trunk is of another class or shape.
    """
    training = experiment.training
    if training.start is None:
        return {}
    stored = read_model(find_model(training.start), [*classes, *part_classes(experiment)])
    _load_trunk(training.start, experiment.trunk, stored.trunk)
    started = [
        name
        for name, task in experiment.tasks.items()
        if training.start_tokenizers and _load_tokenizer(name, task.tokenizer, stored)
    ]
    return {
        "start": stored.name,
        "sha256": stored.sha256,
        "tokenizers": started,
        "pretraining": pretraining_cost(stored.facts),
    }


def part_classes(experiment: Experiment) -> set[type]:
    """Return the classes of an experiment's trunk, tokenizers and heads."""
    parts = (part for task in experiment.tasks.values() for part in (task.tokenizer, task.head))
    return {type(part) for part in (experiment.trunk, *parts)}


def pretraining_cost(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the cost of a model's training, including the training of the models that it started from."""
    own, earlier = facts.get("budget", {}), facts.get("lineage", {}).get("pretraining", {})
    return {cost: own.get(cost, 0) + earlier.get(cost, 0) for cost in COSTS}


def _load_trunk(start: str, trunk: nn.Module, trained: nn.Module) -> None:
    if type(trunk) is not type(trained):
        raise InputError(
            f"start={start}: its trunk is a {type(trained).__name__}, but the experiment's trunk is a "
            f"{type(trunk).__name__}; use the same kind of trunk"
        )
    if (difference := _difference(trunk.state_dict(), trained.state_dict())) is not None:
        raise InputError(f"start={start}: the trunks differ in {difference}; use trunks of the same shape")
    trunk.load_state_dict(trained.state_dict())


def _load_tokenizer(name: str, tokenizer: Tokenizer, stored: StoredModel) -> bool:
    """Load the trained tokenizer with equal class, shapes and vocabulary. Return False without such a tokenizer."""
    by_priority = sorted(stored.tasks.items(), key=lambda item: item[0] != name)
    for _, task in by_priority:
        if _is_equal(tokenizer, task.tokenizer):
            tokenizer.load_state_dict(task.tokenizer.state_dict())
            return True
    return False


def _is_equal(tokenizer: Tokenizer, trained: Tokenizer) -> bool:
    if type(tokenizer) is not type(trained) or _difference(tokenizer.state_dict(), trained.state_dict()) is not None:
        return False
    texts = [
        part
        for part in tokenizer.modules()
        if isinstance(part, SubwordTokenizer | WordTokenizer | PretrainedTextTokenizer)
    ]
    trained_texts = [
        part
        for part in trained.modules()
        if isinstance(part, SubwordTokenizer | WordTokenizer | PretrainedTextTokenizer)
    ]
    return all(
        part.vocabulary.codec.to_str() == other.vocabulary.codec.to_str()
        for part, other in zip(texts, trained_texts, strict=True)
    )


def _difference(state: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> str | None:
    """Return the name and the shapes of the first weight that differs, or None."""
    for name in {**state, **trained}:
        shapes = [tuple(weights[name].shape) if name in weights else None for weights in (state, trained)]
        if shapes[0] != shapes[1]:
            return f"{name} ({shapes[0]} here, {shapes[1]} in the trained model)"
    return None
