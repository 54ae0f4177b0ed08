"""Error rates of sequences of symbols, such as digits that are read from a sound."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifier.heads.summed_metrics import percent


def error_names(longest: int | None) -> frozenset[str]:
    """Return the names of the error rates in `error_rates`."""
    return frozenset({"error_rate"} if longest is None else {"error_rate", "error_rate_longer"})


def error_statistics(
    found: Sequence[Sequence[Any]], true: Sequence[Sequence[Any]], longest: int | None = None
) -> NDArray[np.float64]:
    """Return the statistics (n, 6) of n sequences, whose sums `error_rates` expects.

    The columns are 1, the wrong symbols, the true symbols, 1 for an exact sequence, and then the wrong and the true
    symbols of longer sequences. The number of wrong symbols is the smallest number of insertions, deletions and
    replacements.

    Args:
        found: The predicted symbols of each sequence.
        true: The true symbols of each sequence.
        longest: The number of symbols of the longest sequence in training. A longer sequence fills only the last two
            columns, and the other columns are 0.
    """
    from torchmetrics.functional.text import word_error_rate  # The import takes seconds.

    rows: list[list[float]] = []
    for symbols, expected in zip(found, true, strict=True):
        names = {symbol: str(k) for k, symbol in enumerate(dict.fromkeys([*expected, *symbols]))}
        rate = word_error_rate(*([" ".join(names[symbol] for symbol in each)] for each in (symbols, expected)))
        errors = [round(float(rate) * len(expected)), len(expected)]
        is_longer = longest is not None and len(expected) > longest
        rows.append([0, 0, 0, 0, *errors] if is_longer else [1, *errors, [*symbols] == [*expected], 0, 0])
    return np.array(rows, np.float64).reshape(-1, 6)


def error_rates(total: NDArray[np.float64], longest: int | None = None) -> dict[str, float]:
    """Return the wrong symbols in percent of the true symbols, and the share of exact sequences in percent.

    Args:
        total: The sums (6,) of the columns of `error_statistics`.
        longest: See `error_statistics`. With a number, "error_rate_longer" is the error rate of longer sequences, and
            NaN without longer sequences.
    """
    rates = {"error_rate": percent(total[1], total[2]), "exact": percent(total[3], total[0])}
    if longest is None:
        return rates
    return rates | {"error_rate_longer": percent(total[4], total[5]) if total[5] else math.nan}
