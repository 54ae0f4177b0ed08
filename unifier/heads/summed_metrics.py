"""The base class of heads whose metrics are functions of sums over the examples, such as counts of right answers."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from unifier.heads.head import Head


class SummedHead(Head):
    """Base class of heads whose metrics are functions of sums over the examples.

    The bootstrap over examples adds up the statistics of the drawn examples, and needs no second look at the
    predictions.
    """

    @abstractmethod
    def statistics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> NDArray[np.float64]:
        """Return the statistics (n, K) of n examples, given the raw targets.

        Raises:
            InputError: If a prediction and its target do not fit together.
        """

    @abstractmethod
    def metrics_of(self, total: NDArray[np.float64]) -> Mapping[str, float]:
        """Return the metrics, given the sums (K,) of the statistics of some examples."""

    @final
    def metrics(self, predictions: Sequence[Any], targets: Sequence[Any]) -> Mapping[str, float]:
        return self.metrics_of(self.statistics(predictions, targets).sum(0))


def percent(part: float, whole: float) -> float:
    """Return a share in percent. The share of nothing is 0, as in seqeval."""
    return 100 * float(part) / float(whole) if whole else 0.0
