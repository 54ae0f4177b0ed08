"""The answer of a report in a few sentences that are composed from the numbers.

Each sentence with a difference gives the uncertainty that its interval is about: over seeds, folds or test examples.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from unifier.report.conditions import (
    Condition,
    Contrast,
    ResultRow,
    contrast,
    contrasts,
    group_conditions,
    maximal_settings,
    settings_text,
)
from unifier.report.estimates import (
    Estimate,
    count_noun,
    display_name,
    estimate,
    format_bound,
    format_interval,
    format_number,
    format_p_value,
    join_nonempty,
    join_words,
    magnitude,
    num_decimals,
    plus_minus,
)
from unifier.report.example_tests import compare_examples
from unifier.report.read_results import Results
from unifier.report.scaling_law import efficiencies
from unifier.report.transfer import RetainedScore, retained_scores

NORMALIZED_POINTS = "points of normalized score"

MAX_NAMED_RUNS = 3
"""The most runs that a sentence lists by name."""


class JointEffect(NamedTuple):
    """Gain of one shared trunk over separate trunks, paired by seed or fold."""

    mean_gain: Estimate | None
    """The mean over tasks; None if the tasks have no common scale or no common seed."""
    task_gains: Mapping[str, Estimate]
    best_minus_worst: Estimate | None
    """The gain of the best task minus that of the worst, Bonferroni-adjusted for the choice of two tasks."""
    unit: str
    settings: str
    """The varied settings, and the experiment if there are several shared trunks."""
    tasks_without_solo: Sequence[str]
    """Tasks of the shared trunk without a solo run on the same data, settings and seeds."""
    missing_units: Sequence[int]
    """Seeds or folds that are left out because a joint or solo run of a task has no score."""
    pairs: Mapping[str, Contrast]
    """Joint minus solo of each task."""
    units: Collection[int]
    """The seeds or folds that all tasks have; it may be empty."""


def summarize(conditions: Sequence[Condition]) -> list[str]:
    """Return the sentences that answer a report's question; the first one is the main result."""
    if not conditions:
        return ["No run ended with a score, so there is no answer."]
    return (
        [*_describe_joint(conditions), *_describe_transfer(conditions)]
        or [*_describe_shares(conditions), *_describe_best(conditions)]
        or _describe_scores(conditions)
    )


def summarize_results(results: Results) -> list[str]:
    """Return the answer of a report: what its showcase reaches, the answer to its question, and what stays open."""
    conditions = group_conditions(results.rows)
    sentences = summarize(conditions)
    if not results.showcase:
        return sentences
    if conditions:
        sentences[0] = f"With {_tokens_per_task(results.rows)} tokens per task: {sentences[0]}"
    return [
        _describe_showcase(results.showcase),
        *sentences,
        "It stays open whether these differences hold for larger budgets, larger trunks and other data.",
    ]


def _describe_showcase(rows: Sequence[ResultRow]) -> str:
    conditions = group_conditions(rows)
    scores = [
        f"{format_number(condition.score.mean, 1)} {display_name(condition.metric)} on {condition.task}"
        for condition in conditions
    ]
    network = "One network" if len(conditions) == 1 else f"One network for {len(conditions)} tasks"
    return f"{network} reaches {join_words(scores)} (test split, {_tokens_per_task(rows)} tokens per task)."


def _tokens_per_task(rows: Sequence[ResultRow]) -> str:
    """Return the mean number of training tokens of a task, rounded to thousands."""
    tokens = [row["result"]["task_budgets"][row["task"]]["tokens"] for row in rows]
    return f"{round(sum(tokens) / len(tokens), -3):,.0f}"


def joint_effect(conditions: Sequence[Condition]) -> list[JointEffect]:
    """Return joint minus solo for each shared trunk, in normalized scores if every task has a reference."""
    trunks: dict[tuple[str, str], dict[str, Contrast]] = {}
    for pair in contrasts(conditions):
        condition = pair.condition
        if condition.has(mode="joint") and pair.baseline.has(mode="solo", start=None, trainable="all"):
            trunk = condition.rows[0]["experiment"], settings_text(condition.varied)
            trunks.setdefault(trunk, {}).setdefault(condition.task, pair)
    several = len({experiment for experiment, _ in trunks}) > 1
    effects: list[JointEffect] = []
    for (experiment, settings), pairs in trunks.items():
        shared = [
            condition
            for condition in conditions
            if condition.has(mode="joint", experiment=experiment) and settings_text(condition.varied) == settings
        ]
        tasks_without_solo = [
            task for task in dict.fromkeys(condition.task for condition in shared) if task not in pairs
        ]
        name = join_nonempty(experiment if several else "", settings)
        effects.append(_joint_effect_of(pairs, name, tasks_without_solo))
    return effects


def _joint_effect_of(pairs: Mapping[str, Contrast], settings: str, tasks_without_solo: Sequence[str]) -> JointEffect:
    every = list(pairs.values())
    normalized = all(pair.normalized_gain for pair in every)
    gains = {task: (pair.normalized_gains if normalized else None) or pair.gains for task, pair in pairs.items()}
    noun = every[0].condition.unit
    units = sorted(set[int].intersection(*(set(values) for values in gains.values())))
    means = [sum(values[unit] for values in gains.values()) / len(gains) for unit in units]
    has_common_scale = normalized or len({pair.condition.metric for pair in every}) == 1
    task_gains = {task: estimate([values[unit] for unit in units or values], noun) for task, values in gains.items()}
    ranked = sorted(task_gains, key=lambda task: task_gains[task].mean)
    best, worst = gains[ranked[-1]], gains[ranked[0]]
    gaps = [best[unit] - worst[unit] for unit in units] if has_common_scale else []
    any_run = {unit for pair in every for side in (pair.condition, pair.baseline) for unit, _ in side.run_scores}
    return JointEffect(
        mean_gain=estimate(means, noun) if means and has_common_scale else None,
        task_gains=task_gains,
        best_minus_worst=estimate(gaps, noun).bonferroni(math.comb(len(gains), 2)) if gaps else None,
        unit=NORMALIZED_POINTS if normalized else "points",
        settings=settings,
        tasks_without_solo=tasks_without_solo,
        missing_units=sorted(any_run.difference(units)) if units else [],
        pairs=pairs,
        units=units,
    )


def _with_settings(settings: str, sentences: Sequence[str]) -> list[str]:
    """Return the sentences, with the settings that they hold for in front of the first."""
    if not settings or not sentences:
        return [*sentences]
    return [f"With {settings}: {sentences[0][0].lower()}{sentences[0][1:]}", *sentences[1:]]


def _describe_joint(conditions: Sequence[Condition]) -> list[str]:
    sentences: list[str] = []
    for effect in joint_effect(conditions):
        units = effect.units or None
        examples = _describe_examples([(pair, units, 1) for pair in effect.pairs.values()])
        parts = [*_mean_effect(effect), *_task_effects(effect), *examples, *_left_out(effect)]
        sentences += _with_settings(effect.settings, parts)
    return sentences


def _mean_effect(effect: JointEffect) -> list[str]:
    """Return the sentence on the mean over tasks, and that on the best and the worst task if they differ."""
    mean, count = effect.mean_gain, len(effect.task_gains)
    if mean is None:
        return ["Joint minus solo has no mean over tasks, which have no scale or no seed in common."]
    trunk = {1: "A shared trunk", 2: "One trunk for both tasks"}.get(count, f"One trunk for all {count} tasks")
    size = magnitude(mean)
    points = f"{format_number(size.mean, num_decimals(size))} {effect.unit}"
    if mean.sign:
        verb = f"gains {points} over" if mean.mean > 0 else f"costs {points} compared with"
        sentence = f"{trunk} {verb} separate trunks {format_interval(size)}."
    elif mean.half_width is not None:
        sentence = (
            f"{trunk} and separate trunks differ by at most {format_bound(mean)} {effect.unit}: the difference is "
            f"{format_number(mean.mean, num_decimals(mean), signed=True)} {format_interval(mean)}."
        )
    elif mean.mean:
        direction = "above" if mean.mean > 0 else "below"
        sentence = f"{trunk} scores {points} {direction} separate trunks {format_interval(size)}."
    else:
        sentence = f"{trunk} and separate trunks have equal scores {format_interval(mean)}."
    if not (effect.best_minus_worst and effect.best_minus_worst.sign):
        return [sentence]
    worst, *_, best = sorted(effect.task_gains, key=lambda task: effect.task_gains[task].mean)
    return [sentence, f"By task, {best} fares best and {worst} worst."]


def _task_effects(effect: JointEffect) -> Iterator[str]:
    """Yield one sentence per task: it gains, it loses, or its difference is below a bound."""
    if len(effect.task_gains) == 1 and effect.mean_gain:
        return  # The sentence on the mean is about this task.
    for task, gain in effect.task_gains.items():
        metric = display_name(effect.pairs[task].condition.metric)
        unit = effect.unit if effect.unit == NORMALIZED_POINTS else metric
        size = magnitude(gain)
        points = f"{format_number(size.mean, num_decimals(size))} {unit}"
        if gain.sign:
            yield f"{task} {'gains' if gain.sign > 0 else 'loses'} {points} {format_interval(size)}."
        elif gain.half_width is not None:
            yield f"{task} changes by at most {format_bound(gain)} {unit} {format_interval(gain)}."
        elif gain.mean:
            yield f"{task} scores {points} {'above' if gain.mean > 0 else 'below'} solo {format_interval(size)}."
        else:
            yield f"{task} scores as solo does {format_interval(gain)}."


def _left_out(effect: JointEffect) -> list[str]:
    sentences: list[str] = []
    if effect.missing_units:
        noun = next(iter(effect.task_gains.values())).unit
        units = join_words([str(unit) for unit in effect.missing_units])
        plural = "" if len(effect.missing_units) == 1 else "s"
        sentences.append(f"Left out: {noun}{plural} {units}, because not every joint and solo run has a score.")
    if effect.tasks_without_solo:
        tasks = join_words(effect.tasks_without_solo)
        sentences.append(f"Left out: {tasks}, without a solo run on the same data under the same settings and seeds.")
    return sentences


def _describe_examples(pairs: Iterable[tuple[Contrast, Collection[int] | None, int]]) -> list[str]:
    """Return one sentence per contrast on its uncertainty over test examples, and one on the runs left out.

    Args:
        pairs: Contrasts. Each has its seeds or folds (None for all), and the number of contrasts it was chosen from.
    """
    sentences: list[str] = []
    run_ids: dict[str, dict[str, None]] = {}
    for pair, units, choices in pairs:
        comparison = compare_examples(pair, units)
        for run_id, reason in comparison.problems.items():
            run_ids.setdefault(reason, {})[run_id] = None
        if (test := comparison.test) is None:
            continue
        condition, span = pair.condition, pair.condition.score_span
        normalized = pair.normalized_gain is not None and span is not None
        difference = test.difference.bonferroni(choices).scaled(100 / span if normalized and span else 1)
        unit = NORMALIZED_POINTS if normalized else display_name(condition.metric)
        size = format_number(difference.mean, num_decimals(difference), signed=True)
        notes = (
            f"mean of {test.num_runs} runs" if test.num_runs > 1 else "",
            format_p_value(min(1.0, test.p_value * choices)),
            _bonferroni_note(choices),
        )
        names = f"{condition.task}, {condition.label} minus {pair.baseline.label}"
        sentences.append(f"{names}, over test examples: {size} {unit} {format_interval(difference, *notes)}.")
    for reason, names in run_ids.items():
        listed = [*names][:MAX_NAMED_RUNS]
        more = [count_noun(len(names) - len(listed), "other run")] if len(names) > len(listed) else []
        sentences.append(f"Not tested over test examples: {join_words([*listed, *more])} ({reason}).")
    return sentences


def _bonferroni_note(choices: int) -> str:
    return f"Bonferroni-adjusted for {choices} pairs" if choices > 1 else ""


def _describe_transfer(conditions: Sequence[Condition]) -> list[str]:
    moved = [condition for condition in conditions if not condition.has(start=None)]
    sentences: list[str] = []
    for varied in maximal_settings(moved):
        group = [condition for condition in conditions if condition.matches_settings(varied)]
        if retained := retained_scores(group):
            parts = [*_best_retained(retained, group), *_dropped_shares(retained)]
            sentences += _with_settings(settings_text(varied), parts)
    return sentences


def _best_retained(retained: Sequence[RetainedScore], conditions: Sequence[Condition]) -> list[str]:
    """Return sentences on the share that the best pair retains, with intervals adjusted for choosing that pair."""
    best, choices = retained[0], sum(score.share is not None for score in retained)
    if best.share is None:
        return []
    share = best.share.bonferroni(choices)
    total = "solo's score" if best.reference.has(start=None) else "the tuned score"
    pair = f"{display_name(best.start)} to {best.task}"
    lead = f"On the best of {choices} pairs, {pair}," if choices > 1 else f"From {pair},"
    amount = f"{format_number(share.mean, 0)} %" if share.mean > 0 else "nothing"
    sentences = [f"{lead} a frozen trunk keeps {amount} of {total} {_adjusted_interval(share, choices)}."]
    controls = [
        control
        for control in contrasts(conditions)
        if control.condition is best.frozen and not control.baseline.has(trainable="all")
    ]
    for control in controls:
        name = "its own weights shuffled" if control.baseline.has(shuffled=True) else "a random frozen trunk"
        gain, unit = control.display_gain.bonferroni(choices), "points"
        if control.normalized_gain:
            unit = NORMALIZED_POINTS
        if gain.contains_zero:
            interval = _adjusted_interval(gain, choices)
            sentences.append(f"On this pair, it is not distinguishable from {name} {interval}.")
        else:
            size = magnitude(gain)
            direction = "above" if gain.mean > 0 else "below"
            points = f"{format_number(size.mean, num_decimals(size))} {unit} {direction}"
            sentences.append(f"That is {points} {name} {_adjusted_interval(size, choices)}.")
    return [*sentences, *_describe_examples([(control, None, choices) for control in controls])]


def _adjusted_interval(estimate: Estimate, choices: int) -> str:
    """Format an interval with a note on its adjustment, if there is an interval."""
    return format_interval(estimate, _bonferroni_note(choices) if estimate.half_width is not None else "")


def _dropped_shares(retained: Sequence[RetainedScore]) -> list[str]:
    """Return the sentence that names the seeds without a share, by pair."""
    dropped = [
        f"{display_name(score.start)} to {score.task}, {score.frozen.unit} {join_words(list(map(str, score.dropped)))}"
        for score in retained
        if score.dropped
    ]
    if not dropped:
        return []
    return [f"No share is given where the tuned score is not significantly above 0: {'; '.join(dropped)}."]


def _describe_shares(conditions: Sequence[Condition]) -> list[str]:
    sentences: list[str] = []
    for curve in efficiencies(conditions):
        law, exponent = curve.law, ""
        if law:
            exponent = f"exponent {format_number(law.b, 2)} ± {format_number(law.b_half_width, 2)}"
        if law and law.is_significant:
            reduction = 100 * (1 - 2**-law.b)
            sentences.append(
                f"{curve.name}: the error above its floor falls by {format_number(reduction, 0)} % "
                f"each time the examples double ({exponent})."
            )
        else:
            ends = (curve.errors[0], curve.errors[-1])
            first, last = (format_number(error.mean, num_decimals(error)) for error in ends)
            caveat = f"; its power law's {exponent} is not distinguishable from 0" if exponent else ""
            sentences.append(
                f"{curve.name}: from {100 * curve.shares[0]:g} % to {100 * curve.shares[-1]:g} % of the examples "
                f"the error goes from {first} to {last}{caveat}."
            )
    return sentences


def _describe_best(conditions: Sequence[Condition]) -> list[str]:
    """Return sentences on the test score of the condition with the best validation score, for each task.

    A condition with fewer scores than others is not chosen, because its missing runs may have diverged.
    """
    sentences: list[str] = []
    groups: dict[tuple[str, ...], list[Condition]] = {}
    for condition in conditions:
        if "share" not in condition.varied and condition.validation_score > -math.inf:
            groups.setdefault((condition.task, *condition.test_setup), []).append(condition)
    for (task, *_), group in groups.items():
        most = max(len(rival.run_scores) for rival in group)
        ranked = sorted(
            (rival for rival in group if len(rival.run_scores) == most), key=lambda rival: -rival.validation_score
        )
        if len(ranked) < 2:
            continue
        first, second = ranked[:2]
        score = f"{format_number(first.score.mean, num_decimals(first.score))} {display_name(first.metric)}"
        choice = f"For {task}, {first.label} is chosen on validation: {score} on the test split"
        pair = contrast(first, second)
        if pair is None:
            sentences.append(f"{choice}; it shares no {first.unit} with {second.label}.")
        elif pair.gain.contains_zero:
            interval = format_interval(pair.gain)
            sentences.append(f"{choice}, which cannot be told apart from {second.label}, the next {interval}.")
        else:
            size = magnitude(pair.gain)
            lead = f"{format_number(size.mean, num_decimals(size))} {'above' if pair.gain.mean > 0 else 'below'}"
            sentences.append(f"{choice}, {lead} {second.label}, the next {format_interval(size)}.")
        if pair:
            sentences += _describe_examples([(pair, None, 1)])
        if fewer := [rival.label for rival in group if rival not in ranked]:
            sentences.append(f"Not in that choice: {join_words(fewer)}, with fewer scores.")
    return sentences


def _describe_scores(conditions: Sequence[Condition]) -> list[str]:
    tasks = [condition.task for condition in conditions]
    names = [
        condition.task if tasks.count(condition.task) == 1 else f"{condition.task} ({condition.label})"
        for condition in conditions
    ]
    scores = [
        f"{name} reaches {plus_minus(condition.score)} {display_name(condition.metric)}"
        for name, condition in zip(names, conditions, strict=True)
    ]
    over = [
        f"over {count_noun(score.num_values, score.unit)}" if score.num_values > 1 else f"with one {score.unit}"
        for score in (condition.score for condition in conditions)
    ]
    if len(set(over)) == 1:
        return [f"{join_words(scores)}, {over[0]}."]
    return [f"{join_words([f'{score} {unit}' for score, unit in zip(scores, over, strict=True)])}."]
