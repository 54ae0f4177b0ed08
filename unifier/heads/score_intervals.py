"""95 % intervals of test scores over test examples: Wilson's interval, and bootstraps of examples and of blocks."""

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from unifier.heads.average_precision import BoxEvaluation
from unifier.heads.classification import ClassificationHead
from unifier.heads.detection import Boxes, DetectionHead, FoundBoxes
from unifier.heads.forecasting import ForecastingHead
from unifier.heads.grouped_text import clusters_of, language_of, rows_by_group, sum_clusters
from unifier.heads.head import Head
from unifier.heads.summed_metrics import SummedHead
from unifier.heads.text_generation import TextGenerationHead

RESAMPLES = 1000
"""Number of bootstrap resamples."""

MAX_BLOCK = 4_000_000
"""Maximum number of counts that are drawn at one time, which take 32 MB."""

MIN_RESAMPLES = 100
"""Smallest number of bootstrap resamples from which an interval is computed."""

MIN_TIME_BLOCKS = 5
"""Smallest number of blocks of forecasts from which an interval is computed."""

PRECISION_RESAMPLES = 300
"""Number of bootstrap resamples of an average precision, each of which takes 10 to 30 ms for 72 pictures."""

MAX_PRECISION_SECONDS = 20.0
"""Maximum time for resampling an average precision."""

MAX_BOOTSTRAP_SECONDS = 1.0
"""Maximum time for resampling with a head's own `metrics`, which may be slow."""


@final
class ScoreInterval(NamedTuple):
    """A 95 % interval of a score over test examples, with its method in words."""

    low: float
    high: float
    method: str


def score_intervals(head: Head, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, ScoreInterval]:
    """Return the 95 % interval of each metric over test examples.

    An accuracy has Wilson's interval (Wilson 1927), which also holds near 0 % and 100 %. Other metrics have the
    percentile bootstrap (Efron & Tibshirani 1993, section 13.3). A metric that is often undefined has no interval.
    Examples count as independent, with two exceptions. Texts with a common cluster, such as the translations of one
    sentence, are resampled together (Davison & Hinkley 1997, section 3.8). The windows of forecasts overlap, so blocks
    of windows are resampled (Kunsch 1989, section 2.2).

    Args:
        head: The head that made the predictions.
        predictions: One prediction per test example.
        targets: The raw targets of the test examples.
    """
    intervals = _intervals(head, predictions, targets)
    for group, rows in rows_by_group(targets).items() if isinstance(head, TextGenerationHead) else ():
        found = _intervals(head, [predictions[k] for k in rows], [targets[k] for k in rows])
        intervals |= {f"{name}_{group}": interval for name, interval in found.items()}
    return intervals


def _intervals(head: Head, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, ScoreInterval]:
    if len(targets) < 2:
        return {}
    if isinstance(head, ForecastingHead):
        statistics, length = head.statistics(predictions, targets), head.horizon
        totals = _block_totals(statistics, np.array([target.start for target in targets]), length)
        method = f"bootstrap of blocks of {length} time steps"
        return _percentiles(_scores_of_totals(head, totals), method)
    if isinstance(head, DetectionHead):
        return _percentiles(_precision_resamples(head, predictions, targets))
    if isinstance(head, ClassificationHead):
        true = np.array([int(head.encode(target)) for target in targets])
        predicted = torch.stack([*predictions]).argmax(-1).numpy()
        f1 = _percentiles({"macro_f1": _macro_f1_resamples(true, predicted, len(head.labels))})
        return {"accuracy": wilson_interval(int((true == predicted).sum()), len(true)), **f1}
    if isinstance(head, TextGenerationHead) and head.scores == "bleu":
        # The import is here, so sacreBLEU is loaded only if texts are scored.
        from unifier.heads.text_metrics import text_statistics

        found = text_statistics(predictions, targets, language_of(targets, head.language))
        return _percentiles(
            {
                name: [score(total) for total in _resampled_totals(statistics, targets)]
                for name, (statistics, score) in found.items()
            }
        )
    if isinstance(head, SummedHead | TextGenerationHead):
        totals = _resampled_totals(head.statistics(predictions, targets), targets)
        return _percentiles(_scores_of_totals(head, totals))
    return _percentiles(_resampled_metrics(head, predictions, targets))


def wilson_interval(right: int, total: int) -> ScoreInterval:
    """Return Wilson's 95 % interval of the share of right answers, in percent."""
    from scipy.stats import binomtest

    low, high = binomtest(right, total).proportion_ci(method="wilson")
    return ScoreInterval(100 * float(low), 100 * float(high), "Wilson")


def _scores_of_totals(
    head: SummedHead | TextGenerationHead, totals: Iterable[NDArray[np.float64]]
) -> dict[str, list[float]]:
    """Return the metrics of each sum (K,) of the statistics of a resample."""
    resampled = dict[str, list[float]]()
    for total in totals:
        for name, score in head.metrics_of(total).items():
            resampled.setdefault(name, []).append(score)
    return resampled


def _block_totals(
    statistics: NDArray[np.float64], starts: NDArray[np.int64], length: int
) -> Iterable[NDArray[np.float64]]:
    """Return the summed statistics (K,) of resamples of blocks of time steps, or nothing for too few blocks.

    Args:
        statistics: The statistics (n, K) of the windows.
        starts: The time step (n,) of each window. All windows of a time step are in the same block.
        length: The number of time steps of a block.
    """
    times, rows = np.unique(starts, return_inverse=True)
    num_blocks = len(times) // length
    if num_blocks < MIN_TIME_BLOCKS:
        return
    sums = np.zeros((len(times) + 1, statistics.shape[1]))
    np.add.at(sums[1:], rows, statistics)
    sums = sums.cumsum(0)
    blocks = sums[length:] - sums[:-length]
    drawn = np.random.default_rng(0).integers(len(blocks), size=(RESAMPLES, num_blocks))
    yield from blocks[drawn].sum(1)


def _precision_resamples(
    head: DetectionHead, predictions: Sequence[FoundBoxes], targets: Sequence[Boxes]
) -> dict[str, list[float]]:
    """Return the average precisions of resampled pictures, or {} if `MAX_PRECISION_SECONDS` are not sufficient."""
    evaluation = BoxEvaluation(predictions, targets, len(head.labels))
    rng, start = np.random.default_rng(0), time.perf_counter()
    scores: dict[str, list[float]] = {}
    for k in range(PRECISION_RESAMPLES):
        precisions = 100 * evaluation.precisions(rng.integers(len(targets), size=len(targets)))
        with warnings.catch_warnings():  # A resample may have no object of any class.
            warnings.simplefilter("ignore")
            means = {"ap50": float(np.nanmean(precisions[0])), "ap": float(np.nanmean(precisions))}
        classes = {f"ap50_{label}": value for label, value in zip(head.labels, precisions[0].tolist(), strict=True)}
        for name, score in (means | classes).items():
            scores.setdefault(name, []).append(score)
        needed = (time.perf_counter() - start) / (k + 1) * MIN_RESAMPLES
        if needed > MAX_PRECISION_SECONDS or time.perf_counter() - start > MAX_PRECISION_SECONDS:
            break
    return scores


def _percentiles(
    resampled: Mapping[str, Sequence[float]], method: str = "percentile bootstrap"
) -> dict[str, ScoreInterval]:
    intervals: dict[str, ScoreInterval] = {}
    for name, scores in resampled.items():
        finite = np.array(scores)[np.isfinite(scores)]
        if len(finite) >= MIN_RESAMPLES:
            low, high = np.quantile(finite, [0.025, 0.975]).tolist()
            intervals[name] = ScoreInterval(low, high, f"{method}, {len(finite):,} resamples")
    return intervals


def _draw(counts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the counts (R, K) of K kinds of examples in blocks of R resamples, given the counts (K,) in the split."""
    rng, rows = np.random.default_rng(0), max(MAX_BLOCK // len(counts), 1)
    for start in range(0, RESAMPLES, rows):
        yield rng.multinomial(counts.sum(), counts / counts.sum(), size=min(rows, RESAMPLES - start))


def _resampled_totals(statistics: NDArray[Any], targets: Sequence[Any]) -> Iterator[NDArray[Any]]:
    """Yield the summed statistics (K,) of resamples of clusters, given the statistics (n, K) of the examples."""
    sums = sum_clusters(statistics, clusters_of(targets))
    for drawn in _draw(np.ones(len(sums), int)) if len(sums) > 1 else ():
        yield from drawn @ sums


def _macro_f1_resamples(true: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Sequence[float]:
    """Return the macro F1 score of each resample in percent, as in `ClassificationHead.metrics`.

    A resample of examples is a multinomial draw of the cells of the confusion matrix.
    """
    from scipy.sparse import csr_array

    cells, counts = np.unique(true * classes + predicted, return_counts=True)
    rows, ones = np.arange(len(cells)), np.ones(len(cells))
    expected, answered = (csr_array((ones, (label, rows)), (classes, len(cells))) for label in divmod(cells, classes))
    scores = list[float]()
    for drawn in _draw(counts):
        marginals = expected @ drawn.T + answered @ drawn.T
        right = expected.multiply(answered) @ drawn.T
        # A class that is neither in the targets nor in the predictions has no F1 score.
        f1 = np.divide(2 * right, marginals, out=np.full(marginals.shape, np.nan), where=marginals > 0)
        scores += (100 * np.nanmean(f1, axis=0)).tolist()
    return scores


def _resampled_metrics(head: Head, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, list[float]]:
    """Return the metrics of resamples, as many as fit into `MAX_BOOTSTRAP_SECONDS`."""
    rng, deadline = np.random.default_rng(0), time.perf_counter() + MAX_BOOTSTRAP_SECONDS
    scores: dict[str, list[float]] = {}
    # The metrics of a plug-in may fail if all examples of a resample have the same target.
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(RESAMPLES):
            chosen = rng.integers(len(targets), size=len(targets)).tolist()
            metrics = head.checked_metrics([predictions[k] for k in chosen], [targets[k] for k in chosen])
            for name, score in metrics.items():
                scores.setdefault(name, []).append(score)
            if time.perf_counter() > deadline:
                break
    return scores
