"""Which costs of compared rows are equal, and which differ.

The report's tables, each a list of rows of texts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from unifier.files import read_json
from unifier.report.conditions import Condition, Contrast, ResultRow, budget, contrasts
from unifier.report.estimates import (
    count_noun,
    decimals,
    format_alone,
    format_number,
    format_range,
    join,
    plain_name,
    plus_minus,
)

TOLERANCE = 0.02
"""Amounts whose spread is at most this share of the largest are equal: a batch more or less."""


BUDGET_MEASURES = {
    "tokens": "tokens",
    "flops": "FLOPs",
    "steps": "steps",
    "seconds": "seconds",
    "parameters": "parameters",
}


class Unmatched(NamedTuple):
    """A measure in which rows differ, from the least to the most."""

    measure: str
    low: float
    high: float


def unmatched(rows: Iterable[ResultRow]) -> list[Unmatched]:
    """The measures in which rows differ by more than a fiftieth."""
    costs = [budget(row) for row in rows]
    found: list[Unmatched] = []
    for measure in BUDGET_MEASURES:
        values = [cost[measure] for cost in costs if measure in cost]
        if values and max(values) - min(values) > TOLERANCE * max(values):
            found.append(Unmatched(measure, min(values), max(values)))
    return found


def matching_sentence(rows: Iterable[ResultRow]) -> str:
    """What is matched and what is not, in a line; empty for a single row."""
    rows = list(rows)
    if len(rows) < 2:
        return ""
    counted = [
        row for row in rows if row["task"] in row["result"].get("task_budgets", {}) or len(row["result"]["tasks"]) == 1
    ]
    if len(counted) < len(rows):  # a run's whole cost says nothing of what each of its tasks had
        return "the cost of each task in the joint run was not recorded"
    apart = unmatched(rows)
    ranges = [f"{BUDGET_MEASURES[one.measure]} {format_range(one.low, one.high)}" for one in apart]
    equal = [said for measure, said in BUDGET_MEASURES.items() if measure not in {one.measure for one in apart}]
    matched = f"equal within 2 %: {join(equal)}" if equal else "no cost is equal within 2 %"
    said = f"{matched}; different: {', '.join(ranges)}" if ranges else matched
    moved = any(row["start"] is not None for row in rows)
    return f"{said}; the pretraining of transferred trunks is not counted" if moved else said


def describe_matching(conditions: Sequence[Condition]) -> dict[str, str]:
    """The same as a sentence for each task of several conditions; tasks are not held against each other."""
    tasks = [one.task for one in conditions]
    return {
        task: f"{said[0].upper()}{said[1:]}"
        for task in dict.fromkeys(tasks)
        if tasks.count(task) > 1
        if (said := matching_sentence(row for one in conditions if one.task == task for row in one.rows))
    }


Table = list[dict[str, str]]
"""A line maps a column's name to what stands there."""


def score_tables(found: Sequence[Condition]) -> dict[str, Table]:
    """For each task a line a condition: raw and normalized score, the gain over solo, and each unmatched cost.

    Where every task has one condition, all stand in one table.
    """
    rows = [row for condition in found for row in condition.rows]
    apart = [one.measure for one in unmatched(rows)]
    scaled = any(one.normalized_score for one in found)
    seeds = {one.score.size for one in found}
    over_solo = {one.condition: one for one in contrasts(found) if _is_solo(one)}
    single = len({one.task for one in found}) == len(found)
    tables: dict[str, Table] = {}
    for one in found:
        line = {"condition": one.label, plain_name(one.metric): plus_minus(one.score)}
        if single:
            line = {
                "task": one.task,
                "score": plus_minus(one.score),
                "metric": plain_name(one.metric),
                "also": _others(one),
            }
        if scaled:
            line["normalized"] = plus_minus(one.normalized_score) if one.normalized_score else "no reference"
        if over_solo:
            gain = over_solo.get(one)
            line[_headed("minus solo", one)] = _gain(gain, found) if gain else "–"
        if len(seeds) > 1:
            line["over"] = count_noun(one.score.size, one.unit)
        line |= {BUDGET_MEASURES[measure]: format_range(one.cost(measure)) for measure in apart}
        tables.setdefault("" if single else one.task, []).append(line)
    return {task: _filled(lines) for task, lines in tables.items()}


def _others(condition: Condition) -> str:
    """The task's other metrics, which it is not judged by, each over the runs that have it."""
    prefix = f"test/{condition.task}/"
    others: dict[str, list[float]] = {}
    for row in condition.rows:
        for name, score in row["result"]["metrics"].items():
            if name.startswith(prefix) and name != prefix + condition.metric:
                others.setdefault(name.removeprefix(prefix), []).append(score)
    return ", ".join(f"{format_alone(fmean(scores))} {plain_name(metric)}" for metric, scores in others.items())


def control_table(found: Sequence[Condition]) -> Table:
    """What a trained trunk's weights bring beyond a random trunk's, and beyond the same weights shuffled."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for one in contrasts(found):
        if one.condition.has(mode="transfer") and not _is_solo(one):
            line = lines.setdefault(
                (one.condition.task, one.condition.label),
                {"task": one.condition.task, "condition": one.condition.label},
            )
            control = "minus random" if one.baseline.has(start=None) else "minus shuffled"
            line[_headed(control, one.condition)] = _gain(one, found)
    return _filled(lines.values())


def _filled(lines: Collection[Mapping[str, str]]) -> Table:
    """The lines with all columns that any of them has."""
    columns = dict.fromkeys(name for line in lines for name in line)
    return [{name: line.get(name, "–") for name in columns} for line in lines]


def _is_solo(one: Contrast) -> bool:
    return one.baseline.has(start=None, trainable="all")


def _headed(column: str, one: Condition) -> str:
    """A column of differences, which are in normalized points where the task's scores are scaled."""
    return f"{column}, normalized" if one.normalized_score else column


def _gain(one: Contrast, found: Sequence[Condition]) -> str:
    """A difference, with no more digits after the point than any of the task's scores has, or one: where scores spread
    by tens, what they differ by seed by seed may be told to a tenth."""
    scores = [other.shown for other in found if other.task == one.condition.task]
    return plus_minus(one.shown, max(1, *(decimals(score) for score in scores)), signed=True)


def attention_table(found: Sequence[Condition]) -> Table:
    """What attention does in each layer, for an task's first condition and its joint one: means over seeds."""
    table: Table = []
    first = {one.task: one for one in reversed(found)}
    for one in found:
        kept = [read for row in one.rows if (read := _attention(row, one.task))]
        if not kept or not (one is first[one.task] or one.has(mode="joint")):
            continue
        for layer in range(min(len(read["layers"]) for read in kept)):
            layers, unit = [read["layers"][layer] for read in kept], f" {kept[0]['unit']}"
            table.append(
                {
                    "task": one.task,
                    "trunk": one.label,
                    "block": str(layer + 1),
                    "entropy / log N": _mean(layers, "entropy", 2),
                    "mean distance": _mean(layers, "distance", 1, unit),
                    "distance if attention were uniform": _mean(layers, "uniform_distance", 1, unit),
                    "head agreement": _mean(layers, "agreement", 2, none="one head"),
                }
            )
    return table


def _mean(layers: Sequence[Mapping[str, float | None]], name: str, digits: int, unit: str = "", none: str = "–") -> str:
    """The mean over those that could tell: of one column there is no entropy, and of one head no agreement."""
    known = [value for layer in layers if (value := layer[name]) is not None]
    return f"{format_number(fmean(known), digits)}{unit}" if known else none


def alignment_table(found: Sequence[Condition]) -> Table:
    """How often attention aligns the wrong words, where a gold alignment is known: means over seeds."""
    table: Table = []
    for one in found:
        kept = [read for row in one.rows if "alignment_error_rate" in (read := _attention(row, one.task))]
        if kept:
            means = [
                fmean(read[name] for read in kept) for name in ("alignment_error_rate", "alignment_error_rate_chance")
            ]
            error, chance = (f"{format_number(100 * mean, 0)} %" for mean in means)
            table.append({"task": one.task, "trunk": one.label, "alignment error rate": error, "by chance": chance})
    return table


def _attention(row: ResultRow, task: str) -> dict[str, Any]:
    path = row["folder"] / "attention.json" if row["folder"] else None
    return read_json(path).get(task, {}) if path and path.exists() else {}


DECIMALS = {"raw": 2, "chance": 2, "calibrated": 2, "p": 3}
"""Of the numbers of how alike two trunks are."""


def similarity_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """How alike trunks are, layer by layer: raw, by chance, calibrated."""
    return [
        {
            name: value if value == "" or name not in DECIMALS else format_number(value, DECIMALS[name])
            for name, value in line.items()
        }
        for line in lines
    ]


def run_table(rows: Sequence[ResultRow], labels: Mapping[int, str]) -> Table:
    """A line for each run: what it was, what it cost, and its folder's name; `labels` are by the row's identity."""
    folded = any("fold" in row for row in rows)
    table: dict[str, dict[str, str]] = {}
    for row in rows:
        result, place = row["result"], row["folder"]
        spent = result["budget"]
        line = {
            "experiment": row["experiment"],
            "condition": labels[id(row)],
            "seed": str(row["seed"]),
            **({"fold": str(row.get("fold", "–"))} if folded else {}),
            "tokens": format_range(spent["tokens"]),
            "FLOPs": format_range(spent["flops"]),
            "seconds": format_range(spent["seconds"]),
            "memory": f"{format_range(spent['peak_memory_bytes'])}B",
            "tokens/s": format_range(result["speed"]["tokens_per_second"]) if result.get("speed") else "–",
            "parameters": format_range(result["parameters"]["total"]),
            "run": place.name if place else "",
        }
        table.setdefault(str(place or id(row)), line)
    return list(table.values())
