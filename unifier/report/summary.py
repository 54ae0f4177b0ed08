"""The answer in a few sentences, composed from the numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unifier.report.conditions import Condition, Contrast, contrast, contrasts, maximal_settings, settings_text
from unifier.report.estimates import (
    Estimate,
    count_noun,
    decimals,
    estimate,
    format_number,
    interval,
    join,
    list_names,
    magnitude,
    plain_name,
    plus_minus,
)
from unifier.report.scaling_law import efficiencies
from unifier.report.transfer import RetainedScore, retained_scores


def summarize(found: Sequence[Condition]) -> list[str]:
    """The sentence that answers, and what else the numbers say; where an interval holds 0, that it cannot be told."""
    if not found:
        return ["No run ended with a score, so there is no answer."]
    return [*_joint(found), *_transfer(found)] or [*_shares(found), *_best(found)] or _scores(found)


class JointEffect(NamedTuple):
    """What one trunk for all gains over separate trunks: the mean over tasks, seed by seed."""

    overall: Estimate | None
    """None where their scores have no scale in common, or no seed."""
    tasks: Mapping[str, Estimate]
    apart: Estimate | None
    """What the task that gains most has over the one that gains least, with the interval of a choice among all pairs."""
    unit: str
    settings: str
    """Those under which it was trained, where they differ; and which trunk it is, where there are several."""
    lonely: Sequence[str]
    """Tasks of that trunk that no trunk of their own can be held against, on the same data, settings and seeds."""
    missing: Sequence[int]
    """Seeds, or folds, that are left out, since a run of some task, joint or solo, has no score there."""


def joint_effect(found: Sequence[Condition]) -> list[JointEffect]:
    """Joint minus solo for each trunk that was shared, normalized where every task can be."""
    trunks: dict[tuple[str, str], dict[str, Contrast]] = {}
    for one in contrasts(found):
        if one.condition.has(mode="joint") and one.baseline.has(mode="solo", start=None, trainable="all"):
            trunk = one.condition.rows[0]["experiment"], settings_text(one.condition.varied)
            trunks.setdefault(trunk, {}).setdefault(one.condition.task, one)
    several = len({experiment for experiment, _ in trunks}) > 1
    results: list[JointEffect] = []
    for (experiment, said), pairs in trunks.items():
        shared = [
            one for one in found if one.has(mode="joint", experiment=experiment) and settings_text(one.varied) == said
        ]
        lonely = [task for task in dict.fromkeys(one.task for one in shared) if task not in pairs]
        results.append(_together(list(pairs.values()), list_names(experiment if several else "", said), lonely))
    return results


def _together(pairs: Sequence[Contrast], settings: str, lonely: Sequence[str]) -> JointEffect:
    scaled = all(one.normalized_gain for one in pairs)
    by_task = {one.condition.task: (one.normalized_gains if scaled else None) or one.gains for one in pairs}
    over = pairs[0].condition.unit
    seeds = set[int].intersection(*(set(values) for values in by_task.values()))
    overall = [sum(values[seed] for values in by_task.values()) / len(by_task) for seed in sorted(seeds)]
    common = scaled or len({one.condition.metric for one in pairs}) == 1
    unit = "points of normalized score" if scaled else "points"
    tasks = {task: estimate([values[seed] for seed in seeds or values], over) for task, values in by_task.items()}
    ranked = sorted(tasks, key=lambda task: tasks[task].mean)
    best, worst = by_task[ranked[-1]], by_task[ranked[0]]
    gaps = [best[seed] - worst[seed] for seed in sorted(seeds)] if common else []
    apart = estimate(gaps, over).among(math.comb(len(tasks), 2)) if gaps else None
    every = {run for one in pairs for side in (one.condition, one.baseline) for run, _ in side.runs}
    missing = sorted(every - seeds) if seeds else []
    mean = estimate(overall, over) if overall and common else None
    return JointEffect(mean, tasks, apart, unit, settings, lonely, missing)


def _under(settings: str, said: Sequence[str]) -> list[str]:
    """Sentences, the first of which says under which settings they hold."""
    return [f"With {settings}: {said[0][0].lower()}{said[0][1:]}", *said[1:]] if settings and said else [*said]


def _joint(found: Sequence[Condition]) -> list[str]:
    return [said for one in joint_effect(found) for said in _under(one.settings, [*_shared(one), *_left_out(one)])]


def _left_out(result: JointEffect) -> list[str]:
    said: list[str] = []
    if result.missing:
        over = next(iter(result.tasks.values())).unit
        which = f"{over}{'' if len(result.missing) == 1 else 's'} {join(list(map(str, result.missing)))}"
        said.append(f"Left out: {which}, where not every joint and solo run has a score.")
    if result.lonely:
        lonely = join(result.lonely)
        said.append(f"Left out: {lonely}, without a solo run on the same data under the same settings and seeds.")
    return said


def _shared(result: JointEffect) -> list[str]:
    mean, tasks = result.overall, result.tasks
    each = join([f"{task} {plus_minus(gain, signed=True)}" for task, gain in tasks.items()])
    if mean is None:
        return [f"Joint minus solo: {each}; no mean over tasks, which have no scale or no seed in common."]
    trunk = {1: "A shared trunk", 2: "One trunk for both tasks"}.get(
        len(tasks), f"One trunk for all {len(tasks)} tasks"
    )
    if mean.contains_zero:
        said = [
            f"{trunk} and separate trunks cannot be told apart over {count_noun(mean.size, mean.unit)}: "
            f"the difference is {format_number(mean.mean, decimals(mean), signed=True)} {result.unit} {interval(mean)}."
        ]
    else:
        much, up = magnitude(mean), mean.mean > 0
        claim = ("gains", "over") if up else ("costs", "compared with")
        verb, over = claim if mean.sign else ("scores", "above" if up else "below")
        points = f"{format_number(much.mean, decimals(much))} {result.unit}"
        said = [f"{trunk} {verb} {points} {over} separate trunks {interval(much)}."]
    if result.apart and result.apart.sign:
        worst, *_, best = sorted(tasks, key=lambda task: tasks[task].mean)
        said.append(
            f"By task, {best} fares best ({plus_minus(tasks[best], signed=True)}), "
            f"{worst} worst ({plus_minus(tasks[worst], signed=True)})."
        )
    elif len(tasks) > 1:
        said.append(f"By task: {each}.")
    return said


def _transfer(found: Sequence[Condition]) -> list[str]:
    moved = [one for one in found if not one.has(start=None)]
    groups = {settings_text(varied): [one for one in found if one.under(varied)] for varied in maximal_settings(moved)}
    return [said for settings, group in groups.items() for said in _under(settings, _moved(group))]


def _moved(found: Sequence[Condition]) -> list[str]:
    kept = retained_scores(found)
    if not kept:
        return []
    return [*_kept(kept, found), *_dropped(kept)]


def _kept(kept: Sequence[RetainedScore], found: Sequence[Condition]) -> list[str]:
    """What the best pair keeps, with intervals as wide as the choice among all pairs makes them."""
    best, pairs = kept[0], sum(one.share is not None for one in kept)
    if best.share is None:
        return []
    share = best.share.among(pairs)
    whole = "solo's score" if best.tuned.has(start=None) else "the tuned score"
    pair = f"{plain_name(best.start)} to {best.task}"
    said = f"On the best of {pairs} pairs, {pair}," if pairs > 1 else f"From {pair},"
    much = f"{format_number(share.mean, 0)} %" if share.mean > 0 else "nothing"
    said = [f"{said} a frozen trunk keeps {much} of {whole} {_among(share, pairs)}."]
    for control in contrasts(found):
        if control.condition is not best.frozen or control.baseline.has(trainable="all"):
            continue
        name = "its own weights shuffled" if control.baseline.has(shuffled=True) else "a random frozen trunk"
        gain, unit = control.shown.among(pairs), "points of normalized score" if control.normalized_gain else "points"
        if gain.contains_zero:
            said.append(f"On this pair, it is not distinguishable from {name} {_among(gain, pairs)}.")
        else:
            size = magnitude(gain)
            worth = f"{format_number(size.mean, decimals(size))} {unit} {'above' if gain.mean > 0 else 'below'}"
            said.append(f"That is {worth} {name} {_among(size, pairs)}.")
    return said


def _among(found: Estimate, choices: int) -> str:
    """An interval, and that it was widened."""
    said = interval(found)
    return f"{said[:-1]}, Bonferroni-adjusted for {choices} pairs)" if choices > 1 and found.half is not None else said


def _dropped(kept: Sequence[RetainedScore]) -> list[str]:
    """The seeds of which there is no share, by pair."""
    said = [
        f"{plain_name(one.start)} to {one.task}, {one.frozen.unit} {join(list(map(str, one.dropped)))}"
        for one in kept
        if one.dropped
    ]
    return [f"No share is given where the tuned score is not significantly above 0: {'; '.join(said)}."] if said else []


def _shares(found: Sequence[Condition]) -> list[str]:
    said: list[str] = []
    for one in efficiencies(found):
        exponent = f"exponent {format_number(one.law.b, 2)} ± {format_number(one.law.half_of_b, 2)}" if one.law else ""
        if one.law and one.law.describe:
            fewer = 100 * (1 - 2**-one.law.b)
            said.append(
                f"{one.name}: the error above its floor falls by {format_number(fewer, 0)} % "
                f"each time the examples double ({exponent})."
            )
        else:
            first, last = (format_number(error.mean, decimals(error)) for error in (one.errors[0], one.errors[-1]))
            unsure = f"; its power law's {exponent} is not distinguishable from 0" if exponent else ""
            said.append(
                f"{one.name}: from {100 * one.shares[0]:g} % to {100 * one.shares[-1]:g} % of the examples "
                f"the error goes from {first} to {last}{unsure}."
            )
    return said


def _best(found: Sequence[Condition]) -> list[str]:
    """What the condition that is best on validation reaches on the test split, which chooses nothing.

    One with fewer scores than others is not chosen: those that it lacks may have diverged.
    """
    said: list[str] = []
    alike: dict[tuple[str, ...], list[Condition]] = {}
    for one in found:
        if "share" not in one.varied and one.validation > -math.inf:
            alike.setdefault((one.task, *one.examined), []).append(one)
    for (task, *_), several in alike.items():
        most = max(len(one.runs) for one in several)
        ranked = sorted((one for one in several if len(one.runs) == most), key=lambda one: -one.validation)
        if len(ranked) < 2:
            continue
        first, second = ranked[:2]
        above = contrast(first, second)
        reached = (
            f"{format_number(first.score.mean, decimals(first.score))} {plain_name(first.metric)} on the test split"
        )
        chosen = f"For {task}, {first.label} is chosen on validation: {reached}"
        if above is None:
            said.append(f"{chosen}; it shares no {first.unit} with {second.label}.")
        elif above.gain.contains_zero:
            said.append(f"{chosen}, which cannot be told apart from {second.label}, the next {interval(above.gain)}.")
        else:
            much = magnitude(above.gain)
            lead = f"{format_number(much.mean, decimals(much))} {'above' if above.gain.mean > 0 else 'below'}"
            said.append(f"{chosen}, {lead} {second.label}, the next {interval(much)}.")
        if fewer := [one.label for one in several if one not in ranked]:
            said.append(f"Not in that choice: {join(fewer)}, with fewer scores.")
    return said


def _scores(found: Sequence[Condition]) -> list[str]:
    tasks = [one.task for one in found]
    names = [one.task if tasks.count(one.task) == 1 else f"{one.task} ({one.label})" for one in found]
    reached = [
        f"{who} reaches {plus_minus(one.score)} {plain_name(one.metric)}" for who, one in zip(names, found, strict=True)
    ]
    over = [
        f"over {count_noun(score.size, score.unit)}" if score.size > 1 else f"with one {score.unit}"
        for score in (one.score for one in found)
    ]
    if len(set(over)) == 1:
        return [f"{join(reached)}, {over[0]}."]
    return [f"{join([f'{said} {own}' for said, own in zip(reached, over, strict=True)])}."]
