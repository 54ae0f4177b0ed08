"""Paired tests of the difference between two conditions, over test examples.

An interval over seeds predicts the result of new training runs on the same test set. An interval over test examples
predicts the result of the same runs on a new test set. A report contains both intervals.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import stats

from unifier.heads.grouped_text import cluster_names, sum_clusters
from unifier.report.conditions import Condition, Contrast, ResultRow, metrics_of
from unifier.report.estimates import Estimate, estimate, format_value
from unifier.report.schema import parse_rows
from unifier_tokenizers import InputError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

PREDICTIONS_FILE = "predictions.csv"
"""A run's file with one line per test example: task, index, target, prediction, score, weight, groups, cluster."""

NUMERIC_COLUMNS = ("score", "weight")
"""Columns of `PREDICTIONS_FILE` with numbers. A file without the column "weight" has equal weights."""

REQUIRED_COLUMNS = ("task", "index", "target", "prediction", "score")
"""Required columns of `PREDICTIONS_FILE`."""

TOKENIZERS = ("none", "13a", "intl", "char", "zh")
"""The tokenizers of sacreBLEU that a report uses. Other tokenizers need more packages or download a model."""

NUM_PERMUTATIONS = 9999
"""Number of random sign patterns if not all sign patterns can be enumerated."""

NUM_RESAMPLES = 1000
"""Number of bootstrap resamples, equal to sacreBLEU's default."""

SEED = 12345
"""Seed of the random sign patterns and resamples, equal to sacreBLEU's default."""

UNIT, CLUSTER_UNIT = "test example", "independent test example"
"""The unit of an interval. A cluster of dependent test examples counts as one independent test example."""

DIFFERENT_EXAMPLES = "its test examples differ from the test examples of other seeds"


class ExampleTest(NamedTuple):
    """A difference between two conditions with its uncertainty over test examples."""

    difference: Estimate
    """The score of the condition minus the score of the baseline, averaged over test examples and runs."""
    p_value: float
    """The two-sided p-value of the difference."""
    num_runs: int
    """The number of pairs of runs whose scores were averaged."""


class ExampleComparison(NamedTuple):
    """Test of one contrast, and the runs that are excluded from the test."""

    test: ExampleTest | None
    """The test, or None if no pair of runs has usable predictions."""
    problems: Mapping[str, str]
    """A mapping from the folder name of an excluded run to the reason for the exclusion."""


class _Predictions(NamedTuple):
    """Predictions of one run for one task, in the order of the example ids."""

    ids: list[str]
    targets: list[str]
    texts: list[str]
    scores: list[float] | None
    """The score of each test example, or None for a corpus metric such as BLEU.

    With weights, each score is multiplied by the ratio of its weight to the mean weight.
    """
    groups: list[tuple[str, ...]]
    """The names of the groups of each test example."""
    clusters: list[str]
    """The cluster of each test example. Examples of one cluster depend on each other."""

    @property
    def unit(self) -> str:
        """The name of the independent units."""
        return UNIT if len(set(self.clusters)) == len(self.clusters) else CLUSTER_UNIT

    def of_group(self, name: str) -> "_Predictions":
        """Return the predictions of the examples of one group."""
        rows = [k for k, names in enumerate(self.groups) if name in names]
        scores = None if self.scores is None else [self.scores[k] for k in rows]
        ids, targets, texts, clusters = (
            [values[k] for k in rows] for values in (self.ids, self.targets, self.texts, self.clusters)
        )
        return _Predictions(ids, targets, texts, scores, [self.groups[k] for k in rows], clusters)


class _RunPair(NamedTuple):
    """Runs of a condition and of its baseline with the same seed, fold and test examples."""

    unit: int
    """The fold of the runs, or the seed of the runs if there are no folds."""
    first: list[tuple[ResultRow, _Predictions]]
    """The run of the condition, or several repetitions of this run."""
    second: list[tuple[ResultRow, _Predictions]]
    """The runs of the baseline."""

    @property
    def runs(self) -> list[tuple[ResultRow, _Predictions]]:
        """The runs of the condition and of the baseline."""
        return [*self.first, *self.second]

    def of_group(self, name: str) -> "_RunPair":
        """Return the runs with the predictions of the examples of one group."""
        parts = ([(row, found.of_group(name)) for row, found in runs] for runs in (self.first, self.second))
        return _RunPair(self.unit, *parts)


def compare_examples(pair: Contrast, units: Collection[int] | None = None) -> ExampleComparison:
    """Test the difference between a condition and its baseline over test examples.

    The scores of each test example are averaged over seeds. The p-value comes from `sign_flip_p_value`, and the
    interval from Student's t. Corpus scores such as BLEU are tested by `paired_bootstrap`. The examples of a cluster,
    such as the translations of one sentence, count as one example. Runs without a folder are skipped.

    Args:
        pair: The condition and its baseline.
        units: The seeds or folds to use, or None for all seeds or folds.
    """
    problems: dict[str, str] = {}
    run_pairs = _pair_runs(pair, units, problems)
    return _compare_run_pairs(pair.condition, run_pairs, problems)


def compare_groups(pair: Contrast) -> dict[str, ExampleComparison]:
    """Test a difference as `compare_examples` does, over all test examples and over each group of test examples.

    The metric of a group is the metric of the condition, an underscore and the name of the group. A group without a
    score in a run is left out.

    Returns:
        A mapping from the name of a group to its test. The name of all test examples is "".
    """
    problems: dict[str, str] = {}
    run_pairs = _pair_runs(pair, None, problems)
    found = {"": _compare_run_pairs(pair.condition, run_pairs, problems)}
    names = [name for run_pair in run_pairs for groups in run_pair.first[0][1].groups for name in groups]
    rows = [*pair.condition.rows, *pair.baseline.rows]
    for name in dict.fromkeys(names):
        metric = f"{pair.condition.metric}_{name}"
        if all(metric in metrics_of(row) for row in rows):
            parts = [run_pair.of_group(name) for run_pair in run_pairs]
            found[name] = _compare_run_pairs(replace(pair.condition, metric=metric), parts, problems)
    return found


def _compare_run_pairs(
    condition: Condition, run_pairs: Sequence[_RunPair], problems: Mapping[str, str]
) -> ExampleComparison:
    """Test the differences of pairs of runs. `problems` are the reasons for runs that are already excluded."""
    if not run_pairs:
        return ExampleComparison(None, problems)
    runs = [run for run_pair in run_pairs for run in run_pair.runs]
    if all(predictions.scores is not None for _, predictions in runs):
        compare = _compare_means
    elif any(predictions.scores is not None for _, predictions in runs):
        return ExampleComparison(None, {**problems, **_blame(runs, "only some runs have a score per example")})
    else:
        compare = _compare_corpus_scores
    try:
        return ExampleComparison(compare(condition, run_pairs), problems)
    except InputError as error:
        return ExampleComparison(None, {**problems, **_blame(runs, str(error))})


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of a paired permutation test of a mean difference.

    If the conditions are equal, the sign of each difference is random (Fisher 1935, The Design of Experiments, section
    21). Up to `NUM_PERMUTATIONS` sign patterns are enumerated. If there are more sign patterns, a random sample is
    used, as in Noreen 1989, Computer-Intensive Methods for Testing Hypotheses, section 2. For 0/1 scores of two runs,
    this test equals the exact McNemar test.
    """
    nonzero = np.asarray([difference for difference in differences if difference])
    if len(nonzero) < 2:  # With a single difference, both sign patterns have the same absolute mean.
        return 1.0
    result = stats.permutation_test(
        (nonzero,),
        lambda sample, axis: np.mean(sample, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=NUM_PERMUTATIONS,
        batch=max(1, 4_000_000 // len(nonzero)),  # A batch of sign patterns takes at most 32 MB.
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue)


def paired_bootstrap(
    groups: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]],
    score: Callable[[np.ndarray], float],
    unit: str = UNIT,
) -> tuple[Estimate, float]:
    """Test the difference of a corpus score by paired bootstrap resampling (Koehn 2004).

    The difference is averaged over pairs of runs, and each resample contains the same examples for all pairs. For a
    single pair, the p-value equals the p-value of sacreBLEU's `PairedTest`, which computes no interval.

    Args:
        groups: Groups of run pairs: one group per fold, or a single group without folds. Each pair contains the
            sufficient statistics (examples, S) of the condition and of the baseline on the same examples.
        score: A function from summed statistics (S,) to the corpus score.
        unit: The name of the examples.

    Returns:
        The difference with its 95 % interval, and the p-value.
    """
    generator = np.random.default_rng(SEED)
    observed, resampled = list[float](), list[np.ndarray]()
    for group in groups:
        num_examples = len(group[0][0])
        draws = generator.choice(num_examples, size=(NUM_RESAMPLES, num_examples), replace=True)

        def score_all(statistics: np.ndarray, draws: np.ndarray = draws) -> np.ndarray:
            return np.array([score(statistics[draw].sum(0)) for draw in draws])

        observed.append(fmean(score(first.sum(0)) - score(second.sum(0)) for first, second in group))
        resampled.append(np.mean([score_all(first) - score_all(second) for first, second in group], axis=0))
    difference, differences = fmean(observed), np.mean(resampled, axis=0)
    low, high = np.sort(differences)[[NUM_RESAMPLES // 40, NUM_RESAMPLES - NUM_RESAMPLES // 40 - 1]]
    half_width = float(high - low) / 2 or None
    sizes = np.abs(differences)
    exceeding = int(np.sum(sizes - sizes.mean() > abs(difference)))
    num_examples = sum(len(group[0][0]) for group in groups)
    if num_examples == len(groups):  # Resamples of one example do not vary.
        return Estimate(difference, None, num_examples, unit), 1.0
    return Estimate(difference, half_width, num_examples, unit), (exceeding + 1) / (NUM_RESAMPLES + 1)


def _pair_runs(pair: Contrast, units: Collection[int] | None, problems: dict[str, str]) -> list[_RunPair]:
    """Return the pairs of runs with usable predictions. Add the reason for each unusable run to `problems`."""
    first, second = (_rows_by_run(side) for side in (pair.condition, pair.baseline))
    run_pairs: list[_RunPair] = []
    for key in sorted(first.keys() & second.keys()):
        rows = [*first[key], *second[key]]
        if (units is not None and key[0] not in units) or not all(row["folder"] for row in rows):
            continue
        runs: list[tuple[ResultRow, _Predictions]] = []
        for row in rows:
            try:
                runs.append((row, _read_predictions(Path(row["folder"]), row["task"])))
            except InputError as error:
                problems[Path(row["folder"]).name] = str(error)
        if len(runs) < len(rows):
            continue
        examples = [(predictions.ids, predictions.targets, predictions.clusters) for _, predictions in runs]
        if any(other != examples[0] for other in examples):
            problems |= _blame(runs, "its test examples differ from those of the run to compare it with")
            continue
        split = len(first[key])
        run_pairs.append(_RunPair(key[0], runs[:split], runs[split:]))
    return run_pairs


def _rows_by_run(condition: Condition) -> dict[tuple[int, int], list[ResultRow]]:
    rows: dict[tuple[int, int], list[ResultRow]] = {}
    for row in condition.rows:
        rows.setdefault((row[condition.unit], row["seed"]), []).append(row)
    return rows


def _blame(runs: Sequence[tuple[ResultRow, _Predictions]], reason: str) -> dict[str, str]:
    return {Path(row["folder"]).name: reason for row, _ in runs}


def _read_predictions(folder: Path, task: str) -> _Predictions:
    """Read a run's predictions for one task. Raise InputError if these predictions are unusable."""
    path = folder / PREDICTIONS_FILE
    if not path.exists():
        raise InputError(f"no {PREDICTIONS_FILE}")
    try:
        lines = parse_rows(path, REQUIRED_COLUMNS, NUMERIC_COLUMNS)
    except InputError as error:
        raise InputError(f"{PREDICTIONS_FILE}{str(error).removeprefix(str(path))}") from error
    lines = [line for line in lines if line["task"] == task]
    lines.sort(key=lambda line: (len(line["index"]), line["index"]))  # Sort indices numerically.
    ids = [line["index"] for line in lines]
    if not lines or len(set(ids)) < len(ids):
        raise InputError(f"{PREDICTIONS_FILE} has {'an example twice' if lines else f'no line of the task {task}'}")
    try:
        scores = [float(line["score"]) for line in lines] if any(line["score"] for line in lines) else None
        weights = [float(line.get("weight") or 1) for line in lines]
        if scores and fmean(weights):
            scores = [score * weight / fmean(weights) for score, weight in zip(scores, weights, strict=True)]
    except (TypeError, ValueError) as error:
        raise InputError(f"{PREDICTIONS_FILE} has a score that is not a number") from error
    targets, texts = ([line[name] for line in lines] for name in ("target", "prediction"))
    groups = [tuple((line.get("groups") or "").split()) for line in lines]
    clusters = cluster_names([line.get("cluster") or "" for line in lines], ids)
    return _Predictions(ids, targets, texts, scores, groups, clusters)


def _unit(run_pairs: Sequence[_RunPair]) -> str:
    """Return the name of the independent examples."""
    units = {predictions.unit for run_pair in run_pairs for _, predictions in run_pair.first}
    return CLUSTER_UNIT if CLUSTER_UNIT in units else UNIT


def _recorded_score(condition: Condition, row: ResultRow) -> float:
    return row["result"]["metrics"][f"test/{condition.task}/{condition.metric}"]


def _compare_means(condition: Condition, run_pairs: Sequence[_RunPair]) -> ExampleTest:
    factor = _percent_factor(condition, [run for run_pair in run_pairs for run in run_pair.runs])
    differences: dict[tuple[int, str], list[float]] = {}
    sizes: dict[tuple[int, str], int] = {}
    for run_pair in run_pairs:
        fold = run_pair.unit if condition.unit == "fold" else 0  # Different folds have different test examples.
        first, second = (_mean_scores(side) for side in (run_pair.first, run_pair.second))
        predictions = run_pair.first[0][1]
        sums: dict[str, float] = {}
        for cluster, a, b in zip(predictions.clusters, first, second, strict=True):
            sums[cluster] = sums.get(cluster, 0) + factor * (a - b)
        for cluster, count in Counter(predictions.clusters).items():
            if sizes.setdefault((fold, cluster), count) != count:
                raise InputError(DIFFERENT_EXAMPLES)
        for cluster, total in sums.items():
            differences.setdefault((fold, cluster), []).append(total)
    totals = {key: fmean(values) for key, values in differences.items()}
    mean, mean_size = sum(totals.values()) / sum(sizes.values()), fmean(sizes.values())
    # The interval of a ratio of sums comes from its residuals (Cochran 1977, section 2.11).
    values = [mean + (total - mean * sizes[key]) / mean_size for key, total in totals.items()]
    return ExampleTest(estimate(values, _unit(run_pairs)), sign_flip_p_value([*totals.values()]), len(run_pairs))


def _mean_scores(runs: Sequence[tuple[ResultRow, _Predictions]]) -> list[float]:
    """Return the score of each test example, averaged over the repetitions of a run."""
    return [fmean(scores) for scores in zip(*(predictions.scores or () for _, predictions in runs), strict=True)]


def _percent_factor(condition: Condition, runs: Sequence[tuple[ResultRow, _Predictions]]) -> int:
    """Return the ratio of the recorded metric to the mean score per example: 1, or 100 for a metric in percent.

    Raises:
        InputError: The recorded metric, such as macro F1, is not the mean of the scores per example.
    """
    means = [(fmean(predictions.scores or (math.nan,)), _recorded_score(condition, row)) for row, predictions in runs]
    for factor in (1, 100):
        if all(math.isclose(factor * mean, score, rel_tol=1e-3, abs_tol=1e-6) for mean, score in means):
            return factor
    raise InputError(f"{condition.metric} is not the mean of the scores per example")


def _compare_corpus_scores(condition: Condition, run_pairs: Sequence[_RunPair]) -> ExampleTest:
    groups: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    examples: dict[int, tuple[list[str], list[str]]] = {}
    scorers: list[Callable[[np.ndarray], float]] = []
    for run_pair in run_pairs:
        fold = run_pair.unit if condition.unit == "fold" else 0
        predictions = run_pair.first[0][1]
        found = predictions.ids, predictions.clusters
        if examples.setdefault(fold, found) != found:
            raise InputError(DIFFERENT_EXAMPLES)
        if len(run_pair.runs) > 2:
            raise InputError("repeated runs of one seed have no mean corpus score")
        (first, scorer), (second, _) = (_corpus_statistics(condition, *run) for run in run_pair.runs)
        scorers.append(scorer)
        groups.setdefault(fold, []).append((first, second))
    test = paired_bootstrap(list(groups.values()), scorers[0], _unit(run_pairs))
    return ExampleTest(*test, len(run_pairs))


def _corpus_statistics(
    condition: Condition, row: ResultRow, predictions: _Predictions
) -> tuple[np.ndarray, Callable[[np.ndarray], float]]:
    """Return sacreBLEU's sufficient statistics of each example (examples, S), and a function that scores the sum.

    Raises:
        InputError: sacreBLEU does not reproduce the recorded score from the predictions.
    """
    signature = row["result"].get("signatures", {}).get(f"test/{condition.task}/{condition.metric}", "")
    scorer, prepare = _corpus_scorer(condition.metric, signature)
    # sacreBLEU has no public methods for statistics per example. The private methods below are used by sacreBLEU's own
    # significance tests.
    extract: Any = scorer._extract_corpus_statistics  # pyright: ignore[reportPrivateUsage]
    compute: Any = scorer._compute_score_from_stats  # pyright: ignore[reportPrivateUsage]
    statistics = np.array(extract(prepare(predictions.texts), [prepare(predictions.targets)]), dtype=np.float32)

    def score(total: np.ndarray) -> float:
        return float(compute(total).score)

    recorded, computed = _recorded_score(condition, row), score(statistics.sum(0))
    if not math.isclose(computed, recorded, rel_tol=1e-3, abs_tol=1e-3):
        scores = f"{format_value(computed, 2)}, not {format_value(recorded, 2)}"
        raise InputError(f"the {condition.metric} of its predictions is {scores}")
    return sum_clusters(statistics, predictions.clusters), score


def _corpus_scorer(metric: str, signature: str) -> "tuple[Metric, Callable[[Sequence[str]], Sequence[str]]]":
    """Return sacreBLEU's scorer for a metric's signature, and the function that preprocesses texts for this scorer."""
    # The import of sacreBLEU is slow.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    from unifier.heads.text_metrics import moses

    parts = dict(part.split(":", 1) for part in signature.split("|") if ":" in part)
    lowercase = parts.get("case") == "lc"
    if {"nc", "nw"} <= parts.keys():
        if not all(re.fullmatch(r"\d", parts[name]) for name in ("nc", "nw")):
            raise InputError(f"the orders nc and nw of its signature are not digits: {signature}")
        chrf = CHRF(
            char_order=int(parts["nc"]),
            word_order=int(parts["nw"]),
            lowercase=lowercase,
            whitespace=parts.get("space") == "yes",
            eps_smoothing=parts.get("eff") == "no",
        )
        return chrf, list
    if "tok" not in parts:
        raise InputError(f"{metric} is neither a mean of scores per example nor a score of sacreBLEU")
    match = re.match("moses-norm-([a-z]+)-", parts["tok"])
    if not match and parts["tok"] not in TOKENIZERS:
        raise InputError(f"the tokenizer {parts['tok']} of its signature is not one of {', '.join(TOKENIZERS)}")
    tokenize, effective_order = "none" if match else parts["tok"], parts.get("eff") == "yes"
    bleu = BLEU(lowercase=lowercase, tokenize=tokenize, force=True, effective_order=effective_order)
    return bleu, partial(moses, language=match[1]) if match else list
