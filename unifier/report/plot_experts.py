"""The share of each task's tokens that each expert of a trunk gets."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifier.report.conditions import Condition
from unifier.report.estimates import estimate, join_nonempty, plus_minus
from unifier.report.plot_style import FigureWriter, SavedFigure, create_panel, plot_heat_map
from unifier.report.schema import ExpertsEntry, add_problem, read_entry

EXPERTS_FILE = "experts.json"
"""A run's file with the number of tokens of each expert, for each task and layer."""

TaskCounts = Mapping[str, Sequence[Sequence[int]]]
"""The number of tokens of each expert, by task and layer."""


def unused_experts(counts: TaskCounts) -> list[str]:
    """Return the names of the experts that no token of any task reaches, such as "expert 2 of layer 1"."""
    totals = np.array([*counts.values()]).sum(0)
    return [f"expert {expert + 1} of layer {layer + 1}" for layer, expert in np.argwhere(totals == 0).tolist()]


def task_difference(shares: Mapping[str, NDArray[np.float64]]) -> float | None:
    """Return the total variation distance between two tasks' shares (layers, E), averaged over pairs and layers.

    The distance is 0 if each expert gets equal shares of the tasks' tokens, and 1 if no expert gets tokens of two
    tasks. A single task has no distance (None).
    """
    distances = [np.abs(a - b).sum(-1).mean() / 2 for a, b in combinations(shares.values(), 2)]
    return fmean(map(float, distances)) if distances else None


def draw_experts(conditions: Sequence[Condition], writer: FigureWriter) -> list[SavedFigure]:
    """Draw a heat map for each trunk with experts: one row per layer and task, and one column per expert.

    A condition with several seeds has one map, of its first run, because the experts of two runs have no common order.
    """
    trunks: dict[tuple[Path, ...], list[Condition]] = defaultdict(list)
    for condition in conditions:
        if folders := tuple(sorted(row["folder"] for row in condition.rows if row["folder"])):
            trunks[folders].append(condition)
    found: list[tuple[list[Condition], list[TaskCounts]]] = []
    for folders, group in trunks.items():
        tasks = list(dict.fromkeys(condition.task for condition in group))
        if runs := [counts for folder in folders if (counts := _read_counts(folder, tasks))]:
            found.append((group, runs))
    return [_draw_trunk(group, runs, writer) for group, runs in writer.limit(found, "experts")]


def _read_counts(folder: Path, tasks: Sequence[str]) -> TaskCounts:
    """Return the counts of a run's tasks, or {} without a file or with a damaged file."""
    path = folder / EXPERTS_FILE
    counts = {task: entry for task in tasks if (entry := read_entry(path, task, ExpertsEntry))}
    if len({(len(layers), *map(len, layers)) for layers in counts.values()}) > 1:
        add_problem(path, "the tasks have different numbers of layers or experts")
        return {}
    return counts if len(counts) == len(tasks) else {}


def _shares(counts: TaskCounts) -> dict[str, NDArray[np.float64]]:
    by_task = {task: np.array(layers, float) for task, layers in counts.items()}
    return {task: layers / layers.sum(-1, keepdims=True).clip(min=1) for task, layers in by_task.items()}


def _draw_trunk(group: Sequence[Condition], runs: Sequence[TaskCounts], writer: FigureWriter) -> SavedFigure:
    shares = _shares(runs[0])
    tasks, label = list(shares), group[0].label
    num_layers, num_experts = next(iter(shares.values())).shape
    cells = np.array([shares[task][layer] for layer in range(num_layers) for task in tasks])
    rows = [f"layer {layer + 1}, {task}" for layer in range(num_layers) for task in tasks]
    figure, axes = create_panel(2.6 + 0.55 * num_experts + 0.06 * max(map(len, rows)), 0.8 + 0.24 * len(rows))
    texts = [[f"{share:.0%}" for share in row] for row in cells]
    plot_heat_map(axes, cells, (0.0, 1.0), texts, rows, [str(k + 1) for k in range(num_experts)], size=8)
    axes.set(title=label if len(tasks) > 1 else f"{label}, {tasks[0]}", xlabel="expert")
    differences = [task_difference(_shares(counts)) for counts in runs]
    measured = [value for value in differences if value is not None]
    lost, losing = unused_experts(runs[0]), sum(bool(unused_experts(counts)) for counts in runs)
    note = join_nonempty(
        "Share of the tokens of validation examples that each expert gets",
        "The first of several runs" if len(runs) > 1 else "",
        f"Difference between tasks (0: equal shares, 1: no common expert): {plus_minus(estimate(measured), 2)}"
        if measured
        else "",
        f"No token reaches {', '.join(lost)}" if lost else "",
        f"{losing} of {len(runs)} runs have an expert that no token reaches" if losing and len(runs) > 1 else "",
        between=". ",
    )
    table: list[dict[str, Any]] = [
        {"condition": label, "task": task, "layer": layer + 1, "expert": expert + 1, "share": share}
        for task, layers in shares.items()
        for layer, experts in enumerate(layers.tolist())
        for expert, share in enumerate(experts)
    ]
    alt = f"share of the tokens of each expert, {label}, {', '.join(tasks)}"
    return writer.save(figure, f"experts-{label}-{'-'.join(tasks)}", "experts", alt, table, note)
