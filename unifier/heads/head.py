"""The contract of a head: what the trunk read becomes a loss in training and an answer in use."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, final

from torch import Tensor, nn

from unifier.nn.attention import AttentionMode
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, Tokens

IGNORE_INDEX = -100
"""The target value that no loss counts; targets of unlike length are padded with it."""


def check_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels as a tuple; raises InputError where one is no text."""
    found = tuple(labels)
    for label in found:
        if not isinstance(label, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"labels are texts, not {label!r}: give names, and their numbers from 0 as targets")
    return found


class Head(nn.Module, ABC):
    """Turns the trunk's tokens into a loss, and into predictions; one task a subclass.

    A head with a `dim` accepts only columns of that size; `Experiment` checks it against the trunk's before training.
    """

    attention_mode: AttentionMode = "bidirectional"
    """What the trunk's columns may see under this head."""

    trunk_output: Literal["sequence", "cls", "input"] = "sequence"
    """Which of the trunk's columns this head reads: the first is a class token's. One that reads none is given the
    columns as they enter the trunk, and puts that, which it is lent, to a use of its own."""

    max_score: float | None = 100.0
    """The best possible value of the first metric, above 0. Tasks trained together are scored as a percentage of it, and
    errors are measured from it. None if the metric has no upper bound; such an task can only be trained alone."""

    num_passes: int = 1
    """How many copies of a training batch, concatenated along B, the trunk reads for this loss (2 with R-Drop)."""

    @abstractmethod
    def encode(self, target: Any) -> Tensor:
        """One raw target as a tensor; runs in data num_workers and reads no parameter.

        Raises InputError where the target is none of this task.
        """

    @abstractmethod
    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """The scalar that training lowers; targets (B, ...) of unlike length are padded with `IGNORED`."""

    @abstractmethod
    def predict(self, tokens: Tokens) -> Sequence[Any]:
        """B predictions on the CPU; runs only in validation, test and use."""

    @abstractmethod
    def metrics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
        """Scores of a whole split, predictions against raw targets; higher is better, the first selects the model."""

    @final
    def scores(self, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
        """`metrics` as Python's floats; raises InputError where there is none, or one is no single number."""
        name, found = type(self).__name__, self.metrics(predictions, targets)
        if not found:
            raise InputError(f"{name}.metrics gives none: the first one selects the model")
        try:
            return {metric: float(score) for metric, score in found.items()}
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}.metrics gives something else than numbers: {found}") from error

    def attach_trunk(self, trunk: Trunk) -> None:
        """Take note of the experiment's trunk, whose parameters are not this head's; most heads have no use for it.

        Raises InputError where it cannot be put to the use that this one has.
        """

    @final
    def run_trunk(self, trunk: Trunk, tokens: Tokens) -> Tokens:
        """Columns (B, D, N) as `loss` and `predict` take them: what the trunk makes of them, as far as it is read."""
        if self.trunk_output == "input":
            return tokens
        read = (trunk.forward_first_token if self.trunk_output == "cls" else trunk)(tokens, self.attention_mode)
        if not isinstance(read, Tokens):
            raise InputError(f"{type(trunk).__name__} gives a {type(read).__name__}: it must give Tokens")
        if self.trunk_output == "sequence" and read.matrix.shape != tokens.matrix.shape:
            raise InputError(
                f"{type(trunk).__name__} makes columns {tuple(read.matrix.shape)} of {tuple(tokens.matrix.shape)}: "
                "it must give as many as it reads, of the same D"
            )
        return read

    def check_targets(self, targets: Iterable[Any]) -> None:
        """Raise InputError where a split with these raw targets cannot be scored; most heads can score any."""

    def describe(self, prediction: Any) -> str:
        """A prediction as a person would read it in a table of samples."""
        return str(prediction)

    @property
    def signatures(self) -> Mapping[str, str]:
        """For a metric with variants, the variant used: sacreBLEU's signature under "bleu"."""
        return {}


def mean_score_percent(scores: Iterable[tuple[float, float | None]]) -> float:
    """What several tasks' scores are together: the mean of each in percent of what is perfect, which stands beside it.

    One that is no number does not count, as an area under a curve is none where all targets are alike; one without a
    perfect score is as it is.
    """
    shares = [100 * score / (perfect or 100) for score, perfect in scores if not math.isnan(score)]
    return sum(shares) / len(shares) if shares else math.nan
