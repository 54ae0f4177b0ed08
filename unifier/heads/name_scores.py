"""Scores of written names: exact matches, and the F1 of words."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray


def name_scores(text: str, name: str) -> tuple[float, float, float]:
    """Return the exact match and the F1 of the words in percent, and 1. Only white space is normalized."""
    words, true = text.split(), name.split()
    common = (Counter(words) & Counter(true)).total()
    return 100.0 * (words == true), 200.0 * common / max(len(words) + len(true), 1), 1.0


def name_means(total: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean exact match and F1, given the sums (3,) of the columns of `name_scores`."""
    return dict(zip(("exact", "word_f1"), (total[:2] / total[2]).tolist(), strict=True))
