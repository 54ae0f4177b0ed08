"""The contract of a head: it turns the trunk's tokens into a loss, predictions and metrics."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Literal, final

from torch import Tensor, nn

from unifier.nn.attention import AttentionMode
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, Tokens

IGNORE_INDEX = -100
"""The target value that losses ignore; shorter targets of a batch are padded with it."""


class Head(nn.Module, ABC):
    """The part of a task after the trunk: a subclass defines the loss, the predictions and the metrics of one task.

    If a head has an attribute `dim`, `Experiment` checks before training that it equals the trunk's D.
    """

    attention_mode: AttentionMode = "bidirectional"
    """The tokens that each token may attend to in the trunk."""

    trunk_output: Literal["sequence", "cls", "input"] = "sequence"
    """The tokens that the head reads: all outputs of the trunk, or the first one, which is a class token's, or the
    trunk's input. A head that reads the input runs the trunk itself (see `attach_trunk`)."""

    max_score: float | None = 100.0
    """The best possible value of the first metric, above 0. Joint training averages scores as percentages of it.
    None means that the metric has no upper bound; such a task can only be trained alone."""

    num_passes: int = 1
    """The number of copies of a training batch, concatenated along B, that the loss needs (2 with R-Drop)."""

    @abstractmethod
    def encode(self, target: Any) -> Tensor:
        """Convert one raw target to a tensor. It runs in data workers and must not read a parameter.

        Raises:
            InputError: If the target does not belong to this task.
        """

    @abstractmethod
    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the training loss, a scalar; targets (B, ...) of different lengths are padded with `IGNORE_INDEX`."""

    @abstractmethod
    def predict(self, tokens: Tokens) -> Sequence[Any]:
        """Return one prediction per example, on the CPU; it runs in validation, test and inference only."""

    @abstractmethod
    def metrics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> Mapping[str, float]:
        """Score the predictions of a whole split against raw targets; higher is better.

        The first metric selects the model. Call `checked_metrics`, which checks the result.
        """

    @final
    def checked_metrics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
        """Return `metrics` as Python floats, or raise InputError if it is not a mapping from names to numbers."""
        return check_metrics(self, self.metrics(predictions, targets))

    def attach_trunk(self, trunk: Trunk) -> None:
        """Attach the experiment's trunk without registering its parameters.

        Only heads that run the trunk themselves, such as `PrefixHead`, override this method.

        Raises:
            InputError: If the head cannot run this trunk.
        """

    @final
    def run_trunk(self, trunk: Trunk, tokens: Tokens) -> Tokens:
        """Return the tokens (B, D, N) that `loss` and `predict` read, as `trunk_output` states.

        Raises:
            InputError: If the trunk does not return Tokens, or returns another number of tokens or another D.
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
                f"{tuple(tokens.matrix.shape)}: a trunk must keep B, D and N"
            )
        return output

    def check_targets(self, targets: Iterable[Any]) -> None:
        """Raise InputError if a split with these raw targets cannot be scored; by default, every split can."""

    def describe(self, prediction: Any) -> str:
        """Return a prediction as text for a table of samples."""
        return str(prediction)

    @property
    def signatures(self) -> Mapping[str, str]:
        """The exact variant of each metric that has variants, such as sacreBLEU's signature for "bleu"."""
        return {}


def check_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels as a tuple, or raise InputError if one is not a string."""
    labels = tuple(labels)
    for label in labels:
        if not isinstance(label, str):
            raise InputError(f"the label {label!r} is not a string: give names, and indices from 0 as targets")
    return labels


def check_predictions(head: Head, predictions: object, num_examples: int) -> None:
    """Raise InputError if the output of `predict` is not one answer per example.

    A tensor with two or more dimensions is refused, because it is most likely a batch of logits. A tensor (B,) is one
    number per example.
    """
    name = f"{type(head).__name__}.predict"
    if isinstance(predictions, Tensor) and predictions.ndim != 1:
        raise InputError(
            f"{name} returned a tensor {tuple(predictions.shape)}, such as logits: return a list with one answer for "
            f"each of the {num_examples} examples, such as logits.argmax(1).tolist()"
        )
    if not isinstance(predictions, Sized) or isinstance(predictions, (str, Mapping)):
        raise InputError(
            f"{name} returned a {type(predictions).__name__}: return a list with one answer for each of the "
            f"{num_examples} examples"
        )
    if len(predictions) != num_examples:
        raise InputError(
            f"{name} returned {len(predictions)} predictions for {num_examples} examples: return one for each"
        )


def check_metrics(head: Head, metrics: object) -> dict[str, float]:
    """Return the output of `metrics` as Python floats, or raise InputError if it is not a mapping to numbers."""
    name = f"{type(head).__name__}.metrics"
    if not isinstance(metrics, Mapping):
        raise InputError(
            f"{name} returned {metrics!r}, a {type(metrics).__name__}: return a mapping from metric names to numbers, "
            'such as {"accuracy": 91.5}'
        )
    if not metrics:
        raise InputError(f"{name} returned an empty mapping: one metric is needed, because it selects the model")
    try:
        return {metric: float(score) for metric, score in metrics.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} returned {metrics}: each value must be a single number") from error


def mean_score_percent(scores: Iterable[tuple[float, float | None]]) -> float:
    """Average the tasks' scores, each as a percentage of its best possible value.

    NaN scores are skipped, such as an area under a curve if all targets are equal. Without a best possible value, a
    score is not rescaled.

    Args:
        scores: For each task, the first metric and the head's `max_score`.
    """
    shares = [100 * score / (max_score or 100) for score, max_score in scores if not math.isnan(score)]
    return sum(shares) / len(shares) if shares else math.nan
