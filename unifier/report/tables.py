"""Which costs of compared rows are equal, and which differ.

The report's tables, each a list of rows of texts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from unifier.files import read_json
from unifier.report.conditions import Condition, Contrast, Row, budget, contrasts
from unifier.report.estimates import alone, amount, count, decimals, join, number, plain, plus_minus

TOLERANCE = 0.02
"""Amounts whose spread is at most this share of the largest are equal: a batch more or less."""


MEASURES = {"tokens": "tokens", "flops": "FLOPs", "steps": "steps", "seconds": "seconds", "parameters": "parameters"}


class Unmatched(NamedTuple):
    """A measure in which rows differ, from the least to the most."""

    measure: str
    low: float
    high: float


def unmatched(rows: Iterable[Row]) -> list[Unmatched]:
    """The measures in which rows differ by more than a fiftieth."""
    costs = [budget(row) for row in rows]
    found: list[Unmatched] = []
    for measure in MEASURES:
        values = [cost[measure] for cost in costs if measure in cost]
        if values and max(values) - min(values) > TOLERANCE * max(values):
            found.append(Unmatched(measure, min(values), max(values)))
    return found


def matching(rows: Iterable[Row]) -> str:
    """What is matched and what is not, in a line; empty for a single row."""
    rows = list(rows)
    if len(rows) < 2:
        return ""
    counted = [
        row for row in rows if row["arm"] in row["result"].get("arm_budgets", {}) or len(row["result"]["arms"]) == 1
    ]
    if len(counted) < len(rows):  # a run's whole cost says nothing of what each of its arms had
        return "the cost of each arm in the joint run was not recorded"
    apart = unmatched(rows)
    ranges = [f"{MEASURES[one.measure]} {amount(one.low, one.high)}" for one in apart]
    equal = [said for measure, said in MEASURES.items() if measure not in {one.measure for one in apart}]
    matched = f"equal within 2 %: {join(equal)}" if equal else "no cost is equal within 2 %"
    said = f"{matched}; different: {', '.join(ranges)}" if ranges else matched
    moved = any(row["start"] is not None for row in rows)
    return f"{said}; the pretraining of transferred trunks is not counted" if moved else said


def matching_of(conditions: Sequence[Condition]) -> dict[str, str]:
    """The same as a sentence for each arm of several conditions; arms are not held against each other."""
    arms = [one.arm for one in conditions]
    return {
        arm: f"{said[0].upper()}{said[1:]}"
        for arm in dict.fromkeys(arms)
        if arms.count(arm) > 1
        if (said := matching(row for one in conditions if one.arm == arm for row in one.rows))
    }


Table = list[dict[str, str]]
"""A line maps a column's name to what stands there."""


def score_tables(found: Sequence[Condition]) -> dict[str, Table]:
    """For each arm a line a condition: raw and normalised score, the gain over solo, and each unmatched cost.

    Where every arm has one condition, all stand in one table.
    """
    rows = [row for condition in found for row in condition.rows]
    apart = [one.measure for one in unmatched(rows)]
    scaled = any(one.normalised_score for one in found)
    seeds = {one.score.size for one in found}
    over_solo = {one.condition: one for one in contrasts(found) if _is_solo(one)}
    single = len({one.arm for one in found}) == len(found)
    tables: dict[str, Table] = {}
    for one in found:
        line = {"condition": one.label, plain(one.metric): plus_minus(one.score)}
        if single:
            line = {"arm": one.arm, "score": plus_minus(one.score), "metric": plain(one.metric), "also": _others(one)}
        if scaled:
            line["normalised"] = plus_minus(one.normalised_score) if one.normalised_score else "no reference"
        if over_solo:
            gain = over_solo.get(one)
            line[_headed("minus solo", one)] = _gain(gain, found) if gain else "–"
        if len(seeds) > 1:
            line["over"] = count(one.score.size, one.unit)
        line |= {MEASURES[measure]: amount(one.cost(measure)) for measure in apart}
        tables.setdefault("" if single else one.arm, []).append(line)
    return {arm: _filled(lines) for arm, lines in tables.items()}


def _others(condition: Condition) -> str:
    """The arm's other metrics, which it is not judged by, each over the runs that have it."""
    prefix = f"test/{condition.arm}/"
    others: dict[str, list[float]] = {}
    for row in condition.rows:
        for name, score in row["result"]["metrics"].items():
            if name.startswith(prefix) and name != prefix + condition.metric:
                others.setdefault(name.removeprefix(prefix), []).append(score)
    return ", ".join(f"{alone(fmean(scores))} {plain(metric)}" for metric, scores in others.items())


def control_table(found: Sequence[Condition]) -> Table:
    """What a trained trunk's weights bring beyond a random trunk's, and beyond the same weights shuffled."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for one in contrasts(found):
        if one.condition.has(mode="transfer") and not _is_solo(one):
            line = lines.setdefault(
                (one.condition.arm, one.condition.label), {"arm": one.condition.arm, "condition": one.condition.label}
            )
            control = "minus random" if one.baseline.has(start=None) else "minus shuffled"
            line[_headed(control, one.condition)] = _gain(one, found)
    return _filled(lines.values())


def _filled(lines: Collection[Mapping[str, str]]) -> Table:
    """The lines with all columns that any of them has."""
    columns = dict.fromkeys(name for line in lines for name in line)
    return [{name: line.get(name, "–") for name in columns} for line in lines]


def _is_solo(one: Contrast) -> bool:
    return one.baseline.has(start=None, tuned="all")


def _headed(column: str, one: Condition) -> str:
    """A column of differences, which are in normalised points where the arm's scores are scaled."""
    return f"{column}, normalised" if one.normalised_score else column


def _gain(one: Contrast, found: Sequence[Condition]) -> str:
    """A difference, with no more digits after the point than any of the arm's scores has, or one: where scores spread
    by tens, what they differ by seed by seed may be told to a tenth."""
    scores = [other.shown for other in found if other.arm == one.condition.arm]
    return plus_minus(one.shown, max(1, *(decimals(score) for score in scores)), signed=True)


def attention_table(found: Sequence[Condition]) -> Table:
    """What attention does in each layer, for an arm's first condition and its joint one: means over seeds."""
    table: Table = []
    first = {one.arm: one for one in reversed(found)}
    for one in found:
        kept = [read for row in one.rows if (read := _attention(row, one.arm))]
        if not kept or not (one is first[one.arm] or one.has(mode="joint")):
            continue
        for layer in range(min(len(read["layers"]) for read in kept)):
            layers, unit = [read["layers"][layer] for read in kept], f" {kept[0]['unit']}"
            table.append(
                {
                    "arm": one.arm,
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
    return f"{number(fmean(known), digits)}{unit}" if known else none


def alignment_table(found: Sequence[Condition]) -> Table:
    """How often attention aligns the wrong words, where a gold alignment is known: means over seeds."""
    table: Table = []
    for one in found:
        kept = [read for row in one.rows if "alignment_error_rate" in (read := _attention(row, one.arm))]
        if kept:
            means = [
                fmean(read[name] for read in kept) for name in ("alignment_error_rate", "alignment_error_rate_chance")
            ]
            error, chance = (f"{number(100 * mean, 0)} %" for mean in means)
            table.append({"arm": one.arm, "trunk": one.label, "alignment error rate": error, "by chance": chance})
    return table


def _attention(row: Row, arm: str) -> dict[str, Any]:
    path = row["folder"] / "attention.json" if row["folder"] else None
    return read_json(path).get(arm, {}) if path and path.exists() else {}


DECIMALS = {"raw": 2, "chance": 2, "calibrated": 2, "p": 3}
"""Of the numbers of how alike two trunks are."""


def likeness_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """How alike trunks are, layer by layer: raw, by chance, calibrated."""
    return [
        {
            name: value if value == "" or name not in DECIMALS else number(value, DECIMALS[name])
            for name, value in line.items()
        }
        for line in lines
    ]


def run_table(rows: Sequence[Row], labels: Mapping[int, str]) -> Table:
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
            "tokens": amount(spent["tokens"]),
            "FLOPs": amount(spent["flops"]),
            "seconds": amount(spent["seconds"]),
            "memory": f"{amount(spent['peak_memory_bytes'])}B",
            "tokens/s": amount(result["speed"]["tokens_per_second"]) if result.get("speed") else "–",
            "parameters": amount(result["parameters"]["total"]),
            "run": place.name if place else "",
        }
        table.setdefault(str(place or id(row)), line)
    return list(table.values())
