"""Confusion matrices as heat maps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifier.report.figures.drawing import Drawn, Sheet, heat_map, panel
from unifier.report.numbers.conditions import Condition, foremost
from unifier.study.files import read_json

NUMBERED = 20
"""Of more classes than that cells are drawn without their numbers."""
MOST = 60
"""Of more classes than that there is no such figure."""
UNEVEN = 1.5
"""Where the commonest class is so many times its even share, what it alone would score is said."""


def draw_confusions(conditions: Sequence[Condition], sheet: Sheet) -> list[Drawn]:
    """One heat map for each arm of one label an example: its foremost condition that tells, all runs together."""
    drawn: list[Drawn] = []
    for arm in dict.fromkeys(one.arm for one in conditions):
        own = foremost([one for one in conditions if one.arm == arm])
        told = next(((one, *found) for one in own if (found := _counted(one))), None)
        if told is not None and len(told[1]) <= MOST:
            drawn.append(_heat(*told, sheet))
    return drawn


def _counted(condition: Condition) -> tuple[list[str], NDArray[np.int64]] | None:
    """Labels, and the counts of all runs that tell (true, said); None where none does."""
    files = [row["folder"] / "confusions.json" for row in condition.rows if row["folder"]]
    runs: list[dict[str, Any]] = [kept for one in files if one.exists() and (kept := read_json(one).get(condition.arm))]
    if not runs:
        return None
    labels = runs[0]["labels"]
    return labels, np.sum([kept["counts"] for kept in runs if kept["labels"] == labels], axis=0)


def _heat(condition: Condition, labels: list[str], counts: NDArray[np.int64], sheet: Sheet) -> Drawn:
    numbered = len(labels) <= NUMBERED
    side, longest = (0.3 if numbered else 0.15) * len(labels), 0.07 * max(map(len, labels))
    figure, axes = panel(max(side + longest + 0.6, 2.4), side + longest + 0.9)
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    said = [[f"{100 * share:.0f}" if numbered and share else "" for share in line] for line in shares]
    heat_map(axes, shares, (0, 1), said, labels, labels, size=8)
    axes.tick_params(labelsize=8 if numbered else 6)
    axes.tick_params("x", rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set(title=condition.arm, xlabel="predicted", ylabel="true")
    table = [
        {"arm": condition.arm, "condition": condition.label, "true": true, "predicted": said, "count": int(count)}
        for true, line in zip(labels, counts, strict=True)
        for said, count in zip(labels, line, strict=True)
    ]
    note = f"Rows: % of a class's test examples by predicted class; {condition.label}, {counts.sum():,} predictions"
    share = counts.sum(1) / counts.sum()
    if share.max() > UNEVEN / len(labels):
        note += f". Always predicting {labels[share.argmax()]} would score {100 * share.max():.1f} %"
    alt = f"confusion matrix, {condition.arm}"
    return sheet.save(figure, f"confusions-{condition.arm}", "confusions", alt, table, note)
