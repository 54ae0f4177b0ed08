"""Mel-cepstral distortion: the distance between two spectrograms of different lengths, in dB."""

import math

import numpy as np
from numpy.typing import NDArray

NUM_CEPSTRA = 13
"""Number of cepstral coefficients, without coefficient 0, which is the loudness."""


def mel_cepstra(log_power: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the mel-cepstral coefficients (frames, 13) of a log-mel spectrogram (F, frames) in natural logarithms.

    Coefficient k is the mean over the bands n of log_power[n] * cos(pi * k * (n + 1 / 2) / F).
    """
    from scipy.fft import dct  # The import takes a tenth of a second.

    bands = log_power.shape[0]
    return (dct(log_power.astype(np.float64), axis=0) / (2 * bands))[1 : 1 + NUM_CEPSTRA].T


def cepstral_distortion(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Return the mel-cepstral distortion of two log-mel spectrograms (F, n) and (F, m) after time warping, in dB.

    The distortion of two frames is 10 / ln(10) * sqrt(2 * sum of squared differences) over 13 coefficients (Kubichek
    1993). Dynamic time warping finds the path from the first to the last pair of frames with the smallest sum. The
    result is the mean over the path (MCD-DTW, as in Battenberg et al. 2020).
    """
    a, b = mel_cepstra(first), mel_cepstra(second)
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    total, steps = _warp(np.sqrt(2 * squares.clip(min=0)))
    return 10 / math.log(10) * total / steps


def _warp(costs: NDArray[np.float64]) -> tuple[float, int]:
    """Return the sum and the number of entries of the cheapest path through costs (n, m).

    A path goes from the first to the last entry, and each step moves by one row, by one column, or by both.
    """
    n, m = costs.shape
    # Row 0 and column 0 are outside of the costs. All entries of an anti-diagonal are computed together.
    totals, steps = np.full((n + 1, m + 1), np.inf), np.zeros((n + 1, m + 1), np.int64)
    totals[0, 0] = 0.0
    for diagonal in range(2, n + m + 1):
        rows = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        columns = diagonal - rows
        before = [(rows - 1, columns - 1), (rows - 1, columns), (rows, columns - 1)]
        sums = np.stack([totals[place] for place in before])
        best = sums.argmin(0)
        totals[rows, columns] = sums[best, np.arange(len(rows))] + costs[rows - 1, columns - 1]
        steps[rows, columns] = np.choose(best, [steps[place] for place in before]) + 1
    return float(totals[n, m]), int(steps[n, m])
