"""Start of a run from the weights of a trained model, and the cost of the models that a run uses."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from unifier.experiment import Experiment
from unifier.heads.head import Head
from unifier.heads.masked_language_modeling import MaskedLanguageModelingHead, Teacher
from unifier.heads.text_generation import TextGenerationHead
from unifier.models.folder import WEIGHTS_FILE, ModelTask, StoredModel, find_earlier_model, read_config, read_model
from unifier_tokenizers import InputError, Mixture, PretrainedTextTokenizer, SubwordTokenizer, Tokenizer, WordTokenizer

COSTS = ("tokens", "flops", "seconds")
"""The costs of a trained model that are part of the pretraining of a run that uses the model."""


@final
class EarlierModel(NamedTuple):
    """A trained model that a run uses."""

    use: str
    """The setting or the part of the run that uses the model, such as "start=FOLDER"."""
    facts: Mapping[str, Any]
    """The facts of the model's folder."""


def load_start(experiment: Experiment, classes: Iterable[type] = ()) -> dict[str, Any]:
    """Load the weights of the model `start` into the trunk and the tokenizers. Return the lineage of the run.

    With the tokenizer, a head that writes texts is loaded too, if class, shapes and vocabulary are equal. The lineage
    names the trained model, its hash, the tasks whose tokenizers or heads were loaded, and the teachers of the heads.
    The lineage contains the cost of all training before the run. Without a trained model, the lineage is empty.

    Args:
        experiment: The experiment whose trunk and tokenizers are loaded.
        classes: Classes of the trained model that are in no installed package and not in the experiment.

    Raises:
        InputError: The folder contains no model, or its trunk is of another class or shape.
    """
    training = experiment.training
    teachers = {teacher.name: None for teacher in _teachers(experiment)}
    lineage: dict[str, Any] = {"teachers": [*teachers]} if teachers else {}
    if teachers or training.start is not None:
        lineage["pretraining"] = pretraining_cost(earlier_models(experiment))
    if training.start is None:
        return lineage
    stored = read_model(find_earlier_model(training.start), [*classes, *part_classes(experiment)])
    _load_trunk(training.start, experiment.trunk, stored.trunk)
    started, heads = list[str](), list[str]()
    for name, task in experiment.tasks.items() if training.start_tokenizers else ():
        if (trained := _load_tokenizer(name, task.tokenizer, stored)) is not None:
            started.append(name)
            if _load_writer(task.head, trained.head):
                heads.append(name)
    lineage |= {"start": stored.name, "sha256": stored.sha256, "tokenizers": started}
    return lineage | ({"heads": heads} if heads else {})


def part_classes(experiment: Experiment) -> set[type]:
    """Return the classes of an experiment's trunk, tokenizers and heads."""
    parts = (part for task in experiment.tasks.values() for part in (task.tokenizer, task.head))
    return {type(part) for part in (experiment.trunk, *parts)}


def earlier_models(experiment: Experiment) -> list[EarlierModel]:
    """Return the trained models that an experiment uses: the model `start`, and the teachers of its heads.

    A teacher from which the experiment also starts is listed once.
    """
    teachers = _teachers(experiment)
    models = {teacher.sha256: EarlierModel(f"teacher {teacher.name}", teacher.facts) for teacher in teachers}
    if (start := experiment.training.start) is not None:
        config = read_config(find_earlier_model(start))
        models[config["files"][WEIGHTS_FILE]] = EarlierModel(f"start={start}", config["facts"])
    return [*models.values()]


def pretraining_cost(models: Iterable[EarlierModel]) -> dict[str, float]:
    """Return the cost of the models' training, including the training of the models that they used."""
    facts = [model.facts for model in models]
    parts = [part for own in facts for part in (own.get("budget", {}), own.get("lineage", {}).get("pretraining", {}))]
    return {cost: sum(part.get(cost, 0) for part in parts) for cost in COSTS}


def _teachers(experiment: Experiment) -> list[Teacher]:
    heads = (task.head for task in experiment.tasks.values())
    return [teacher for head in heads if isinstance(head, MaskedLanguageModelingHead) for teacher in head.teachers]


def _load_trunk(start: str, trunk: nn.Module, trained: nn.Module) -> None:
    if type(trunk) is not type(trained):
        raise InputError(
            f"start={start}: its trunk is a {type(trained).__name__}, but the experiment's trunk is a "
            f"{type(trunk).__name__}; use the same kind of trunk"
        )
    if (difference := _difference(trunk.state_dict(), trained.state_dict())) is not None:
        raise InputError(f"start={start}: the trunks differ in {difference}; use trunks of the same shape")
    trunk.load_state_dict(trained.state_dict())


def _load_tokenizer(name: str, tokenizer: Tokenizer, stored: StoredModel) -> ModelTask | None:
    """Load the weights of a trained tokenizer with the same class, shapes and vocabulary. Return its task, or None.

    The members of a mixture are loaded one by one if no equal mixture was trained.
    """
    by_priority = sorted(stored.tasks.items(), key=lambda item: item[0] != name)
    for _, task in by_priority:
        if _is_equal(tokenizer, task.tokenizer):
            tokenizer.load_state_dict(task.tokenizer.state_dict())
            return task
    if isinstance(tokenizer, Mixture):
        loaded = [_load_tokenizer(member, each, stored) for member, each in tokenizer.members.items()]
        return next((task for task in loaded if task is not None), None)
    return None


def _load_writer(head: Head, trained: Head) -> bool:
    """Load a trained head that writes texts. Return False for other heads, and for unequal shapes or vocabularies."""
    if not isinstance(head, TextGenerationHead) or type(head) is not type(trained):
        return False
    assert isinstance(trained, TextGenerationHead)
    is_equal = head.vocabulary.codec.to_str() == trained.vocabulary.codec.to_str()
    if not is_equal or _difference(head.state_dict(), trained.state_dict()) is not None:
        return False
    head.load_state_dict(trained.state_dict())
    return True


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
