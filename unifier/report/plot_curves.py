"""Learning curves: validation scores over tokens, FLOPs and seconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from unifier.files import read_table
from unifier.report.conditions import Condition, budget, scale_of
from unifier.report.estimates import join, plain
from unifier.report.plot_style import COLOURS, Drawn, End, Sheet, dot, faded, label_ends, panel

AXES = {"tokens": "tokens read", "flops": "FLOPs", "seconds": "seconds of training"}


MOST = 4
"""Lines that one panel holds."""


DASHES = ("-", ":", "-.")
"""Of an arm's lines in turn, but for those of joint trunks, which alone are "--"."""


Logs = Mapping[Path, Sequence[Mapping[str, str]]]
"""The rows of each run's metrics.csv, by the run's folder."""


class Curve(NamedTuple):
    """A figure over its cost: the mean over seeds, and the least and the most of them."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def telling(conditions: Sequence[Condition], most: int) -> list[Condition]:
    """Of an arm's conditions those that others are held against, and the best on validation, `most` in all."""
    best = sorted(conditions, key=lambda one: -one.validation)
    chosen = list(dict.fromkeys([*_standing(conditions), *best]))[:most]
    return [one for one in conditions if one in chosen]


def _standing(conditions: Sequence[Condition]) -> list[Condition]:
    """Of an arm's conditions the first, usually solo, and the joint one."""
    return [*conditions[:1], *(one for one in conditions[1:] if one.has(mode="joint"))]


def chosen_of(drawn: Sequence[Condition], conditions: Sequence[Condition]) -> str:
    """What a figure says that draws some of its arms' conditions alone."""
    if len(drawn) == len(conditions):
        return ""
    arms = dict.fromkeys(one.arm for one in conditions)
    standing = {one for arm in arms for one in _standing([own for own in conditions if own.arm == arm])}
    beside = ["joint" if one.has(mode="joint") else one.label for one in drawn if one in standing]
    said = ["the best on validation"] if any(one not in standing for one in drawn) else []
    said += [join(list(dict.fromkeys(beside)))] if beside else []
    return f"{len(drawn)} of {len(conditions)} conditions drawn, {' beside '.join(said)}"


def looks(conditions: Sequence[Condition], sheet: Sheet) -> dict[Condition, tuple[str, str]]:
    """The colour and the dashes of each of an arm's conditions: the same in every figure.

    The colour is the arm's, the later the fainter; all colours are free to tell conditions where there is one arm.
    """
    joint = [one for one in conditions if one.has(mode="joint")]
    others = [one for one in conditions if not one.has(mode="joint")]
    found: dict[Condition, tuple[str, str]] = {}
    for kin in (joint, others):
        for k, one in enumerate(kin):
            if len(sheet.colours) == 1:
                colour, turn = COLOURS[k % len(COLOURS)], k // len(COLOURS)
            else:
                colour, turn = faded(sheet.colours[one.arm], k / max(len(kin) - 1, 1)), k
            found[one] = colour, "--" if kin is joint else DASHES[turn % len(DASHES)]
    return found


def draw_curves(conditions: Sequence[Condition], sheet: Sheet) -> list[Drawn]:
    """One panel an arm and an axis; where every arm has one condition, they share a panel, and losses have one too."""
    arms = list(dict.fromkeys(one.arm for one in conditions))
    single = len(arms) == len(conditions)
    folders = {row["folder"] for one in conditions for row in one.rows if row["folder"]}
    logs = {folder: read_table(path) for folder in folders if (path := folder / "metrics.csv").exists()}
    drawn = _loss(conditions, logs, sheet) if single else []
    if single and len(arms) > 1:
        return [*drawn, *(one for axis in AXES for one in _panel("", conditions, logs, axis, sheet))]
    for arm in arms:
        for axis in ("tokens",) if single else AXES:
            drawn += _panel(arm, [one for one in conditions if one.arm == arm], logs, axis, sheet)
    return drawn


def _panel(arm: str, conditions: Sequence[Condition], logs: Logs, axis: str, sheet: Sheet) -> list[Drawn]:
    shown = telling(conditions, MOST) if arm else conditions
    scaled = not arm and all(one.normalised_score for one in conditions)
    curves = [(one, found) for one in shown if (found := curve(one, logs, axis, scaled=scaled))]
    if not curves:
        return []
    figure, axes = panel()
    ends: list[End] = []
    styles = looks(conditions, sheet) if arm else {}
    for k, (one, found) in enumerate(curves):
        colour, dashes = styles.get(one, (sheet.colours[one.arm], "-"))
        axes.fill_between(found.x, found.low, found.high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(found.x, found.mean, dashes, marker=dot(found.x), color=colour, zorder=3 - k / 100)
        ends.append(End(found.mean[-1], one.label if arm else one.arm, colour))
    metric = "normalised score" if scaled else plain(conditions[0].metric) if arm else "score"
    axes.set(title=arm or "all arms", xlabel=AXES[axis], ylabel=f"validation {metric}")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}") if axis == "seconds" else EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if len(curves) > 1:
        label_ends(axes, ends)
    table = [
        {"arm": one.arm, "condition": one.label, axis: x, "mean": mean, "least": low, "most": high}
        for one, found in curves
        for x, mean, low, high in zip(*found, strict=True)
    ]
    several = any(len(one.scores) > 1 for one, _ in curves)
    notes = {
        "Each arm in its own metric": not arm and not scaled,
        "Band: minimum to maximum over its runs": several,
        chosen_of([one for one, _ in curves], conditions): len(curves) < len(conditions),
    }
    note = ". ".join(text for text, holds in notes.items() if holds)
    alt = f"validation {metric} over {AXES[axis]}, {arm or 'all arms'}"
    return [sheet.save(figure, f"curves-{arm + '-' if arm else ''}{axis}", "curves", alt, table, note)]


def _loss(conditions: Sequence[Condition], logs: Logs, sheet: Sheet) -> list[Drawn]:
    curves = [(one, curve(one, logs, "tokens", column=f"train/{one.arm}/loss")) for one in conditions]
    lines = {one.arm: found for one, found in curves if found}
    if not lines:
        return []
    figure, axes = panel()
    for arm, found in lines.items():
        axes.plot(found.x, found.mean, marker=dot(found.x), color=sheet.colours[arm], label=arm)
    axes.set(
        title="all arms" if len(conditions) > 1 else conditions[0].arm, xlabel=AXES["tokens"], ylabel="training loss"
    )
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if len(lines) > 1:
        axes.legend(loc="best", labelcolor="linecolor", frameon=False, handlelength=1.4, fontsize=8)
    table = [
        {"arm": arm, "tokens": x, "loss": loss}
        for arm, found in lines.items()
        for x, loss in zip(found.x, found.mean, strict=True)
    ]
    return [sheet.save(figure, "loss", "curves", "training loss over tokens read", table)]


def curve(condition: Condition, logs: Logs, axis: str, *, column: str = "", scaled: bool = False) -> Curve | None:
    """A condition's curve, of its validation metric if no other column of metrics.csv is named; None without any.

    A joint run counts all arms' cost in one; its arm's share of that is taken to grow evenly.
    """
    lines: list[NDArray[np.float64]] = []
    both = f"budget/{axis}", column or f"val/{condition.arm}/{condition.metric}"
    for row in condition.rows:
        logged = [line for line in logs.get(row["folder"], ()) if all(line.get(name) for name in both)]
        if logged:
            points = np.array([[float(line[name]) for line in logged] for name in both])
            whole = row["result"]["budget"].get(axis) or 1
            points[0] *= budget(row)[axis] / whole
            if scaled:
                scale = scale_of(row)
                points[1] = 100 * (points[1] - scale["chance"]) / (scale["reference"] - scale["chance"])
            lines.append(points)
    if not lines:
        return None
    low, high = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
    x = np.unique(np.concatenate([line[0] for line in lines]))
    x = x[(low <= x) & (x <= high)]
    if not len(x):
        return None
    values = np.stack([np.interp(x, *line) for line in lines])
    return Curve(x, values.mean(0), values.min(0), values.max(0))
