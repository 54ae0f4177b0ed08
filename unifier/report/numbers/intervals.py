"""A mean over seeds or folds, and its 95 % confidence interval."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy import stats


class Estimate(NamedTuple):
    """A mean with its 95 % interval, by Student's t; one value has none, nor have values that are all the same."""

    mean: float
    half: float | None
    """Half the interval's width."""
    size: int
    unit: str = "seed"
    """What there are so many of."""

    @property
    def low(self) -> float | None:
        """The interval's lower end."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """The interval's upper end."""
        return None if self.half is None else self.mean + self.half

    @property
    def holds_zero(self) -> bool:
        """Whether the interval holds 0; where there is none, whether the mean is 0."""
        return abs(self.mean) <= (self.half or 0.0)

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves 0 out, else 0: the values cannot be told from none."""
        if self.half is None or self.holds_zero:
            return 0
        return 1 if self.mean > 0 else -1

    def among(self, choices: int) -> "Estimate":
        """The estimate with its interval widened by Bonferroni for the best of `choices`."""
        if self.half is None:
            return self
        wide, narrow = (stats.t.ppf(1 - 0.025 / number, self.size - 1) for number in (choices, 1))
        return self._replace(half=self.half * float(wide / narrow))


def estimate(values: Iterable[float], unit: str = "seed") -> Estimate:
    """The mean of at least one value, and its interval.

    Scores of a finite test come in steps, so that values that are the same, but for rounding, say nothing of how far
    others would lie apart.
    """
    array = np.fromiter(values, float)
    half = None
    if not np.allclose(array, array[0], rtol=1e-9, atol=1e-12):
        half = float(stats.t.ppf(0.975, len(array) - 1) * stats.sem(array))
    return Estimate(float(array.mean()), half, len(array), unit)
