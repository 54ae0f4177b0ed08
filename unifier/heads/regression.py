"""A head that predicts one or several numbers per example."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.classification import Pooling, TokenPool
from unifier.heads.head import check_labels, count_examples, list_labels
from unifier.heads.summed_metrics import SummedHead
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Tokens


@final
class RegressionHead(SummedHead):
    """A linear regression on the pooled tokens.

    A target is a number, or a sequence of K numbers. A prediction is a tensor of K numbers, in the units of the
    targets. The loss is the mean squared error of the standardized numbers, so that all numbers count equally.
    """

    lower_is_better = frozenset({"mae"})
    task_tag = "regression"

    def __init__(
        self,
        names: Sequence[str],
        dim: int,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        pooling: Pooling = "mean",
        dropout: float = 0.0,
    ) -> None:
        """Build the head.

        Args:
            names: The names of the K numbers.
            dim: D, the number of features of a token.
            mean: The mean of each number over the train split (see `target_moments`).
            std: The standard deviation of each number over the train split.
            pooling: See `TokenPool`.
            dropout: The dropout probability before the linear map.
        """
        super().__init__()
        self.names, self.dim = check_labels(names), dim
        if not len(self.names) == len(mean) == len(std) > 0:
            raise InputError(f"{len(self.names)} names, {len(mean)} means, {len(std)} deviations: give one per number")
        if not min(std) > 0:
            constant = self.names[[*std].index(min(std))]
            raise InputError(f"{constant} is the same number in all training examples: leave this number out")
        self.mean, self.std = (torch.tensor([*numbers], dtype=torch.float64) for numbers in (mean, std))
        self.pool = TokenPool(pooling, dim)
        self.trunk_output = "cls" if pooling == "cls" else "sequence"
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(dim, len(self.names))

    def encode(self, target: Any) -> Tensor:
        """Return the standardized numbers (K,)."""
        return ((self._numbers(target) - self.mean) / self.std).float()

    def _numbers(self, target: Any) -> Tensor:
        try:
            numbers = torch.as_tensor(target, dtype=torch.float64).reshape(-1)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"the target {target!r} is not a number or a sequence of numbers") from error
        if len(numbers) != len(self.names):
            raise InputError(f"{len(numbers)} numbers, but {len(self.names)} are expected: {', '.join(self.names)}")
        for name, number in zip(self.names, numbers.tolist(), strict=True):
            if not math.isfinite(number):
                raise InputError(f"{name} is {number}: give a finite number, or leave out the example")
        return numbers

    def _standardized(self, tokens: Tokens) -> Tensor:
        return in_float32(self.out, self.dropout(self.pool(tokens)))

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean squared error of standardized numbers (B, K)."""
        return functional.mse_loss(self._standardized(tokens), target)

    def target_counts(self, target: Tensor) -> Tensor:
        return count_examples(target)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        return list(self._standardized(tokens).cpu().double() * self.std + self.mean)

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the numbers (B, K) in the units of the targets, in float64."""
        return self._standardized(tokens).double() * self.std + self.mean

    def describe_graph(self) -> list[str]:
        return [f"`output` has these numbers along the last axis: {', '.join(self.names)}."]

    def statistics(self, predictions: Sequence[Tensor], targets: Sequence[Any]) -> NDArray[np.float64]:
        """Return (n, 1 + 4 K): a column of ones, then K values, squares, absolute errors and squared errors.

        The numbers are relative to the mean of the train split, which keeps the sums accurate.
        """
        true = torch.stack([self._numbers(target) for target in targets])
        errors, centered = torch.stack([*predictions]).detach().double() - true, true - self.mean
        parts = [torch.ones(len(true), 1), centered, centered**2, errors.abs(), errors**2]
        return torch.cat(parts, 1).numpy()

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        """Return the mean R2 of the numbers in percent, and the mean absolute error in the units of the targets.

        R2 is 100 for exact predictions, and 0 for the mean of the scored examples. R2 is NaN if a number never changes.
        """
        count, sums = total[0], total[1:].reshape(4, -1)
        variation = sums[1] - sums[0] ** 2 / count
        r2 = 1 - np.divide(sums[3], variation, out=np.full(len(variation), np.nan), where=variation > 1e-12 * sums[1])
        return {"r2": 100 * float(r2.mean()), "mae": float(sums[2].mean() / count)}

    def check_targets(self, targets: Iterable[Any]) -> None:
        """Raise InputError if all examples have the same value of a number, because R2 is then not defined."""
        numbers = torch.stack([self._numbers(target) for target in targets])
        for name, values in zip(self.names, numbers.T, strict=True):
            if (values == values[0]).all():
                raise InputError(f"{name} is the same number in all {len(values)} examples, so R2 is not defined")

    def describe_target(self, target: Any) -> str:
        return self.describe(self._numbers(target))

    def describe(self, prediction: Tensor) -> str:
        numbers = [f"{number:.4g}" for number in prediction.tolist()]
        if len(numbers) == 1:
            return numbers[0]
        return ", ".join(f"{name} {number}" for name, number in zip(self.names, numbers, strict=True))

    def describe_task(self, noun: str) -> str:
        return f"predicts these numbers for {noun}: {list_labels(self.names)}."

    def describe_answer(self) -> str:
        return (
            "The model's numbers are multiplied by `std`, and `mean` is added (arguments of the head in config.json)."
        )


def target_moments(targets: Iterable[Any]) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of the targets, for each component if the targets are sequences.

    Raises:
        InputError: If there are no targets, or a number is not finite.
    """
    rows = [np.asarray(target, np.float64).reshape(-1) for target in targets]
    if not rows or not np.isfinite(numbers := np.stack(rows)).all():
        raise InputError("at least one training example and only finite numbers as targets are needed")
    return numbers.mean(0).tolist(), numbers.std(0).tolist()
