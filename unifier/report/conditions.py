"""A row of a report and its score: the metric it is judged by, chance and reference.

Rows grouped into conditions, with a score per seed or fold, and differences between conditions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, final

from unifier.report.estimates import Estimate, estimate

ResultRow = Mapping[str, Any]
"""One run's one task, as comparison.json holds it."""


def metric_of(row: ResultRow) -> str:
    """The metric an task is judged by: its scale's, else its first."""
    return row_score_range(row).get("metric") or first_metric(row)


def first_metric(row: ResultRow) -> str:
    """The metric that selects a run's weights."""
    return metrics_of(row)[0]


def row_score_range(row: ResultRow) -> Mapping[str, Any]:
    """What chance and a reference reach on a row's task; empty where that is not known, or of a metric it has not."""
    scale = task_score_range(row)
    return scale if scale.get("metric") in metrics_of(row) else {}


def task_score_range(row: ResultRow) -> Mapping[str, Any]:
    """What its source says of chance and a reference, of whatever metric; empty where it says nothing."""
    return data_of(row).get("score_range") or {}


def data_of(row: ResultRow) -> Mapping[str, Any]:
    """What its result says of its task's data; empty where it says nothing."""
    return row["result"].get("data", {}).get(row["task"], {})


def metrics_of(row: ResultRow) -> list[str]:
    """All that a row's task is scored by on the test split."""
    prefix = f"test/{row['task']}/"
    return [name.removeprefix(prefix) for name in row["result"]["metrics"] if name.startswith(prefix)]


TRAINABLE_LABELS = {"all": "all trained", "norms": "norms trained", "none": "frozen"}
"""What of a trunk was trained, as a person reads it."""


@final
@dataclass(frozen=True, eq=False)  # so that one may be a key
class Condition:
    """One task under one way of training it: rows that differ in their seed alone, or in fold and seed."""

    task: str
    label: str
    metric: str
    rows: Sequence[ResultRow]

    @property
    def end(self) -> tuple[str, str]:
        """Its experiment, which several tasks on one trunk have in common, and its task, whose name several may bear."""
        return self.rows[0]["experiment"], self.task

    @property
    def varied(self) -> Mapping[str, Any]:
        """The settings that tell it from others."""
        return self.rows[0]["varied"]

    @property
    def examined(self) -> tuple[str, ...]:
        """What tells its examination from others: the metric, and which data of what scale and size it is on."""
        data = data_of(self.rows[0])
        told = (data.get(name) for name in ("name", "val", "test", "score_range"))
        return (self.metric, *map(str, told), str(self.varied.get("data")))

    @property
    def unit(self) -> str:
        """What its scores are means over: folds where it has them, since seeds on one fold share their test."""
        return "fold" if "fold" in self.rows[0] else "seed"

    @property
    def runs(self) -> "Runs":
        """The score of each run on the test split."""
        return self._runs("test")

    @property
    def normalized_runs(self) -> "Runs | None":
        """The same from 0, chance, to 100, the reference; None where a perfect score is not known."""
        scale = row_score_range(self.rows[0])
        if scale.get("reference") in (None, scale.get("chance")):
            return None
        chance, reference = scale["chance"], scale["reference"]
        return {run: 100 * (score - chance) / (reference - chance) for run, score in self.runs.items()}

    @property
    def scores(self) -> dict[int, float]:
        """The score on the test split, by seed or by fold."""
        return by_unit(self.runs)

    @property
    def normalized_scores(self) -> dict[int, float] | None:
        """The same from 0, chance, to 100, the reference."""
        return None if (runs := self.normalized_runs) is None else by_unit(runs)

    @property
    def validation(self) -> float:
        """The mean score on the validation split, by which conditions are chosen; less than any where none is known."""
        name = f"val/{self.task}/{self.metric}"
        if not all(name in row["result"]["metrics"] for row in self.rows):
            return -math.inf
        return fmean(by_unit(self._runs("val")).values())

    @property
    def perfect(self) -> float | None:
        """The highest that its score can be; None where its runs do not say, which they do of their first metric."""
        row = self.rows[0]
        return data_of(row).get("max_score") if self.metric == first_metric(row) else None

    @property
    def score(self) -> Estimate:
        """The raw score over seeds or folds."""
        return estimate(self.scores.values(), self.unit)

    @property
    def normalized_score(self) -> Estimate | None:
        """The normalized score over seeds or folds."""
        return None if (scores := self.normalized_scores) is None else estimate(scores.values(), self.unit)

    @property
    def shown(self) -> Estimate:
        """The normalized score where it is known, else the raw one."""
        return self.normalized_score or self.score

    def cost(self, name: str) -> float:
        """The mean of a budget's figure over the runs."""
        return fmean(budget(row)[name] for row in self.rows)

    def has(self, **facts: Any) -> bool:
        """Whether its rows have these values."""
        return all(self.rows[0][name] == value for name, value in facts.items())

    def under(self, varied: Mapping[str, Any]) -> bool:
        """Whether its settings are among these; an experiment has not every one that varies."""
        return self.varied.items() <= varied.items()

    def _runs(self, split: str) -> "Runs":
        # Two runs of one seed are one: a repeated run adds nothing to what is known.
        found: dict[tuple[int, int], list[float]] = {}
        for row in self.rows:
            score = row["result"]["metrics"][f"{split}/{self.task}/{self.metric}"]
            found.setdefault((row[self.unit], row["seed"]), []).append(score)
        return {run: fmean(scores) for run, scores in found.items()}


Runs = Mapping[tuple[int, int], float]
"""Scores of runs, by what they are means over, a fold or a seed, and by seed."""


def by_unit(scores: Runs) -> dict[int, float]:
    """The mean of each fold's seeds, or each seed's own."""
    found: dict[int, list[float]] = {}
    for (each, _), score in sorted(scores.items()):
        found.setdefault(each, []).append(score)
    return {each: fmean(seeds) for each, seeds in found.items()}


def group_conditions(rows: Iterable[ResultRow]) -> list[Condition]:
    """All conditions, task by task: solo, joint, then the others in the order of the rows."""
    groups: dict[tuple[str, str, str], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((row["task"], condition_label(row), row["experiment"]), []).append(row)
    found: list[Condition] = []
    for (task, said, experiment), group in groups.items():
        alike = [other for other in groups if other[:2] == (task, said)]
        found.append(
            Condition(task, with_settings(said, experiment, alone=len(alike) == 1), metric_of(group[0]), group)
        )
    tasks = list(dict.fromkeys(condition.task for condition in found))
    modes = ("solo", "joint", "transfer")
    return sorted(found, key=lambda condition: (tasks.index(condition.task), modes.index(condition.rows[0]["mode"])))


def by_priority(found: Iterable[Condition]) -> list[Condition]:
    """Conditions in the order in which they stand for their task: on its own trunk first, then best on validation."""
    return sorted(found, key=lambda one: (not one.has(mode="solo", trainable="all"), -one.validation))


def condition_label(row: ResultRow) -> str:
    """How a row was trained, in a few words."""
    start, tuned = row["start"], TRAINABLE_LABELS.get(row["trainable"], f"{row['tuned']} trained")
    if start is None:
        said = f"random, {tuned}" if row["trainable"] != "all" else "solo"
    else:
        said = f"{start.replace('_', ' ')}{' shuffled' if row['shuffled'] else ''}, {tuned}"
    if row["mode"] == "joint":
        said = "joint" if said == "solo" else f"joint, {said}"
    settings = settings_text(row["varied"])
    if "fold" in row:
        settings = f"{settings}, over folds" if settings else "over folds"
    return settings if settings and said == "solo" else f"{said}, {settings}" if settings else said


def with_settings(said: str, experiment: str, *, alone: bool) -> str:
    """What is `said` of how an task was trained, with its experiment unless it `alone` was trained so."""
    return said if alone else experiment if said == "solo" else f"{experiment}, {said}"


def settings_text(varied: Mapping[str, Any]) -> str:
    """What was varied, in a few words."""
    return ", ".join(
        f"{100 * float(value):g} % of the examples" if name == "share" else f"{name}={format_setting(value)}"
        for name, value in varied.items()
    )


def maximal_settings(found: Iterable[Condition]) -> list[Mapping[str, Any]]:
    """The distinct settings of the conditions, without those that are a proper subset of another's."""
    each = [one.varied for one in found]
    return [
        own
        for k, own in enumerate(each)
        if own not in each[:k] and not any(own.items() < other.items() for other in each)
    ]


def format_setting(value: Any) -> str:
    """A setting's value as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def budget(row: ResultRow) -> Mapping[str, float]:
    """What a row's task cost, and how many parameters its run had."""
    result = row["result"]
    own = result.get("task_budgets", {}).get(row["task"], result["budget"])
    return {"parameters": result["parameters"]["total"], **own}


@final
@dataclass(frozen=True, eq=False)
class Contrast:
    """What one condition has over another of the same task, run by run of those that both have."""

    condition: Condition
    baseline: Condition
    gains: Mapping[int, float]
    """By seed, or by fold the mean of its seeds."""
    normalized_gains: Mapping[int, float] | None

    @property
    def gain(self) -> Estimate:
        """Over seeds or folds."""
        return estimate(self.gains.values(), self.condition.unit)

    @property
    def normalized_gain(self) -> Estimate | None:
        """The same in normalized scores."""
        return None if (gains := self.normalized_gains) is None else estimate(gains.values(), self.condition.unit)

    @property
    def shown(self) -> Estimate:
        """The normalized gain where it is known, else the raw one."""
        return self.normalized_gain or self.gain


def contrast(condition: Condition, baseline: Condition) -> Contrast | None:
    """A condition less its baseline; None where they share no seed, or no seed of a fold."""
    if condition.unit != baseline.unit or not condition.runs.keys() & baseline.runs.keys():
        return None
    first, second = condition.normalized_runs, baseline.normalized_runs
    scaled = _gains(first, second) if first is not None and second is not None else None
    return Contrast(condition, baseline, _gains(condition.runs, baseline.runs), scaled)


def _gains(first: Runs, second: Runs) -> dict[int, float]:
    return by_unit({run: first[run] - second[run] for run in first.keys() & second.keys()})


def contrasts(found: Sequence[Condition]) -> list[Contrast]:
    """Every condition against a trunk of its own; and a trained trunk against a random and a shuffled one.

    Both have read the same data. Where several could be one of these, it is the one that had the most settings in
    common.
    """
    answering = [
        one
        for condition in found
        for baseline in found
        if condition.task == baseline.task and baseline.under(condition.varied)
        if _answers(condition.rows[0], baseline.rows[0])
        if (one := contrast(condition, baseline)) and _read_alike(one)
    ]
    kinds: dict[tuple[Any, ...], list[Contrast]] = {}
    for one in answering:
        kind = (one.baseline.rows[0][fact] for fact in ("start", "shuffled", "trainable"))
        kinds.setdefault((one.condition, *kind), []).append(one)
    return [max(alike, key=_in_common) for alike in kinds.values()]


def _read_alike(one: Contrast) -> bool:
    """Whether runs of one seed, and fold, have read the same data."""
    first, second = (
        {(row[side.unit], row["seed"]): data_of(row).get("sha256") for row in side.rows}
        for side in (one.condition, one.baseline)
    )
    return all(first[run] == second[run] for run in first.keys() & second.keys())


def _in_common(one: Contrast) -> int:
    """How many settings a condition and its baseline were trained under alike."""
    row, other = one.condition.rows[0], one.baseline.rows[0]
    own = _settings_for(row, other["experiment"]) or {}
    return sum(own.get(name) == value for name, value in other["result"].get("settings", {}).items())


def _settings_for(row: ResultRow, experiment: str) -> Mapping[str, Any] | None:
    """A row's settings, or what a comparison's joint run had for one experiment; None if it held no such one."""
    settings = row["result"].get("settings", {})
    return settings.get(experiment) if any(isinstance(one, Mapping) for one in settings.values()) else settings


def _answers(row: ResultRow, other: ResultRow) -> bool:
    joined = row["mode"] == "joint" and _settings_for(row, other["experiment"]) is not None
    if row is other or not (joined or row["experiment"] == other["experiment"]):
        return False
    solo = other["mode"] == "solo" and other["start"] is None and other["trainable"] == "all"
    if row["start"] is None or row["shuffled"]:
        return solo and (row["mode"] == "joint" or row["trainable"] != "all" or row["shuffled"])
    control = row["trainable"] == other["trainable"] and (
        other["start"] is None or (other["shuffled"] and other["start"] == row["start"])
    )
    return other["mode"] != "joint" and (solo or control)
