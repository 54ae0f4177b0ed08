"""Confusion matrices as heat maps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifier.report.figures.drawing import INK, Drawn, Sheet, panel
from unifier.report.figures.grids import SHADES
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
    axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    if numbered:
        for (true, said), share in np.ndenumerate(shares):
            if counts[true, said]:
                colour = "#ffffff" if share > 0.6 else "#14171a"
                axes.text(said, true, f"{100 * share:.0f}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(labels)), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(length=0, labelcolor=INK, labelsize=8 if numbered else 6)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
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
    says = f"confusion matrix, {condition.arm}"
    return sheet.save(figure, f"confusions-{condition.arm}", "confusions", says, table, note)
