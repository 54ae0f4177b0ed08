"""Error over the share of training examples with its power law, and score over the cost of a setting."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from unifier.report.conditions import Condition
from unifier.report.estimates import format_number, plain_name
from unifier.report.plot_style import SOFT, FigureWriter, LineEnd, SavedFigure, dots, label_ends, panel
from unifier.report.scaling_law import efficiencies, sweep_points


def draw_efficiency(conditions: Sequence[Condition], sheet: FigureWriter) -> list[SavedFigure]:
    """Error over share, one panel an task, both logarithmic."""
    drawn: list[SavedFigure] = []
    for one in efficiencies(conditions):
        color = sheet.colors[one.task]
        figure, axes = panel()
        means = np.array([error.mean for error in one.errors])
        halves = np.array([error.half or 0.0 for error in one.errors])
        # An interval that reaches below 0 has no end on a logarithmic axis.
        dots(axes, one.shares, means, color, yerr=[np.minimum(halves, 0.9 * means), halves])
        law = ""
        if one.law:
            x = np.geomspace(min(one.shares), max(one.shares), 60)
            axes.plot(x, one.law.at(x), color=color, alpha=0.6, linewidth=1.4)
            law = f"exponent {format_number(one.law.b, 2)} ± {format_number(one.law.half_of_b, 2)}"
        axes.set(xscale="log", yscale="log", title=one.name, xlabel="share of the training examples")
        axes.set_ylabel("error")
        axes.set_xticks(one.shares, [f"{100 * share:g} %" for share in one.shares])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        table = [
            {"share": share, "error": error.mean, "half interval": "" if error.half is None else error.half}
            | (
                {"law": float(one.law.at(np.array(share))), "b": one.law.b, "half interval of b": one.law.half_of_b}
                if one.law
                else {}
            )
            for share, error in zip(one.shares, one.errors, strict=True)
        ]
        note = f"Error: {one.perfect:g} minus {plain_name(one.unit)}. " + (
            f"Power law a n^-b + c: {law}" if law else "No power law: too few shares, or no fit"
        )
        alt = f"error over share of examples, {one.name}"
        drawn.append(sheet.save(figure, f"efficiency-{one.name}", "efficiency", alt, table, note))
    return drawn


def draw_sweeps(conditions: Sequence[Condition], sheet: FigureWriter) -> list[SavedFigure]:
    """Score over columns an example and over FLOPs, where the settings of a sweep change them."""
    drawn: list[SavedFigure] = []
    for task, points in sweep_points(conditions).items():
        metric = next(one.metric for one in conditions if one.task == task)
        for axis, said in (("columns", "columns an example"), ("flops", "FLOPs of training")):
            x = [getattr(point, axis) for point in points]
            if max(x) < 1.02 * min(x):
                continue
            figure, axes = panel(4.0)
            heights = [point.score.mean for point in points]
            halves = [point.score.half for point in points]
            dots(axes, x, heights, sheet.colors[task], yerr=[half or 0.0 for half in halves])
            axes.set(xscale="log", title=task, xlabel=said, ylabel=f"test {plain_name(metric)}")
            axes.margins(x=0.2)
            # Within a decade a logarithmic axis takes all ticks of a linear one, whose names would run together.
            few = MaxNLocator(3) if max(x) < 10 * min(x) else LogLocator()
            axes.xaxis.set_major_locator(few)
            axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
            axes.xaxis.set_minor_formatter(NullFormatter())
            label_ends(
                axes, [LineEnd(y, point.label, SOFT, at) for point, at, y in zip(points, x, heights, strict=True)]
            )
            table = [
                {"setting": point.label, axis: at, metric: height, "half interval": "" if half is None else half}
                for point, at, height, half in zip(points, x, heights, halves, strict=True)
            ]
            drawn.append(sheet.save(figure, f"sweep-{task}-{axis}", "sweeps", f"{metric} over {said}, {task}", table))
    return drawn
