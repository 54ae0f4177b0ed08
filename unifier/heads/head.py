"""The base class of heads, which turn the trunk's tokens into a loss, predictions and metrics."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from unifier.nn.attention import AttentionMode
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, Tokenizer, Tokens, Units
from unifier_tokenizers.configurable import Configurable

IGNORE_INDEX = -100
"""The target value that losses ignore. Targets of different lengths are padded with this value."""

MAX_CARD_LABELS = 200
"""Largest number of labels that a model card lists. All labels are in config.json."""


class Head(Configurable, nn.Module, ABC):
    """Base class of heads, the task-specific layers after the trunk.

    A subclass defines the loss, the predictions and the metrics of the task. If the subclass has an attribute `dim`,
    `Experiment` checks that `dim` equals the trunk's D.
    """

    attention_mode: AttentionMode = "bidirectional"
    """The tokens that each token can attend to in the trunk (see `AttentionMode`)."""

    trunk_output: Literal["sequence", "cls", "input"] = "sequence"
    """The tokens that the head reads.

    "sequence" means all output tokens of the trunk. "cls" means only the first output token, which is the class token.
    "input" means the input tokens of the trunk. A head with "input" runs the trunk itself (see `attach_trunk`).
    """

    lower_is_better: frozenset[str] = frozenset()
    """The names of the metrics that are errors. A lower value of such a metric is better, as for nats per token.

    For every other metric, a higher value is better (compare `higher_is_better` in torchmetrics).
    """

    max_score: float | None = 100.0
    """The best possible value of the first metric, a number above 0.

    Joint training divides the score of each task by `max_score`, and averages the results. None means that the metric
    has no best value above 0, for example an error. Joint training with an error needs the error of a chance-level
    prediction, the entry `chance` of the source's `score_range` (see `score_percent`).
    """

    marked_text: bool = False
    """True if the names of extra entries of the vocabulary mean these entries in the texts that a model answers.

    For example, "<mask>" in such a text is a gap. The texts of training are ordinary texts (see `MarkedText`).
    """

    missing_prediction: str = ""
    """The reason why a new input has no prediction, in words. "" means that `predict` answers every input."""

    task_tag: str = ""
    """The kind of task in the tags of W&B and of the hub, such as "classification". "" means the name of the class."""

    memory: int = 0
    """The number of tokens before a batch that the trunk keeps, for sequences that are read in pieces.

    With a memory, the pieces of a sequence lie in the same row of consecutive batches (see `unifier.data.streams`). The
    positions of a piece begin after the positions of the piece before. Only causal heads can have a memory.
    """

    num_passes: int = 1
    """The number of copies of a training batch that the loss needs, concatenated along B. R-Drop needs two copies."""

    @abstractmethod
    def encode(self, target: Any) -> Tensor:
        """Convert one raw target to a tensor.

        This method runs in data workers, and must not read a parameter.

        Raises:
            InputError: If the target is not valid for the task.
        """

    def check_target(self, units: Units, target: Tensor) -> None:
        """Raise InputError if an encoded target does not fit its encoded input, for example in its length.

        The default implementation accepts every target.
        """

    def check_trained(self, targets: Iterable[Tensor]) -> None:
        """Raise InputError if the encoded targets of train cannot train the head, for example if a class is missing.

        The default implementation accepts all targets, and reads none of them.
        """

    @abstractmethod
    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the training loss, a scalar.

        Targets (B, ...) of different lengths are padded with `IGNORE_INDEX`.
        """

    def loss_inputs(self, tokens: Tokens, target: Tensor, values: Tensor) -> Tensor:
        """Return the training loss, a scalar, given also the values (B, ..., N) of the input.

        The default implementation calls `loss`. A head that learns from a second model, which reads the same input,
        overrides this method.
        """
        return self.loss(tokens, target)

    def target_counts(self, target: Tensor) -> Tensor:
        """Return the number of targets (B,) of each example, over which `loss` averages.

        Several processes divide the examples of a batch. Their losses are weighted by the numbers of targets, so that
        the sum is the loss of the whole batch. The default implementation refuses to train on several processes.

        Args:
            target: The encoded targets (B, ...), or the targets of the objective.

        Raises:
            InputError: If `loss` is no mean over targets, or if the subclass does not define this method.
        """
        raise InputError(
            f"{type(self).__name__} cannot be trained on several processes, because the class has no method "
            "target_counts: use one process"
        )

    @abstractmethod
    def predict(self, tokens: Tokens) -> Sequence[Any]:
        """Return one prediction per example, on the CPU.

        This method runs in validation, test and inference, but not in training.
        """

    def predict_inputs(self, tokens: Tokens, values: Tensor) -> Sequence[Any]:
        """Return one prediction per example of new inputs, on the CPU. Only inference calls this method.

        The default implementation calls `predict`. A head whose answer depends on the input itself, such as the places
        of gaps in a text, overrides this method.

        Args:
            tokens: The trunk's tokens (B, D, N).
            values: The values of the input (B, ..., N).
        """
        return self.predict(tokens)

    def evaluate(self, tokens: Tokens, target: Tensor) -> Sequence[Any]:
        """Return one prediction per example for `metrics`, on the CPU. Validation and test call this method.

        The default implementation calls `predict`. A head that scores the targets of an objective overrides this
        method, because `metrics` receives only the targets of the data set.

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: The encoded targets (B, ...), or the targets of the objective.
        """
        return self.predict(tokens)

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the tensor (B, ...) that an exported graph gives for the trunk's tokens (B, D, N).

        The method must be traceable by `torch.export`. The default implementation refuses the export.

        Raises:
            InputError: If the head cannot be exported as a graph.
        """
        raise InputError(
            f"{type(self).__name__} cannot be exported as a graph, because the class has no method graph_output: use "
            "--format folder"
        )

    def describe_graph(self) -> list[str]:
        """Return sentences on the steps from `graph_output`, which is called `output`, to the answer of `predict`."""
        return [f"`output` is what the class `{type(self).__name__}` computes from the trunk's tokens."]

    @abstractmethod
    def metrics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> Mapping[str, float]:
        """Compute the metrics of the predictions of a whole split, given the raw targets.

        A higher value of a metric is better, except for the metrics in `lower_is_better`. The first metric selects the
        best weights. Callers use `checked_metrics` instead of this method.
        """

    @final
    def checked_metrics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
        """Return the result of `metrics` as Python floats (see `check_metrics`)."""
        return check_metrics(self, self.metrics(predictions, targets))

    def example_score(self, prediction: Any, target: Any) -> tuple[float, float] | None:
        """Return the score of one example and the weight of the score, for paired tests over test examples.

        The weighted mean over the test examples must be the first metric. A first metric in percent may be 100 times
        the mean. None means that the first metric is not a mean over examples.

        Args:
            prediction: A prediction of `evaluate`.
            target: The raw target of the example.
        """
        return None

    def attach_trunk(self, trunk: Trunk) -> None:
        """Store the experiment's trunk without registering the trunk's parameters in the head.

        Only heads that run the trunk themselves, such as `PrefixHead`, override this method.

        Raises:
            InputError: If the head cannot run the trunk.
        """

    def attach_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Store the task's tokenizer without registering its parameters in the head.

        Only heads that change the input, such as `ReplacedTokenDetectionHead`, override this method.

        Raises:
            InputError: If the head cannot use the tokenizer.
        """

    @final
    def run_trunk(self, trunk: Trunk, tokens: Tokens) -> Tokens:
        """Return the tokens (B, D, N) that `trunk_output` selects for `loss` and `predict`.

        Raises:
            InputError: If the trunk does not return `Tokens`, or if the input and the output differ in B, D or N.
        """
        if self.trunk_output == "input":
            return tokens
        run = trunk.forward_first_token if self.trunk_output == "cls" else trunk
        output = run(tokens, self.attention_mode)
        if not isinstance(output, Tokens):
            raise InputError(f"{type(trunk).__name__} returned a {type(output).__name__}: a trunk must return Tokens")
        if self.trunk_output == "sequence" and output.matrix.shape != tokens.matrix.shape:
            raise InputError(
                f"{type(trunk).__name__} returned a matrix {tuple(output.matrix.shape)} for an input "
                f"{tuple(tokens.matrix.shape)}: a trunk must return the shape (B, D, N) of its input"
            )
        return output

    def check_targets(self, targets: Iterable[Any]) -> None:
        """Raise InputError if the metrics are not defined for a split with these raw targets.

        The default implementation accepts every split.
        """

    def describe(self, prediction: Any) -> str:
        """Return a prediction as text for the report's table of samples."""
        return str(prediction)

    def describe_target(self, target: Any) -> str:
        """Return a raw target as text for reports. The default "" means that the target itself is written."""
        return ""

    def describe_task(self, noun: str) -> str:
        """Return the end of a model card's sentence that begins with "The task", such as "gives a picture 2 tags."

        Args:
            noun: The input in words, such as "a picture".
        """
        return f"answers {noun} with the class `{type(self).__name__}`."

    def describe_answer(self) -> str:
        """Return sentences for a model card on the steps from the head's output to an answer, or "" for no steps."""
        return ""

    @property
    def signatures(self) -> Mapping[str, str]:
        """The exact variant of each metric that has several variants, such as sacreBLEU's signature for "bleu"."""
        return {}


def list_labels(labels: Sequence[str]) -> str:
    """Return the first `MAX_CARD_LABELS` labels as text."""
    more = f" and {len(labels) - MAX_CARD_LABELS:,} more" if len(labels) > MAX_CARD_LABELS else ""
    return f"{', '.join(labels[:MAX_CARD_LABELS])}{more}"


def count_examples(target: Tensor) -> Tensor:
    """Return one target (B,) per example, for a loss that is the mean over the examples of targets (B, ...)."""
    return torch.ones(len(target), dtype=torch.int64)


def count_labels(target: Tensor) -> Tensor:
    """Return the number (B,) of labels or ids in each row of targets (B, L), without padding."""
    return (target != IGNORE_INDEX).sum(1)


def check_labels(labels: Iterable[str], minimum: int = 1) -> tuple[str, ...]:
    """Return the labels as a tuple, or raise InputError if a label is not a string, or if labels are equal or too few.

    Args:
        labels: The labels.
        minimum: The smallest number of labels.
    """
    labels = tuple(labels)
    for label in labels:
        if not isinstance(label, str):
            raise InputError(
                f"the label {label!r} is not a string: give strings as labels; a target may be the index of a label"
            )
    if len(set(labels)) != len(labels) or len(labels) < minimum:
        raise InputError(f"labels={[*labels]}: at least {minimum} are needed, and all labels must be different")
    return labels


def check_trained_classes(labels: Sequence[str], targets: Iterable[Tensor]) -> None:
    """Raise InputError if no training target contains the index of a label.

    Args:
        labels: The names of the classes.
        targets: The encoded targets, with indices of labels, and negative numbers for places without a label.
    """
    missing = set(range(len(labels)))
    for target in targets:
        missing.difference_update(target.unique().tolist())
        if not missing:
            return
    names = ", ".join(labels[index] for index in sorted(missing))
    raise InputError(f"no training example has the class {names}: leave this class out, or add examples to train")


def check_predictions(head: Head, predictions: object, num_examples: int) -> None:
    """Raise InputError if the output of `predict` is not a list with one prediction per example.

    A tensor (B,) is accepted. A tensor with two or more dimensions is refused, because the tensor is most likely a
    batch of logits.
    """
    name = f"{type(head).__name__}.predict"
    if isinstance(predictions, Tensor) and predictions.ndim != 1:
        raise InputError(
            f"{name} returned a tensor {tuple(predictions.shape)}, probably logits: return a list with one prediction "
            f"for each of the {num_examples} examples, such as logits.argmax(1).tolist()"
        )
    if not isinstance(predictions, Sized) or isinstance(predictions, (str, Mapping)):
        raise InputError(
            f"{name} returned a {type(predictions).__name__}: return a list with one prediction for each of the "
            f"{num_examples} examples"
        )
    if len(predictions) != num_examples:
        raise InputError(
            f"{name} returned {len(predictions)} predictions for {num_examples} examples: return one prediction for "
            "each example"
        )


def check_metrics(head: Head, metrics: object) -> dict[str, float]:
    """Return `metrics` with Python floats as values, or raise InputError if `metrics` is not a mapping to numbers.

    InputError is also raised if `lower_is_better` contains an unknown name, or if `max_score` is given for an error.
    """
    name = f"{type(head).__name__}.metrics"
    if not isinstance(metrics, Mapping):
        raise InputError(
            f"{name} returned {metrics!r}, a {type(metrics).__name__}: return a mapping from metric names to numbers, "
            'such as {"accuracy": 91.5}'
        )
    if not metrics:
        raise InputError(
            f"{name} returned an empty mapping: at least one metric is needed, because the first metric selects the "
            "weights"
        )
    if unknown := head.lower_is_better - metrics.keys():
        raise InputError(
            f"{type(head).__name__}.lower_is_better contains {min(unknown)!r}, but the metrics are "
            f"{', '.join(map(str, metrics))}: give names of metrics"
        )
    first = next(iter(metrics))
    if first in head.lower_is_better and head.max_score is not None:
        raise InputError(
            f"{type(head).__name__} has max_score={head.max_score:g}, but its first metric {first} is an error "
            "without a maximum: set max_score = None"
        )
    try:
        return {metric: float(score) for metric, score in metrics.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} returned {metrics}: each value must be a single number") from error


def score_percent(
    score: float, max_score: float | None, *, lower_is_better: bool = False, chance: float | None = None
) -> float:
    """Return a task's score in percent of the best possible score, so that a higher percentage is better.

    An error becomes 100 (1 - error / chance). A score without a best possible value, and an error without a positive
    error at chance, are not rescaled, but the error is negated.

    Args:
        score: The value of the first metric.
        max_score: The head's `max_score`.
        lower_is_better: True if the first metric is an error.
        chance: The error of a chance-level prediction, the entry `chance` of the source's score range.
    """
    if lower_is_better:
        return -score if chance is None or chance <= 0 else 100 * (1 - score / chance)
    return 100 * score / (max_score or 100)


def mean_score_percent(percentages: Iterable[float]) -> float:
    """Return the mean of the tasks' scores in percent (see `score_percent`).

    A score that is NaN is skipped. For example, ROC-AUC is NaN if all targets are equal.
    """
    defined = [percentage for percentage in percentages if not math.isnan(percentage)]
    return sum(defined) / len(defined) if defined else math.nan
