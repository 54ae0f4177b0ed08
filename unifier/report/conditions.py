"""Groups of rows that differ only in seed or fold (conditions), and differences between conditions (contrasts)."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, final

from unifier.report.estimates import Estimate, display_name, estimate

ResultRow = Mapping[str, Any]
"""The entry of one task of one run in comparison.json."""

RunScores = Mapping[tuple[int, int], float]
"""A mapping from (fold, seed) to the score of a run. Without folds, the key is (seed, seed)."""

TRAINABLE_LABELS = {
    "all": "all trained",
    "lora": "low-rank updates trained",
    "norms": "norms trained",
    "none": "frozen",
}
"""Labels in reports for the values of the setting `trainable`."""


def metric_of(row: ResultRow) -> str:
    """Return the main metric of the task: the metric of its score range, else its first metric."""
    return row_score_range(row).get("metric") or first_metric(row)


def first_metric(row: ResultRow) -> str:
    """Return the task's first metric, which selects the best weights of a run."""
    return metrics_of(row)[0]


def row_score_range(row: ResultRow) -> Mapping[str, Any]:
    """Return the score range of the row's task, or {} if the range is in a metric that the task does not report.

    The reference of an error without a reference is 0, so that the normalized score is 1 - error / chance.
    """
    score_range = task_score_range(row)
    if score_range.get("metric") not in metrics_of(row):
        return {}
    if score_range.get("reference") is None and is_error(row, score_range["metric"]) and score_range["chance"] > 0:
        return {**score_range, "reference": 0.0}
    return score_range


def is_error(row: ResultRow, metric: str) -> bool:
    """Return True if a lower value of the metric is better."""
    return metric in data_of(row).get("lower_is_better", ())


def metric_title(row: ResultRow, metric: str) -> str:
    """Return the readable name of a metric for a table or an axis, with a note if a lower value is better."""
    return f"{display_name(metric)} (lower is better)" if is_error(row, metric) else display_name(metric)


def task_score_range(row: ResultRow) -> Mapping[str, Any]:
    """Return the chance and reference scores of the data source, or {} if the data source does not define them."""
    return data_of(row).get("score_range") or {}


def data_of(row: ResultRow) -> Mapping[str, Any]:
    """Return the description of the task's data in the result, or {}."""
    return row["result"].get("data", {}).get(row["task"], {})


def metrics_of(row: ResultRow) -> list[str]:
    """Return the names of the task's metrics on the test split."""
    prefix = f"test/{row['task']}/"
    return [name.removeprefix(prefix) for name in row["result"]["metrics"] if name.startswith(prefix)]


def row_budget(row: ResultRow) -> Mapping[str, float]:
    """Return the cost of the row's task with its pretraining, and the number of parameters of its run."""
    earlier = row_pretraining(row)
    # A budget may contain unknown entries of other versions, which need not be numbers.
    numbers = ((name, cost) for name, cost in trained_budget(row).items() if isinstance(cost, int | float))
    budget = {name: cost + earlier.get(name, 0) for name, cost in numbers}
    return {"parameters": row["result"]["parameters"]["total"], **budget}


def trained_budget(row: ResultRow) -> Mapping[str, float]:
    """Return the cost of the row's task in its own run."""
    return row["result"].get("task_budgets", {}).get(row["task"], row["result"]["budget"])


def lineage_of(row: ResultRow) -> Mapping[str, Any]:
    """Return the trained models from which the row's run started or learned, or {}."""
    return row["result"].get("lineage") or {}


def row_pretraining(row: ResultRow) -> Mapping[str, float]:
    """Return the task's share of the pretraining cost, or {} if the pretraining is not counted.

    The tasks of a run share the cost of the pretraining equally.
    """
    lineage = lineage_of(row)
    if not lineage.get("counted", True):
        return {}
    return {name: cost / len(row["result"]["tasks"]) for name, cost in lineage.get("pretraining", {}).items()}


def has_uncounted_pretraining(row: ResultRow) -> bool:
    """Return True if the comparison leaves the pretraining out of its budget. A transfer never counts it."""
    return row["mode"] != "transfer" and not lineage_of(row).get("counted", True)


@final
@dataclass(frozen=True, eq=False)  # Conditions are hashed by identity to be dictionary keys.
class Condition:
    """Rows of one task that differ only in seed and fold."""

    task: str
    label: str
    metric: str
    rows: Sequence[ResultRow]

    @property
    def lower_is_better(self) -> bool:
        """True if the metric is an error."""
        return is_error(self.rows[0], self.metric)

    @property
    def title(self) -> str:
        """The readable name of the metric, with a note if a lower value is better."""
        return metric_title(self.rows[0], self.metric)

    @property
    def experiment_task(self) -> tuple[str, str]:
        """The names of the experiment and the task. Two experiments may have tasks with the same name."""
        return self.rows[0]["experiment"], self.task

    @property
    def varied(self) -> Mapping[str, Any]:
        """The condition's values of the settings that differ between conditions."""
        return self.rows[0]["varied"]

    @cached_property
    def test_setup(self) -> tuple[str, ...]:
        """The metric and the test data. Only conditions with equal test setups can be ranked."""
        data = data_of(self.rows[0])
        described = (data.get(name) for name in ("name", "val", "test", "score_range"))
        return (self.metric, *map(str, described), str(self.varied.get("data")))

    @property
    def unit(self) -> str:
        """The unit over which scores are averaged: "fold" if the rows have folds, else "seed".

        Seeds of one fold have the same test examples, so the scores of these seeds are averaged first.
        """
        return "fold" if "fold" in self.rows[0] else "seed"

    @cached_property
    def run_scores(self) -> RunScores:
        """The score of each run on the test split."""
        return self._run_scores("test")

    @cached_property
    def normalized_run_scores(self) -> RunScores | None:
        """The score of each run, scaled to 0 at chance and 100 at the reference score, or None without a reference."""
        if (span := self.score_span) is None:
            return None
        chance = row_score_range(self.rows[0])["chance"]
        return {run: 100 * (score - chance) / span for run, score in self.run_scores.items()}

    @cached_property
    def score_span(self) -> float | None:
        """The reference score minus the chance score, or None if the task has no reference score."""
        score_range = row_score_range(self.rows[0])
        if score_range.get("reference") in (None, score_range.get("chance")):
            return None
        return score_range["reference"] - score_range["chance"]

    @cached_property
    def scores(self) -> dict[int, float]:
        """The score on the test split for each seed or fold."""
        return mean_by_unit(self.run_scores)

    @cached_property
    def normalized_scores(self) -> dict[int, float] | None:
        """The normalized score for each seed or fold, or None if the task has no reference score."""
        return None if (scores := self.normalized_run_scores) is None else mean_by_unit(scores)

    @cached_property
    def validation_score(self) -> float:
        """The mean validation score, or -inf if a run has no validation score. Conditions are ranked by this score.

        An error is negated, so that a higher validation score is better.
        """
        name = f"val/{self.task}/{self.metric}"
        if not all(name in row["result"]["metrics"] for row in self.rows):
            return -math.inf
        score = fmean(mean_by_unit(self._run_scores("val")).values())
        return -score if self.lower_is_better else score

    @property
    def max_score(self) -> float | None:
        """The maximum possible score, or None for an error, and for every metric except the first."""
        row = self.rows[0]
        return data_of(row).get("max_score") if self.metric == first_metric(row) else None

    @cached_property
    def score(self) -> Estimate:
        """The mean raw score over seeds or folds."""
        return estimate(self.scores.values(), self.unit)

    @cached_property
    def normalized_score(self) -> Estimate | None:
        """The mean normalized score over seeds or folds, or None if the task has no reference score."""
        return None if (scores := self.normalized_scores) is None else estimate(scores.values(), self.unit)

    @property
    def display_score(self) -> Estimate:
        """The normalized score if the task has a reference score, else the raw score."""
        return self.normalized_score or self.score

    def cost(self, name: str) -> float:
        """Return a cost, such as "tokens", averaged over runs."""
        return fmean(row_budget(row)[name] for row in self.rows)

    def has(self, **facts: Any) -> bool:
        """Return True if the rows have the values in `facts`."""
        return all(self.rows[0][name] == value for name, value in facts.items())

    def matches_settings(self, varied: Mapping[str, Any]) -> bool:
        """Return True if `varied` contains all varied settings of the condition with equal values.

        `varied` may contain settings that the experiment of the condition does not have.
        """
        return self.varied.items() <= varied.items()

    def _run_scores(self, split: str) -> RunScores:
        # The scores of repeated runs with one seed are averaged first, because these runs are not independent.
        scores: dict[tuple[int, int], list[float]] = {}
        for row in self.rows:
            score = row["result"]["metrics"][f"{split}/{self.task}/{self.metric}"]
            scores.setdefault((row[self.unit], row["seed"]), []).append(score)
        return {run: fmean(repeated) for run, repeated in scores.items()}


def mean_by_unit(scores: RunScores) -> dict[int, float]:
    """Return the mean score of each fold over its seeds, or without folds the score of each seed."""
    by_unit: dict[int, list[float]] = {}
    for (unit, _), score in sorted(scores.items()):
        by_unit.setdefault(unit, []).append(score)
    return {unit: fmean(values) for unit, values in by_unit.items()}


def group_conditions(rows: Iterable[ResultRow]) -> list[Condition]:
    """Group rows into conditions, and sort the conditions by task and mode: solo, joint, transfer."""
    groups: dict[tuple[str, str, str], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((row["task"], condition_label(row), row["experiment"]), []).append(row)
    conditions: list[Condition] = []
    counts = Counter(key[:2] for key in groups)
    for (task, label, experiment), group in groups.items():
        full_label = label_with_experiment(label, experiment, alone=counts[task, label] == 1)
        conditions.append(Condition(task, full_label, metric_of(group[0]), group))
    tasks = list(dict.fromkeys(condition.task for condition in conditions))
    modes = ("solo", "joint", "transfer")
    return sorted(
        conditions, key=lambda condition: (tasks.index(condition.task), modes.index(condition.rows[0]["mode"]))
    )


def by_priority(conditions: Iterable[Condition]) -> list[Condition]:
    """Sort conditions: solo conditions first, then by decreasing validation score."""
    return sorted(
        conditions, key=lambda condition: (not condition.has(mode="solo", trainable="all"), -condition.validation_score)
    )


def condition_label(row: ResultRow) -> str:
    """Return a short description of how a row was trained, such as "genres, frozen" or "joint, dim=8"."""
    start, trainable = row["start"], TRAINABLE_LABELS.get(row["trainable"], f"{row['trainable']} trained")
    if start is None:
        label = f"random, {trainable}" if row["trainable"] != "all" else "solo"
    else:
        label = f"{start.replace('_', ' ')}{' shuffled' if row['shuffled'] else ''}, {trainable}"
    if row["mode"] == "joint":
        label = "joint" if label == "solo" else f"joint, {label}"
    settings = settings_text(row["varied"])
    if "fold" in row:
        settings = f"{settings}, over folds" if settings else "over folds"
    return settings if settings and label == "solo" else f"{label}, {settings}" if settings else label


def label_with_experiment(label: str, experiment: str, *, alone: bool) -> str:
    """Return the label of a condition, with the name of the experiment if the label is ambiguous.

    Args:
        label: The result of `condition_label`.
        experiment: The experiment of the condition.
        alone: True if no other experiment has the same label.
    """
    return label if alone else experiment if label == "solo" else f"{experiment}, {label}"


def settings_text(varied: Mapping[str, Any]) -> str:
    """Return the varied settings as text."""
    return ", ".join(
        f"{100 * float(value):g} % of the examples" if name == "share" else f"{name}={format_setting(value)}"
        for name, value in varied.items()
    )


def maximal_settings(conditions: Iterable[Condition]) -> list[Mapping[str, Any]]:
    """Return the distinct combinations of varied settings. A proper subset of another combination is excluded."""
    every = [condition.varied for condition in conditions]
    return [
        varied
        for k, varied in enumerate(every)
        if varied not in every[:k] and not any(varied.items() < other.items() for other in every)
    ]


def format_setting(value: Any) -> str:
    """Format a setting's value for the command line."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@final
@dataclass(frozen=True, eq=False)
class Contrast:
    """The score difference between two conditions of one task, for the folds and seeds of both conditions."""

    condition: Condition
    baseline: Condition
    gains: Mapping[int, float]
    """The difference of raw scores for each seed or fold. The difference of a fold is averaged over seeds.

    The difference of errors is negative if the condition is better than the baseline.
    """
    normalized_gains: Mapping[int, float] | None
    """The difference of normalized scores for each seed or fold, or None if the task has no reference score."""

    @property
    def gain(self) -> Estimate:
        """The mean difference of raw scores over seeds or folds."""
        return estimate(self.gains.values(), self.condition.unit)

    @property
    def normalized_gain(self) -> Estimate | None:
        """The mean difference of normalized scores over seeds or folds, or None if the task has no reference score."""
        return None if (gains := self.normalized_gains) is None else estimate(gains.values(), self.condition.unit)

    @property
    def display_gain(self) -> Estimate:
        """The difference of normalized scores if the task has a reference score, else the difference of raw scores."""
        return self.normalized_gain or self.gain


def contrast(condition: Condition, baseline: Condition) -> Contrast | None:
    """Return the contrast of a condition with a baseline, or None without a common seed and fold."""
    if condition.unit != baseline.unit or not condition.run_scores.keys() & baseline.run_scores.keys():
        return None
    first, second = condition.normalized_run_scores, baseline.normalized_run_scores
    normalized = _gains(first, second) if first is not None and second is not None else None
    return Contrast(condition, baseline, _gains(condition.run_scores, baseline.run_scores), normalized)


def contrasts(conditions: Sequence[Condition]) -> list[Contrast]:
    """Return all contrasts: each condition against solo, and each trained trunk against its two controls.

    The controls are a random trunk and a shuffled trunk. Both conditions of a contrast were trained on the same data.
    Among several possible baselines, the baseline with the most settings in common is used.
    """
    candidates = [
        candidate
        for condition in conditions
        for baseline in conditions
        if condition.task == baseline.task and baseline.matches_settings(condition.varied)
        if _is_baseline(baseline.rows[0], condition.rows[0])
        if (candidate := contrast(condition, baseline)) and _has_same_data(candidate)
    ]
    kinds: dict[tuple[Any, ...], list[Contrast]] = {}
    for candidate in candidates:
        kind = (candidate.baseline.rows[0][fact] for fact in ("start", "shuffled", "trainable"))
        kinds.setdefault((candidate.condition, *kind), []).append(candidate)
    return [max(rivals, key=_count_shared_settings) for rivals in kinds.values()]


def _gains(first: RunScores, second: RunScores) -> dict[int, float]:
    return mean_by_unit({run: first[run] - second[run] for run in first.keys() & second.keys()})


def _has_same_data(pair: Contrast) -> bool:
    """Return True if both conditions of the contrast used the same data for each seed and fold."""
    first, second = (
        {(row[side.unit], row["seed"]): data_of(row).get("sha256") for row in side.rows}
        for side in (pair.condition, pair.baseline)
    )
    return all(first[run] == second[run] for run in first.keys() & second.keys())


def _count_shared_settings(pair: Contrast) -> int:
    row, other = pair.condition.rows[0], pair.baseline.rows[0]
    settings = _settings_for(row, other["experiment"]) or {}
    return sum(settings.get(name) == value for name, value in other["result"].get("settings", {}).items())


def _settings_for(row: ResultRow, experiment: str) -> Mapping[str, Any] | None:
    """Return the row's settings for an experiment.

    A joint run has separate settings for each experiment. Return None if `experiment` is not part of the joint run.
    """
    settings = row["result"].get("settings", {})
    return settings.get(experiment) if any(isinstance(value, Mapping) for value in settings.values()) else settings


def _is_baseline(other: ResultRow, row: ResultRow) -> bool:
    """Return True if `other` is a solo run of the row's experiment or a control for the row's trained trunk."""
    is_part = row["mode"] == "joint" and _settings_for(row, other["experiment"]) is not None
    if row is other or not (is_part or row["experiment"] == other["experiment"]):
        return False
    is_solo = other["mode"] == "solo" and other["start"] is None and other["trainable"] == "all"
    if row["start"] is None or row["shuffled"]:
        return is_solo and (row["mode"] == "joint" or row["trainable"] != "all" or row["shuffled"])
    is_control = row["trainable"] == other["trainable"] and (
        other["start"] is None or (other["shuffled"] and other["start"] == row["start"])
    )
    return other["mode"] != "joint" and (is_solo or is_control)
