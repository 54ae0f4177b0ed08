"""The answer in a few sentences, composed from the numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unifier.report.conditions import Condition, Contrast, contrast, contrasts, fullest, settings_of
from unifier.report.estimates import (
    Estimate,
    count,
    decimals,
    estimate,
    interval,
    join,
    listed,
    magnitude,
    number,
    plain,
    plus_minus,
)
from unifier.report.scaling_law import efficiencies
from unifier.report.transfer import Kept, shares_kept


def answer(found: Sequence[Condition]) -> list[str]:
    """The sentence that answers, and what else the numbers say; where an interval holds 0, that it cannot be told."""
    if not found:
        return ["No run ended with a score, so there is no answer."]
    return [*_joint(found), *_transfer(found)] or [*_shares(found), *_best(found)] or _scores(found)


class Together(NamedTuple):
    """What one trunk for all gains over separate trunks: the mean over arms, seed by seed."""

    overall: Estimate | None
    """None where their scores have no scale in common, or no seed."""
    arms: Mapping[str, Estimate]
    apart: Estimate | None
    """What the arm that gains most has over the one that gains least, with the interval of a choice among all pairs."""
    unit: str
    settings: str
    """Those under which it was trained, where they differ; and which trunk it is, where there are several."""
    lonely: Sequence[str]
    """Arms of that trunk that no trunk of their own can be held against, on the same data, settings and seeds."""
    missing: Sequence[int]
    """Seeds, or folds, that are left out, since a run of some arm, joint or solo, has no score there."""


def together(found: Sequence[Condition]) -> list[Together]:
    """Joint minus solo for each trunk that was shared, normalised where every arm can be."""
    trunks: dict[tuple[str, str], dict[str, Contrast]] = {}
    for one in contrasts(found):
        if one.condition.has(mode="joint") and one.baseline.has(mode="solo", start=None, tuned="all"):
            trunk = one.condition.rows[0]["experiment"], settings_of(one.condition.varied)
            trunks.setdefault(trunk, {}).setdefault(one.condition.arm, one)
    several = len({experiment for experiment, _ in trunks}) > 1
    results: list[Together] = []
    for (experiment, said), pairs in trunks.items():
        shared = [
            one for one in found if one.has(mode="joint", experiment=experiment) and settings_of(one.varied) == said
        ]
        lonely = [arm for arm in dict.fromkeys(one.arm for one in shared) if arm not in pairs]
        results.append(_together(list(pairs.values()), listed(experiment if several else "", said), lonely))
    return results


def _together(pairs: Sequence[Contrast], settings: str, lonely: Sequence[str]) -> Together:
    scaled = all(one.normalised_gain for one in pairs)
    by_arm = {one.condition.arm: (one.normalised_gains if scaled else None) or one.gains for one in pairs}
    over = pairs[0].condition.unit
    seeds = set[int].intersection(*(set(values) for values in by_arm.values()))
    overall = [sum(values[seed] for values in by_arm.values()) / len(by_arm) for seed in sorted(seeds)]
    common = scaled or len({one.condition.metric for one in pairs}) == 1
    unit = "points of normalised score" if scaled else "points"
    arms = {arm: estimate([values[seed] for seed in seeds or values], over) for arm, values in by_arm.items()}
    ranked = sorted(arms, key=lambda arm: arms[arm].mean)
    best, worst = by_arm[ranked[-1]], by_arm[ranked[0]]
    gaps = [best[seed] - worst[seed] for seed in sorted(seeds)] if common else []
    apart = estimate(gaps, over).among(math.comb(len(arms), 2)) if gaps else None
    every = {run for one in pairs for side in (one.condition, one.baseline) for run, _ in side.runs}
    missing = sorted(every - seeds) if seeds else []
    mean = estimate(overall, over) if overall and common else None
    return Together(mean, arms, apart, unit, settings, lonely, missing)


def _under(settings: str, said: Sequence[str]) -> list[str]:
    """Sentences, the first of which says under which settings they hold."""
    return [f"With {settings}: {said[0][0].lower()}{said[0][1:]}", *said[1:]] if settings and said else [*said]


def _joint(found: Sequence[Condition]) -> list[str]:
    return [said for one in together(found) for said in _under(one.settings, [*_shared(one), *_left_out(one)])]


def _left_out(result: Together) -> list[str]:
    said: list[str] = []
    if result.missing:
        over = next(iter(result.arms.values())).unit
        which = f"{over}{'' if len(result.missing) == 1 else 's'} {join(list(map(str, result.missing)))}"
        said.append(f"Left out: {which}, where not every joint and solo run has a score.")
    if result.lonely:
        lonely = join(result.lonely)
        said.append(f"Left out: {lonely}, without a solo run on the same data under the same settings and seeds.")
    return said


def _shared(result: Together) -> list[str]:
    mean, arms = result.overall, result.arms
    each = join([f"{arm} {plus_minus(gain, signed=True)}" for arm, gain in arms.items()])
    if mean is None:
        return [f"Joint minus solo: {each}; no mean over arms, which have no scale or no seed in common."]
    trunk = {1: "A shared trunk", 2: "One trunk for both arms"}.get(len(arms), f"One trunk for all {len(arms)} arms")
    if mean.holds_zero:
        said = [
            f"{trunk} and separate trunks cannot be told apart over {count(mean.size, mean.unit)}: "
            f"the difference is {number(mean.mean, decimals(mean), signed=True)} {result.unit} {interval(mean)}."
        ]
    else:
        much, up = magnitude(mean), mean.mean > 0
        claim = ("gains", "over") if up else ("costs", "compared with")
        verb, over = claim if mean.sign else ("scores", "above" if up else "below")
        points = f"{number(much.mean, decimals(much))} {result.unit}"
        said = [f"{trunk} {verb} {points} {over} separate trunks {interval(much)}."]
    if result.apart and result.apart.sign:
        worst, *_, best = sorted(arms, key=lambda arm: arms[arm].mean)
        said.append(
            f"By arm, {best} fares best ({plus_minus(arms[best], signed=True)}), "
            f"{worst} worst ({plus_minus(arms[worst], signed=True)})."
        )
    elif len(arms) > 1:
        said.append(f"By arm: {each}.")
    return said


def _transfer(found: Sequence[Condition]) -> list[str]:
    moved = [one for one in found if not one.has(start=None)]
    groups = {settings_of(varied): [one for one in found if one.under(varied)] for varied in fullest(moved)}
    return [said for settings, group in groups.items() for said in _under(settings, _moved(group))]


def _moved(found: Sequence[Condition]) -> list[str]:
    kept = shares_kept(found)
    if not kept:
        return []
    return [*_kept(kept, found), *_dropped(kept)]


def _kept(kept: Sequence[Kept], found: Sequence[Condition]) -> list[str]:
    """What the best pair keeps, with intervals as wide as the choice among all pairs makes them."""
    best, pairs = kept[0], sum(one.share is not None for one in kept)
    if best.share is None:
        return []
    share = best.share.among(pairs)
    whole = "solo's score" if best.tuned.has(start=None) else "the tuned score"
    pair = f"{plain(best.start)} to {best.arm}"
    said = f"On the best of {pairs} pairs, {pair}," if pairs > 1 else f"From {pair},"
    much = f"{number(share.mean, 0)} %" if share.mean > 0 else "nothing"
    said = [f"{said} a frozen trunk keeps {much} of {whole} {_among(share, pairs)}."]
    for control in contrasts(found):
        if control.condition is not best.frozen or control.baseline.has(tuned="all"):
            continue
        name = "its own weights shuffled" if control.baseline.has(shuffled=True) else "a random frozen trunk"
        gain, unit = control.shown.among(pairs), "points of normalised score" if control.normalised_gain else "points"
        if gain.holds_zero:
            said.append(f"On this pair, it is not distinguishable from {name} {_among(gain, pairs)}.")
        else:
            size = magnitude(gain)
            worth = f"{number(size.mean, decimals(size))} {unit} {'above' if gain.mean > 0 else 'below'}"
            said.append(f"That is {worth} {name} {_among(size, pairs)}.")
    return said


def _among(found: Estimate, choices: int) -> str:
    """An interval, and that it was widened."""
    said = interval(found)
    return f"{said[:-1]}, Bonferroni-adjusted for {choices} pairs)" if choices > 1 and found.half is not None else said


def _dropped(kept: Sequence[Kept]) -> list[str]:
    """The seeds of which there is no share, by pair."""
    said = [
        f"{plain(one.start)} to {one.arm}, {one.frozen.unit} {join(list(map(str, one.dropped)))}"
        for one in kept
        if one.dropped
    ]
    return [f"No share is given where the tuned score is not significantly above 0: {'; '.join(said)}."] if said else []


def _shares(found: Sequence[Condition]) -> list[str]:
    said: list[str] = []
    for one in efficiencies(found):
        exponent = f"exponent {number(one.law.b, 2)} ± {number(one.law.half_of_b, 2)}" if one.law else ""
        if one.law and one.law.told:
            fewer = 100 * (1 - 2**-one.law.b)
            said.append(
                f"{one.name}: the error above its floor falls by {number(fewer, 0)} % "
                f"each time the examples double ({exponent})."
            )
        else:
            first, last = (number(error.mean, decimals(error)) for error in (one.errors[0], one.errors[-1]))
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
            alike.setdefault((one.arm, *one.examined), []).append(one)
    for (arm, *_), several in alike.items():
        most = max(len(one.runs) for one in several)
        ranked = sorted((one for one in several if len(one.runs) == most), key=lambda one: -one.validation)
        if len(ranked) < 2:
            continue
        first, second = ranked[:2]
        above = contrast(first, second)
        reached = f"{number(first.score.mean, decimals(first.score))} {plain(first.metric)} on the test split"
        chosen = f"For {arm}, {first.label} is chosen on validation: {reached}"
        if above is None:
            said.append(f"{chosen}; it shares no {first.unit} with {second.label}.")
        elif above.gain.holds_zero:
            said.append(f"{chosen}, which cannot be told apart from {second.label}, the next {interval(above.gain)}.")
        else:
            much = magnitude(above.gain)
            lead = f"{number(much.mean, decimals(much))} {'above' if above.gain.mean > 0 else 'below'}"
            said.append(f"{chosen}, {lead} {second.label}, the next {interval(much)}.")
        if fewer := [one.label for one in several if one not in ranked]:
            said.append(f"Not in that choice: {join(fewer)}, with fewer scores.")
    return said


def _scores(found: Sequence[Condition]) -> list[str]:
    arms = [one.arm for one in found]
    names = [one.arm if arms.count(one.arm) == 1 else f"{one.arm} ({one.label})" for one in found]
    reached = [
        f"{who} reaches {plus_minus(one.score)} {plain(one.metric)}" for who, one in zip(names, found, strict=True)
    ]
    over = [
        f"over {count(score.size, score.unit)}" if score.size > 1 else f"with one {score.unit}"
        for score in (one.score for one in found)
    ]
    if len(set(over)) == 1:
        return [f"{join(reached)}, {over[0]}."]
    return [f"{join([f'{said} {own}' for said, own in zip(reached, over, strict=True)])}."]
