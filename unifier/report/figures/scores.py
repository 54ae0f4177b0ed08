"""Scores with their intervals, and joint minus solo."""

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes

from unifier.report.figures.curves import chosen_of, telling
from unifier.report.figures.drawing import INK, SOFT, Drawn, Sheet, dots, panel
from unifier.report.numbers.answer import Together, together
from unifier.report.numbers.conditions import Condition
from unifier.report.numbers.intervals import Estimate
from unifier.report.numbers.matching import matching_of
from unifier.report.numbers.wording import listed, plain, plus_minus

MOST = 18
"""Conditions of an arm that are drawn: those of a ladder, or a transfer with all its controls."""


def draw_scores(conditions: Sequence[Condition], sheet: Sheet) -> list[Drawn]:
    """Every arm's conditions, normalised where all can be; the raw score stands beside each."""
    if len(conditions) < 2:
        return []
    scaled = all(one.normalised_score for one in conditions)
    arms = list(dict.fromkeys(one.arm for one in conditions))
    groups = [telling([one for one in conditions if one.arm == arm], MOST) for arm in arms]
    lines = sum(len(group) for group in groups) + (len(arms) if max(map(len, groups)) > 1 else 0)
    names = [one.label for group in groups if len(group) > 1 for one in group]
    figure, axes = panel(3.6 + 0.07 * max(map(len, [*arms, *names])), 0.9 + 0.24 * lines)
    height, ticks = 0.0, list[tuple[float, str, str]]()
    for arm, group in zip(arms, groups, strict=True):
        if len(group) > 1:
            ticks.append((height, arm, sheet.colours[arm]))
            height -= 1
        for one in group:
            shown = one.shown if scaled else one.score
            said = f"{plus_minus(one.score)} {plain(one.metric)}"
            _line(axes, shown, height, sheet.colours[arm], said)
            ticks.append((height, one.label if len(group) > 1 else arm, INK))
            height -= 1
    axes.set(xlabel="normalised score (0 chance, 100 reference)" if scaled else "score, each in its own metric")
    axes.set_yticks([tick for tick, _, _ in ticks], [text for _, text, _ in ticks])
    for text, (_, _, colour) in zip(axes.get_yticklabels(), ticks, strict=True):
        text.set_color(colour)
        text.set_fontweight("normal" if colour == INK else "bold")  # an arm's name above its conditions
    axes.set_ylim(height + 0.4, 0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if scaled and axes.get_xlim()[1] > 100:
        axes.axvline(100, color=SOFT, linewidth=1, linestyle=":")
    table = [
        {"arm": one.arm, "condition": one.label, "metric": one.metric, **_cells(one.score, "raw")}
        | (_cells(one.normalised_score, "normalised") if one.normalised_score else {})
        for one in conditions
    ]
    several = any(one.score.half is not None for one in conditions)
    over = " or ".join(dict.fromkeys(one.unit for one in conditions))
    bar = f"Bar: 95 % interval over {over}s" if several else f"No interval over {over}s"
    shown = [one for group in groups for one in group]
    note = listed(bar, chosen_of(shown, conditions), _matching(conditions), between=". ")
    many = "every condition" if len(shown) == len(conditions) else f"{len(shown)} of {len(conditions)} conditions"
    alt = f"{'normalised' if scaled else 'raw'} scores of {many} with their intervals"
    return [sheet.save(figure, "scores", "scores", alt, table, note)]


def _matching(conditions: Sequence[Condition]) -> str:
    """`matching_of` as one line: said once if it is the same for all arms, else per arm."""
    said = matching_of(conditions)
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return ". ".join(f"{arm}: {text[0].lower()}{text[1:]}" for arm, text in said.items())


def draw_joint(conditions: Sequence[Condition], sheet: Sheet) -> list[Drawn]:
    """What one trunk for all gains each arm over a trunk of its own."""
    held = [one for one in conditions if one.has(start=None, tuned="all")]
    return [_joint(found, _matching(held), sheet) for found in together(conditions)]


def _joint(found: Together, matched: str, sheet: Sheet) -> Drawn:
    title = listed("joint minus solo", found.settings)
    lines = {**found.arms, **({"mean": found.overall} if found.overall else {})}
    heading = ["joint minus solo", *textwrap.wrap(found.settings, 36)]
    figure, axes = panel(2.6 + 0.07 * max(map(len, lines)), 0.95 + 0.17 * len(heading) + 0.3 * len(lines))
    for k, (arm, gain) in enumerate(lines.items()):
        _line(axes, gain, -k, sheet.colours.get(arm, INK), plus_minus(gain, signed=True))
    axes.axvline(0, color=SOFT, linewidth=1)
    axes.set_yticks([-k for k in range(len(lines))], list(lines))
    axes.set_ylim(0.6 - len(lines), 0.6)
    axes.set(
        title="\n".join(heading),
        xlabel=found.unit if found.overall else f"{found.unit}, each arm in its own metric",
    )
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    table = [{"arm": arm, **_cells(gain, "joint minus solo")} for arm, gain in lines.items()]
    over = next(iter(lines.values())).unit
    several = any(gain.half is not None for gain in lines.values())
    bar = f"Bar: 95 % interval, paired by {over}" if several else f"No interval over {over}s"
    note = listed(bar, matched, between=". ")
    return sheet.save(figure, title, "answer", f"{title}, arm by arm", table, note)


def _line(axes: Axes, shown: Estimate, height: float, colour: str, said: str) -> None:
    """A dot with its interval, and at the right what is said of it."""
    dots(axes, shown.mean, height, colour, xerr=shown.half)
    axes.annotate(said, (1.03, height), xycoords=("axes fraction", "data"), va="center", color=SOFT, fontsize=8)


def _cells(found: Estimate, name: str) -> dict[str, float | int | str]:
    ends = {"low": "" if found.low is None else found.low, "high": "" if found.high is None else found.high}
    return {name: found.mean, f"{name} low": ends["low"], f"{name} high": ends["high"], f"{found.unit}s": found.size}
