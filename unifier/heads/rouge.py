"""The metric ROUGE, which compares a summary with one or several reference summaries."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

ROUGE = ("rouge1", "rouge2", "rougeL")
"""The names of the scores: common words, common pairs of neighboring words, and the longest common subsequence."""


def rouge_statistics(texts: Sequence[str], references: Sequence[str | Sequence[str]]) -> NDArray[np.float64]:
    """Return (n, 4): F1 of ROUGE-1, ROUGE-2 and ROUGE-L in percent, without stemming (Lin 2004), and 1.

    Args:
        texts: The n summaries.
        references: One or several references for each summary. The reference with the highest score counts.
    """
    scorer, rows = _scorer(), list[list[float]]()
    for text, given in zip(texts, references, strict=True):
        found = scorer.score_multi([given] if isinstance(given, str) else given, text)
        rows.append([*(100 * found[name].fmeasure for name in ROUGE), 1])
    return np.array(rows, np.float64)


def rouge_means(total: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean of each score, given the sums (4,) of the columns of `rouge_statistics`."""
    return dict(zip(ROUGE, (total[:-1] / total[-1]).tolist(), strict=True))


@cache
def _scorer() -> "RougeScorer":
    from rouge_score.rouge_scorer import RougeScorer  # The import takes a second.

    return RougeScorer([*ROUGE])
