"""BLEU over the length of the input."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.ticker import MaxNLocator

from unifier.report.figures.curves import chosen_of, looks, telling
from unifier.report.figures.drawing import Drawn, End, Sheet, label_ends, panel
from unifier.report.numbers.conditions import Condition
from unifier.report.numbers.wording import listed
from unifier.study.files import read_json

MOST = 18
"""Lines that one panel holds."""


def draw_lengths(conditions: Sequence[Condition], sheet: Sheet) -> list[Drawn]:
    """One panel for each arm whose runs tell: a line a condition, the mean over seeds."""
    drawn: list[Drawn] = []
    for arm in dict.fromkeys(one.arm for one in conditions):
        own = [one for one in conditions if one.arm == arm]
        lines = [(one, points) for one in telling(own, MOST) if (points := _points(one))]
        if not lines:
            continue
        figure, axes = panel(4.0)
        ends: list[End] = []
        styles = looks(own, sheet)
        for one, points in lines:
            colour, dashes = styles[one]
            x, y = [point["words"] for point in points], [point["bleu"] for point in points]
            axes.plot(x, y, dashes, marker="o", markersize=3, color=colour)
            ends.append(End(y[-1], one.label, colour))
        axes.set(title=arm, xlabel="words of the input", ylabel="test BLEU")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        label_ends(axes, ends)
        table = [{"arm": arm, "condition": one.label, **point} for one, points in lines for point in points]
        chosen = chosen_of([one for one, _ in lines], own)
        note = listed("Each point is a group of like length", chosen, between=". ")
        alt = f"BLEU over the length of the input, {arm}"
        drawn.append(sheet.save(figure, f"lengths-{arm}", "lengths", alt, table, note))
    return drawn


def _points(condition: Condition) -> list[dict[str, float]]:
    """Each group of the test split, with the mean of its scores over seeds."""
    files = [row["folder"] / "lengths.json" for row in condition.rows if row["folder"]]
    runs = [kept for file in files if file.exists() and (kept := read_json(file).get(condition.arm))]
    runs = [kept for kept in runs if [one["to"] for one in kept] == [one["to"] for one in runs[0]]]  # not other folds'
    return [{**place[0], "bleu": fmean(one["bleu"] for one in place)} for place in zip(*runs, strict=False)]
