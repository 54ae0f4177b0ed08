"""Tables of a report, and sentences that list the equal and the different costs of runs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from unifier.report.conditions import (
    Condition,
    Contrast,
    ResultRow,
    contrasts,
    has_uncounted_pretraining,
    lineage_of,
    metric_title,
    row_budget,
    row_score_range,
)
from unifier.report.estimates import (
    count_noun,
    format_number,
    format_range,
    format_value,
    join_words,
    num_decimals,
    plus_minus,
)
from unifier.report.schema import AttentionEntry, read_entry

MATCH_TOLERANCE = 0.02
"""Maximum relative difference of costs that are reported as equal. The tolerance allows for one batch."""

BUDGET_MEASURES = {
    "tokens": "tokens",
    "flops": "FLOPs",
    "steps": "steps",
    "seconds": "seconds",
    "parameters": "parameters",
}
"""A mapping from each compared cost to its name in a sentence."""

SIMILARITY_DECIMALS = {"raw": 2, "chance": 2, "calibrated": 2, "p": 3}
"""Number of digits after the decimal point in each column of a similarity table."""

EMPTY_CELL = "–"

ReportTable = list[dict[str, str]]
"""The rows of a table. Each row is a mapping from column name to cell text."""


class Unmatched(NamedTuple):
    """A cost that differs between rows, with its lowest and its highest value."""

    measure: str
    low: float
    high: float


def unmatched(rows: Iterable[ResultRow]) -> list[Unmatched]:
    """Return the costs that differ between rows by more than `MATCH_TOLERANCE`."""
    budgets = [row_budget(row) for row in rows]
    different: list[Unmatched] = []
    for measure in BUDGET_MEASURES:
        values = [budget[measure] for budget in budgets if measure in budget]
        if values and max(values) - min(values) > MATCH_TOLERANCE * max(values):
            different.append(Unmatched(measure, min(values), max(values)))
    return different


def matching_sentence(rows: Iterable[ResultRow]) -> str:
    """Return one line on the equal and the different costs of rows, or "" for a single row."""
    rows = list(rows)
    if len(rows) < 2:
        return ""
    if not all(
        row["task"] in row["result"].get("task_budgets", {}) or len(row["result"]["tasks"]) == 1 for row in rows
    ):
        return "the cost of each task in the joint run was not recorded"
    different = unmatched(rows)
    ranges = [f"{BUDGET_MEASURES[cost.measure]} {format_range(cost.low, cost.high)}" for cost in different]
    equal = [name for measure, name in BUDGET_MEASURES.items() if measure not in {cost.measure for cost in different}]
    matched = f"equal within 2 %: {join_words(equal)}" if equal else "no cost is equal within 2 %"
    sentence = f"{matched}; different: {', '.join(ranges)}" if ranges else matched
    is_transfer = any(row["start"] is not None for row in rows)
    return f"{sentence}; the pretraining of transferred trunks is not counted" if is_transfer else sentence


def pretraining_caveat(rows: Iterable[ResultRow]) -> str:
    """Return the caveat for all tables and figures of a comparison that leaves out the pretraining, or ""."""
    return "Pretraining is not counted in the budget" if any(map(has_uncounted_pretraining, rows)) else ""


def describe_starts(rows: Sequence[ResultRow]) -> str:
    """Return sentences on the parts of trained models that were loaded, and on teachers, or "" without such models."""
    pairs: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for row in rows:
        if start := lineage_of(row).get("start"):
            pairs[row["task"] in lineage_of(row).get("tokenizers", ())][f"{start} to {row['task']}"] = None
    texts = {True: "trunk and tokenizer", False: "the trunk alone"}
    parts = [f"{texts[both]} ({', '.join(names)})" for both, names in pairs.items() if names]
    teachers = {f"{name} to {row['task']}": None for row in rows for name in lineage_of(row).get("teachers", ())}
    sentences = [f"Handed over from trained models: {'; '.join(parts)}."] if parts else []
    return " ".join([*sentences, *([f"Learned from teachers: {', '.join(teachers)}."] if teachers else [])])


def describe_matching(conditions: Sequence[Condition]) -> dict[str, str]:
    """Return the capitalized `matching_sentence` of each task with several conditions."""
    tasks = [condition.task for condition in conditions]
    return {
        task: f"{sentence[0].upper()}{sentence[1:]}"
        for task in dict.fromkeys(tasks)
        if tasks.count(task) > 1
        if (
            sentence := matching_sentence(
                row for condition in conditions if condition.task == task for row in condition.rows
            )
        )
    }


def score_tables(conditions: Sequence[Condition]) -> dict[str, ReportTable]:
    """Return a score table for each task, with one row per condition.

    If no task has two conditions, all rows form one table with the key "". The columns are the raw score, the
    normalized score, the gain over solo, and each cost that differs.
    """
    different = [cost.measure for cost in unmatched(row for condition in conditions for row in condition.rows)]
    any_normalized = any(condition.normalized_score for condition in conditions)
    counts = {condition.score.num_values for condition in conditions}
    over_solo = {pair.condition: pair for pair in contrasts(conditions) if _is_over_solo(pair)}
    single = len({condition.task for condition in conditions}) == len(conditions)
    tables: dict[str, ReportTable] = {}
    for condition in conditions:
        metric, score = condition.title, plus_minus(condition.score)
        row = {"condition": condition.label, metric: score}
        if single:
            row = {"task": condition.task, "score": score, "metric": metric, "also": _other_metrics(condition)}
        if any_normalized:
            normalized = condition.normalized_score
            row["normalized"] = plus_minus(normalized) if normalized else "no reference"
            if single:
                chance = row_score_range(condition.rows[0]).get("chance")
                row["chance"] = EMPTY_CELL if chance is None else format_value(chance)
        if over_solo:
            pair = over_solo.get(condition)
            row[_gain_column("minus solo", condition)] = _format_gain(pair, conditions) if pair else EMPTY_CELL
        if len(counts) > 1:
            row["over"] = count_noun(condition.score.num_values, condition.unit)
        row |= {BUDGET_MEASURES[measure]: format_range(condition.cost(measure)) for measure in different}
        tables.setdefault("" if single else condition.task, []).append(row)
    return {task: _fill_columns(rows) for task, rows in tables.items()}


def control_table(conditions: Sequence[Condition]) -> ReportTable:
    """Return the gains of trained trunks over two controls: a random trunk, and a trunk with shuffled weights."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for pair in contrasts(conditions):
        condition = pair.condition
        if condition.has(mode="transfer") and not _is_over_solo(pair):
            names = {"task": condition.task, "condition": condition.label}
            row = rows.setdefault((condition.task, condition.label), names)
            control = "minus random" if pair.baseline.has(start=None) else "minus shuffled"
            row[_gain_column(control, condition)] = _format_gain(pair, conditions)
    return _fill_columns(rows.values())


def attention_table(conditions: Sequence[Condition]) -> ReportTable:
    """Return the attention statistics of each layer, for the first and the joint condition of each task.

    The numbers are means over the runs that have an attention.json.
    """
    table: ReportTable = []
    first = {condition.task: condition for condition in reversed(conditions)}
    for condition in conditions:
        statistics = [content for row in condition.rows if (content := _read_attention(row, condition.task))]
        if not statistics or not (condition is first[condition.task] or condition.has(mode="joint")):
            continue
        unit = f" {statistics[0]['unit']}"
        for k in range(min(len(content["layers"]) for content in statistics)):
            layers = [content["layers"][k] for content in statistics]
            table.append(
                {
                    "task": condition.task,
                    "trunk": condition.label,
                    "block": str(k + 1),
                    "entropy / log N": _mean_cell(layers, "entropy", 2),
                    "mean distance": _mean_cell(layers, "distance", 1, unit),
                    "distance if attention were uniform": _mean_cell(layers, "uniform_distance", 1, unit),
                    "head agreement": _mean_cell(layers, "agreement", 2, empty="one head"),
                }
            )
    return table


def alignment_table(conditions: Sequence[Condition]) -> ReportTable:
    """Return the alignment error rate of attention, averaged over the runs with a gold alignment."""
    table: ReportTable = []
    for condition in conditions:
        contents = [_read_attention(row, condition.task) for row in condition.rows]
        measured = [content for content in contents if "alignment_error_rate" in content]
        if measured:
            error, chance = (
                f"{format_number(100 * fmean(content[name] for content in measured), 0)} %"
                for name in ("alignment_error_rate", "alignment_error_rate_chance")
            )
            names = {"task": condition.task, "trunk": condition.label}
            table.append({**names, "alignment error rate": error, "by chance": chance})
    return table


def similarity_table(rows: Sequence[Mapping[str, Any]]) -> ReportTable:
    """Format the numbers of a similarity table: raw, chance, calibrated and p."""
    return [
        {
            name: value
            if value == "" or name not in SIMILARITY_DECIMALS
            else format_number(value, SIMILARITY_DECIMALS[name])
            for name, value in row.items()
        }
        for row in rows
    ]


def run_table(rows: Sequence[ResultRow], labels: Mapping[int, str]) -> ReportTable:
    """Return one row per run: its condition, its cost and the name of its folder.

    Args:
        rows: The rows of the runs. A joint run has one row per task.
        labels: A mapping from `id(row)` to the label of the row's condition.
    """
    has_folds, any_start = any("fold" in row for row in rows), any(map(lineage_of, rows))
    table: dict[str, dict[str, str]] = {}
    for row in rows:
        result, folder = row["result"], row["folder"]
        budget, speeds = result["budget"], result.get("speed") or {}
        cells = {
            "experiment": row["experiment"],
            "condition": labels[id(row)],
            "seed": str(row["seed"]),
            **({"fold": str(row.get("fold", EMPTY_CELL))} if has_folds else {}),
            "tokens": format_range(budget["tokens"]),
            "FLOPs": format_range(budget["flops"]),
            "seconds": format_range(budget["seconds"]),
            "memory": f"{format_range(memory)}B" if (memory := budget.get("peak_memory_bytes")) else EMPTY_CELL,
            "tokens/s": format_range(speed) if (speed := speeds.get("tokens_per_second")) else EMPTY_CELL,
            "parameters": format_range(result["parameters"]["total"]),
            **({"pretraining tokens": _pretraining_cell(row)} if any_start else {}),
            "run": folder.name if folder else "",
        }
        table.setdefault(str(folder or id(row)), cells)
    return list(table.values())


def _pretraining_cell(row: ResultRow) -> str:
    """Return the number of tokens that the pretraining read."""
    tokens = lineage_of(row).get("pretraining", {}).get("tokens")
    return EMPTY_CELL if tokens is None else format_range(tokens)


def _other_metrics(condition: Condition) -> str:
    """Format the scores in all metrics except the main metric, averaged over runs."""
    prefix = f"test/{condition.task}/"
    scores: dict[str, list[float]] = {}
    for row in condition.rows:
        for name, score in row["result"]["metrics"].items():
            if name.startswith(prefix) and name != prefix + condition.metric:
                scores.setdefault(name.removeprefix(prefix), []).append(score)
    row = condition.rows[0]
    return ", ".join(f"{format_value(fmean(values))} {metric_title(row, metric)}" for metric, values in scores.items())


def _fill_columns(rows: Collection[Mapping[str, str]]) -> ReportTable:
    """Add missing columns to each row."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, EMPTY_CELL) for name in columns} for row in rows]


def _is_over_solo(pair: Contrast) -> bool:
    return pair.baseline.has(start=None, trainable="all")


def _gain_column(name: str, condition: Condition) -> str:
    """Return the column name of a gain. The gain is normalized if the condition has a reference score."""
    return f"{name}, normalized" if condition.normalized_score else name


def _format_gain(pair: Contrast, conditions: Sequence[Condition]) -> str:
    """Format a gain with the decimals of the task's scores, or with one decimal for scores without decimals.

    Paired gains may have narrow intervals even if the scores vary widely between seeds.
    """
    scores = [condition.display_score for condition in conditions if condition.task == pair.condition.task]
    return plus_minus(pair.display_gain, max(1, *(num_decimals(score) for score in scores)), signed=True)


def _mean_cell(
    layers: Sequence[Mapping[str, float | None]], name: str, places: int, unit: str = "", empty: str = EMPTY_CELL
) -> str:
    """Format a statistic averaged over runs, or return `empty` if no run contains the statistic.

    The entropy is undefined for a single token, and the agreement is undefined for a single head.
    """
    values = [value for layer in layers if (value := layer.get(name)) is not None]
    return f"{format_number(fmean(values), places)}{unit}" if values else empty


def _read_attention(row: ResultRow, task: str) -> dict[str, Any]:
    return (row["folder"] and read_entry(row["folder"] / "attention.json", task, AttentionEntry)) or {}
