"""A head that forecasts time series: the next values of each channel, from the patches of its past."""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unifier.heads.summed_metrics import SummedHead
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Tokens


class Future(NamedTuple):
    """The values that follow a window, and the moments of the window (see `window_moments`)."""

    values: Tensor
    """The next H values of each channel (C, H)."""
    mean: Tensor
    """The mean of each channel of the window (C, 1)."""
    std: Tensor
    """The standard deviation of each channel of the window (C, 1)."""
    start: int = 0
    """The time step of the first value. Windows with equal time steps are resampled together."""


@final
class ForecastingHead(SummedHead):
    """A linear map from all tokens of a channel to its next H values (PatchTST, Nie et al. 2023, section 3.1).

    The linear map predicts normalized values, which are multiplied by the window's standard deviation. Then the
    window's mean is added. Forecasts therefore have the units of the input. A channel that is constant in the window
    keeps its value. The loss is the mean squared error in the units of the data set.

    Windows that overlap are not independent. The intervals of the metrics therefore resample blocks of windows.
    """

    lower_is_better = frozenset({"mse", "mae", "rmse"})
    max_score = None
    task_tag = "forecasting"

    def __init__(self, horizon: int, dim: int, *, num_patches: int = 1, dropout: float = 0.0) -> None:
        """Build the head.

        Args:
            horizon: H, the number of time steps to forecast.
            dim: D, the number of features of a token.
            num_patches: The number of tokens of each channel (see `SeriesTokenizer.num_patches`).
            dropout: The dropout probability before the linear map.
        """
        super().__init__()
        if horizon < 1:
            raise InputError(f"horizon={horizon}: at least 1 time step is needed")
        self.horizon, self.dim, self.num_patches = horizon, dim, num_patches
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(num_patches * dim, horizon)

    def encode(self, target: Future) -> Tensor:
        """Return the mean and the standard deviation of the window, and below them the next values (2 + H, C)."""
        values, mean, std = target[:3]
        if values.shape[1] != self.horizon:
            raise InputError(f"{values.shape[1]} values follow the window, but horizon={self.horizon}")
        return torch.cat([mean, std, values], 1).T.float()

    def normalized(self, tokens: Tokens) -> Tensor:
        """Return the forecasts (B, H, C) of normalized channels, in float32."""
        channels = tokens.matrix.mT.unflatten(1, (-1, self.num_patches)).flatten(2)
        return in_float32(self.out, self.dropout(channels)).mT

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean squared error of all channels, given targets (B, 2 + H, C)."""
        mean, std, values = target[:, :1], target[:, 1:2], target[:, 2:]
        errors = (self.normalized(tokens) * std + mean - values).masked_fill(std < 0, 0)
        return errors.square().sum() / (self.target_counts(target).sum() * self.horizon).to(errors.device)

    def target_counts(self, target: Tensor) -> Tensor:
        return (target[:, 1] >= 0).sum(1)  # Padding has a negative standard deviation.

    def predict(self, tokens: Tokens) -> list[Tensor]:
        """Return the forecasts (C, H) of normalized channels."""
        return self._split(self.normalized(tokens), tokens)

    def predict_inputs(self, tokens: Tokens, values: Tensor) -> list[Tensor]:
        """Return the forecasts (C, H) in the units of the input, given the values (B, P + 2, N) of the input."""
        mean, std = values[:, -2:, :: self.num_patches].split(1, 1)
        return self._split(self.normalized(tokens) * std + mean, tokens)

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[Tensor]:
        """Return the forecasts (C, H) in the units of the targets (B, 2 + H, C)."""
        return self._split(self.normalized(tokens) * target[:, 1:2] + target[:, :1], tokens)

    def _split(self, forecasts: Tensor, tokens: Tokens) -> list[Tensor]:
        """Return the forecasts of each example without padding. The forecasts have the shape (B, H, C)."""
        counts = (tokens.mask.sum(1) // self.num_patches).tolist()
        return [forecast[:, :count].T for forecast, count in zip(forecasts.cpu(), counts, strict=True)]

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the forecasts (B, H, C) of normalized channels."""
        return self.normalized(tokens)

    def describe_graph(self) -> list[str]:
        shape = f"`output` has {self.horizon} time steps along axis 1 and channels along axis 2."
        return [shape, self.describe_answer()]

    def statistics(self, predictions: Sequence[Tensor], targets: Sequence[Future]) -> NDArray[np.float64]:
        """Return the sums of squared and of absolute errors, and the number of values, of each window (n, 3)."""
        errors = [
            (prediction.detach().double() - target.values.double()).numpy()
            for prediction, target in zip(predictions, targets, strict=True)
        ]
        return np.array([(np.square(each).sum(), np.abs(each).sum(), each.size) for each in errors])

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        """Return the mean squared error, the mean absolute error, and the root of the mean squared error.

        The errors are in the units of the data set. Each value of each channel and each window counts equally.
        """
        squared, absolute = (total[:2] / total[2]).tolist()
        return {"mse": squared, "mae": absolute, "rmse": math.sqrt(squared)}

    def describe(self, prediction: Tensor) -> str:
        channels = ["; ".join(f"{number:.4g}" for number in channel[:3].tolist()) for channel in prediction[:3]]
        return " | ".join(f"{text}; …" if self.horizon > 3 else text for text in channels)

    def describe_target(self, target: Future) -> str:
        return self.describe(target.values)

    def describe_task(self, noun: str) -> str:
        return f"forecasts the next {self.horizon} time steps of each channel of {noun}."

    def describe_answer(self) -> str:
        return "Forecasts are multiplied by the standard deviation of the window's channel, and its mean is added."
