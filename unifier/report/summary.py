"""The answer of a report, in a few sentences composed from the results.

Each sentence on two conditions contains the uncertainty over seeds or folds, and over test examples.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    format_ends,
    format_interval,
    format_number,
    format_p_value,
    join_nonempty,
    join_words,
    magnitude,
    num_decimals,
    plus_minus,
)
from unifier.report.example_tests import CLUSTER_UNIT, UNIT, ExampleTest, compare_examples
from unifier.report.read_results import Results
from unifier.report.scaling_law import efficiencies
from unifier.report.transfer import RetainedScore, retained_scores

NORMALIZED_POINTS = "points of normalized score"

PERCENT_METRICS = ("accuracy", "macro_f1")
"""The metrics that are percentages if their maximum is 100."""

MAX_NAMED_RUNS = 3
"""Maximum number of runs that are listed by name in a problem."""

ExcludedRuns = dict[str, dict[str, None]]
"""A mapping from reason to an ordered set of runs that are excluded from tests over test examples."""


class Answer(NamedTuple):
    """The answer of a report."""

    sentences: list[str]
    """Sentences of the answer, beginning with the main result."""
    problems: list[str]
    """One line for each reason to exclude runs from the tests over test examples."""


class JointEffect(NamedTuple):
    """Gain of one shared trunk over separate trunks, paired by seed or fold."""

    mean_gain: Estimate | None
    """The mean gain over tasks, or None for tasks without a common scale or a common seed. See `lower_is_better`."""
    task_gains: Mapping[str, Estimate]
    """The gain of each task."""
    best_minus_worst: Estimate | None
    """The difference of the best and the worst gain, at least 0, Bonferroni-adjusted for the choice of two tasks."""
    unit: str
    """The unit of the gains."""
    lower_is_better: bool
    """True if the gains are differences of an error, so that a negative gain is better."""
    settings: str
    """The varied settings, and the name of the experiment if there are several shared trunks."""
    tasks_without_solo: Sequence[str]
    """Tasks of the shared trunk without a solo run on the same data, settings and seeds."""
    missing_units: Sequence[int]
    """Seeds or folds that are excluded because a joint run or a solo run has no score."""
    pairs: Mapping[str, Contrast]
    """The contrast between joint and solo of each task."""
    units: Collection[int]
    """The seeds or folds that are common to all tasks, possibly empty."""


class _Wording(NamedTuple):
    """Phrases for the difference of two conditions. Each phrase contains {} for the amount of the difference."""

    better: str
    """The phrase for a significant difference in favor of the first condition."""
    worse: str
    bound: str
    """The phrase for an interval that contains 0, where {} is the largest absolute value in the interval."""
    better_once: str
    """The phrase for a difference without an interval in favor of the first condition."""
    worse_once: str
    equal: str
    """The phrase for equal scores in all runs."""


def summarize(conditions: Sequence[Condition]) -> Answer:
    """Compose the answer of a report from its conditions."""
    if not conditions:
        return Answer(["No run ended with a score, so there is no answer."], [])
    excluded: ExcludedRuns = {}
    sentences = (
        [*_describe_joint(conditions, excluded), *_describe_transfer(conditions, excluded)]
        or [*_describe_shares(conditions), *_describe_best(conditions, excluded)]
        or _describe_scores(conditions)
    )
    return Answer(sentences, _describe_excluded(excluded))


def summarize_results(results: Results) -> Answer:
    """Return the conclusion at the top of a report.

    With a showcase, the conclusion begins with the scores of the showcase, and ends with the limits of the comparison.
    """
    conditions = group_conditions(results.rows)
    answer = summarize(conditions)
    if not results.showcase:
        return answer
    budget = f"The comparison trains with {_tokens_per_task(results.rows)} tokens per task." if conditions else ""
    limits = "It is open whether these differences hold for larger budgets, larger trunks and other data."
    sentences = [_describe_showcase(results.showcase), budget, *answer.sentences, limits]
    return answer._replace(sentences=[sentence for sentence in sentences if sentence])


def _describe_showcase(rows: Sequence[ResultRow]) -> str:
    conditions = group_conditions(rows)
    scores = [
        f"{_with_metric(format_number(condition.score.mean, 1), condition)} on {condition.task}"
        for condition in conditions
    ]
    network = "One network" if len(conditions) == 1 else f"One network for {len(conditions)} tasks"
    return f"{network} reaches {join_words(scores)} (test split, {_tokens_per_task(rows)} tokens per task)."


def _is_percentage(condition: Condition) -> bool:
    return condition.metric in PERCENT_METRICS and condition.max_score == 100


def _with_metric(score: str, condition: Condition) -> str:
    """Return a formatted score with its metric: 91.2 % accuracy, 40.1 BLEU."""
    return f"{score} {'% ' if _is_percentage(condition) else ''}{display_name(condition.metric)}"


def _difference_with_metric(difference: str, condition: Condition) -> str:
    """Return a formatted difference with its metric: 1.2 points of accuracy, 3.7 BLEU."""
    return f"{difference} {'points of ' if _is_percentage(condition) else ''}{display_name(condition.metric)}"


def _tokens_per_task(rows: Sequence[ResultRow]) -> str:
    """Return the number of training tokens per task as text, averaged over rows and rounded to thousands."""
    tokens = [row["result"]["task_budgets"][row["task"]]["tokens"] for row in rows]
    return f"{round(sum(tokens) / len(tokens), -3):,.0f}"


def joint_effect(conditions: Sequence[Condition]) -> list[JointEffect]:
    """Return the gain of each shared trunk over solo, in normalized scores if every task has a reference score."""
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
    lower_is_better = not normalized and has_common_scale and every[0].condition.lower_is_better
    direction = -1 if lower_is_better else 1
    ranked = sorted(task_gains, key=lambda task: direction * task_gains[task].mean)
    best, worst = gains[ranked[-1]], gains[ranked[0]]
    gaps = [direction * (best[unit] - worst[unit]) for unit in units] if has_common_scale else []
    any_run = {unit for pair in every for side in (pair.condition, pair.baseline) for unit, _ in side.run_scores}
    return JointEffect(
        mean_gain=estimate(means, noun) if means and has_common_scale else None,
        task_gains=task_gains,
        best_minus_worst=estimate(gaps, noun).bonferroni(math.comb(len(gains), 2)) if gaps else None,
        unit=NORMALIZED_POINTS if normalized else "points",
        lower_is_better=lower_is_better,
        settings=settings,
        tasks_without_solo=tasks_without_solo,
        missing_units=sorted(any_run.difference(units)) if units else [],
        pairs=pairs,
        units=units,
    )


def _with_settings(settings: str, sentences: Sequence[str]) -> list[str]:
    """Prepend the settings of a comparison to the first of its sentences."""
    if not settings or not sentences:
        return [*sentences]
    return [f"With {settings}: {sentences[0][0].lower()}{sentences[0][1:]}", *sentences[1:]]


def _describe_joint(conditions: Sequence[Condition], excluded: ExcludedRuns) -> list[str]:
    sentences: list[str] = []
    for effect in joint_effect(conditions):
        parts = [*_mean_effect(effect), *_task_effects(effect, excluded), *_left_out(effect)]
        sentences += _with_settings(effect.settings, parts)
    return sentences


def _mean_effect(effect: JointEffect) -> list[str]:
    """Return sentences on the mean gain over several tasks, and on the tasks with the largest and the smallest gain."""
    mean, count = effect.mean_gain, len(effect.task_gains)
    if mean is None:
        return ["The tasks have no scale or no seed in common, so joint minus solo has no mean over tasks."]
    if count == 1:
        return []  # With a single task, the mean equals the gain of this task, which has a separate sentence.
    trunk = f"One trunk for {'both' if count == 2 else f'all {count}'} tasks"
    size = magnitude(mean)
    points = f"{format_number(size.mean, num_decimals(size))} {effect.unit}"
    is_better = mean.mean < 0 if effect.lower_is_better else mean.mean > 0
    if mean.sign:
        gain = f"saves {points} compared with" if effect.lower_is_better else f"gains {points} over"
        verb = gain if is_better else f"costs {points} compared with"
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
    direction = -1 if effect.lower_is_better else 1
    worst, *_, best = sorted(effect.task_gains, key=lambda task: direction * effect.task_gains[task].mean)
    return [sentence, f"Of the tasks, {best} fares best and {worst} fares worst."]


def _task_effects(effect: JointEffect, excluded: ExcludedRuns) -> Iterator[str]:
    """Yield one sentence per task on the difference between joint and solo, in the task's metric."""
    for task, pair in effect.pairs.items():
        gain = estimate([pair.gains[unit] for unit in effect.units or pair.gains], pair.condition.unit)
        above, below = _sides(pair.condition)
        gains, loses = ("saves", "costs") if pair.condition.lower_is_better else ("gains", "loses")
        if len(effect.pairs) == 1:
            wording = _Wording(
                better=f"A shared trunk {gains} {{}} on {task} compared with a separate trunk",
                worse=f"A shared trunk costs {{}} on {task} compared with a separate trunk",
                bound=f"A shared and a separate trunk differ on {task} by at most {{}}",
                better_once=f"A shared trunk scores {{}} {above} a separate trunk on {task}",
                worse_once=f"A shared trunk scores {{}} {below} a separate trunk on {task}",
                equal=f"A shared and a separate trunk have equal scores on {task}",
            )
        else:
            wording = _Wording(
                better=f"{task} {gains} {{}}",
                worse=f"{task} {loses} {{}}",
                bound=f"{task} changes by at most {{}}",
                better_once=f"{task} scores {{}} {above} solo",
                worse_once=f"{task} scores {{}} {below} solo",
                equal=f"{task} scores as solo does",
            )
        test = _test_examples(pair, effect.units or None, 1, excluded)
        yield _describe_difference(wording, pair.condition, gain, test)


def _sides(condition: Condition) -> tuple[str, str]:
    """Return the words for a better and for a worse score: above and below, or for an error below and above."""
    return ("below", "above") if condition.lower_is_better else ("above", "below")


def _left_out(effect: JointEffect) -> list[str]:
    sentences: list[str] = []
    if effect.missing_units:
        noun = next(iter(effect.task_gains.values())).unit
        units = join_words([str(unit) for unit in effect.missing_units])
        plural = "" if len(effect.missing_units) == 1 else "s"
        sentences.append(f"Left out: {noun}{plural} {units}, because a joint or a solo run has no score for them.")
    if effect.tasks_without_solo:
        tasks = join_words(effect.tasks_without_solo)
        sentences.append(f"Left out: {tasks}, because no solo run has the same data, settings and seeds.")
    return sentences


def _describe_difference(wording: _Wording, condition: Condition, gain: Estimate, test: ExampleTest | None) -> str:
    """Describe a score difference, with its uncertainty over runs and over test examples, in one sentence.

    Args:
        wording: The phrases for each outcome.
        condition: The condition, whose metric is the unit of the difference.
        gain: The difference over seeds or folds.
        test: The test over test examples, or None if the predictions of the runs are not available.
    """
    known = [gain]
    if test and test.difference.half_width is not None:
        known.append(test.difference)
    bounded = [each for each in known if each.half_width is not None]
    sign = next((each.sign for each in bounded if each.sign), 0)
    direction = -1 if condition.lower_is_better else 1

    def amount(size: Estimate) -> str:
        return _difference_with_metric(format_number(size.mean, num_decimals(size)), condition)

    if not bounded:
        once = wording.better_once if direction * gain.mean > 0 else wording.worse_once
        phrase = once if gain.mean else wording.equal
        return f"{phrase.format(amount(magnitude(gain)))} {format_interval(magnitude(gain))}."
    if sign:
        shown = [magnitude(each) for each in bounded if each.sign == sign]
        phrase = (wording.better if direction * sign > 0 else wording.worse).format(amount(shown[0]))
    else:
        shown, widest = bounded, max(bounded, key=lambda each: each.bound)
        phrase = wording.bound.format(_difference_with_metric(format_bound(widest), condition))
    p_value = format_p_value(test.p_value) if test and sign else ""
    intervals = [
        join_nonempty(f"over {_count(each)}: {format_ends(each)}", p_value if each.unit in (UNIT, CLUSTER_UNIT) else "")
        for each in shown
    ]
    clauses = [f"{phrase} (95 % interval {'; '.join(intervals)})"]
    clauses += [
        f"over {_count(each)}, the difference is at most {format_bound(each)}"
        for each in bounded
        if sign and each.sign != sign
    ]
    if gain not in bounded:
        runs = f"{_count(gain)} with equal differences give" if gain.num_values > 1 else f"one {gain.unit} gives"
        clauses.append(f"{runs} no interval")
    return f"{'; '.join(clauses)}."


def _count(estimate: Estimate) -> str:
    return count_noun(estimate.num_values, estimate.unit)


def _test_examples(
    pair: Contrast, units: Collection[int] | None, choices: int, excluded: ExcludedRuns
) -> ExampleTest | None:
    """Test a contrast over test examples, with Bonferroni's correction for the choice of the contrast.

    Args:
        pair: The contrast to test.
        units: The seeds or folds to use, or None for all seeds or folds.
        choices: The number of contrasts from which this contrast was chosen.
        excluded: The mapping to which runs that cannot be tested are added.
    """
    comparison = compare_examples(pair, units)
    for run_id, reason in comparison.problems.items():
        excluded.setdefault(reason, {})[run_id] = None
    if (test := comparison.test) is None:
        return None
    return test._replace(difference=test.difference.bonferroni(choices), p_value=min(1.0, test.p_value * choices))


def _describe_excluded(excluded: ExcludedRuns) -> list[str]:
    problems: list[str] = []
    for reason, names in excluded.items():
        listed = [*names][:MAX_NAMED_RUNS]
        more = [count_noun(len(names) - len(listed), "other run")] if len(names) > len(listed) else []
        problems.append(f"not tested over test examples: {join_words([*listed, *more])} ({reason})")
    return problems


def _describe_transfer(conditions: Sequence[Condition], excluded: ExcludedRuns) -> list[str]:
    moved = [condition for condition in conditions if not condition.has(start=None)]
    sentences: list[str] = []
    for varied in maximal_settings(moved):
        group = [condition for condition in conditions if condition.matches_settings(varied)]
        if retained := retained_scores(group):
            parts = [*_best_retained(retained, group, excluded), *_dropped_shares(retained)]
            sentences += _with_settings(settings_text(varied), parts)
    return sentences


def _best_retained(
    retained: Sequence[RetainedScore], conditions: Sequence[Condition], excluded: ExcludedRuns
) -> list[str]:
    """Describe the highest retained score, and compare this frozen trunk with its controls.

    All intervals have Bonferroni's correction for the choice of the best trunk.
    """
    best, choices = retained[0], sum(score.share is not None for score in retained)
    if best.share is None:
        return []
    share = best.share.bonferroni(choices)
    total = "solo's score" if best.reference.has(start=None) else "the tuned score"
    pair = f"{display_name(best.start)} to {best.task}"
    lead = f"On the best of {choices} pairs, {pair}," if choices > 1 else f"From {pair},"
    amount = f"{format_number(share.mean, 0)} %" if share.mean > 0 else "nothing"
    sentences = [f"{lead} a frozen trunk keeps {amount} of {total} {format_interval(share)}."]
    has_interval = share.half_width is not None
    for control in contrasts(conditions):
        if control.condition is not best.frozen or control.baseline.has(trainable="all"):
            continue
        name = "a random frozen trunk"
        if control.baseline.has(shuffled=True):
            name = "the same trunk with shuffled weights"
        above, below = _sides(control.condition)
        wording = _Wording(
            better=f"The frozen trunk scores {{}} {above} {name}",
            worse=f"The frozen trunk scores {{}} {below} {name}",
            bound=f"The frozen trunk and {name} differ by at most {{}}",
            better_once=f"The frozen trunk scores {{}} {above} {name}",
            worse_once=f"The frozen trunk scores {{}} {below} {name}",
            equal=f"The frozen trunk and {name} have equal scores",
        )
        gain, test = control.gain.bonferroni(choices), _test_examples(control, None, choices, excluded)
        has_interval |= gain.half_width is not None or test is not None
        sentences.append(_describe_difference(wording, control.condition, gain, test))
    if choices > 1 and has_interval:
        sentences.append(f"These intervals are Bonferroni-adjusted for the choice among {choices} pairs.")
    return sentences


def _dropped_shares(retained: Sequence[RetainedScore]) -> list[str]:
    """Return a sentence on the seeds or folds without a retained score, or an empty list."""
    dropped = [
        f"{display_name(score.start)} to {score.task}, {score.frozen.unit} {join_words(list(map(str, score.dropped)))}"
        for score in retained
        if score.dropped
    ]
    if not dropped:
        return []
    return [f"No share is given if the tuned score is not significantly above 0: {'; '.join(dropped)}."]


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
            caveat = f"; the {exponent} of its power law is not distinguishable from 0" if exponent else ""
            sentences.append(
                f"{curve.name}: from {100 * curve.shares[0]:g} % to {100 * curve.shares[-1]:g} % of the examples "
                f"the error goes from {first} to {last}{caveat}."
            )
    return sentences


def _describe_best(conditions: Sequence[Condition], excluded: ExcludedRuns) -> list[str]:
    """Describe the test score of the condition with the best validation score, for each task.

    A condition with missing scores is not chosen, because the missing runs may have diverged.
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
        score = _with_metric(format_number(first.score.mean, num_decimals(first.score)), first)
        sentences.append(f"For {task}, {first.label} is chosen on validation and reaches {score} on the test split.")
        pair, rival = contrast(first, second), f"{second.label}, the second choice"
        if pair is None:
            sentences.append(f"{first.label} shares no {first.unit} with {rival}.")
        else:
            above, below = _sides(first)
            wording = _Wording(
                better=f"{first.label} scores {{}} {above} {rival}",
                worse=f"{first.label} scores {{}} {below} {rival}",
                bound=f"{first.label} is not distinguishable from {rival}: they differ by at most {{}}",
                better_once=f"{first.label} scores {{}} {above} {rival}",
                worse_once=f"{first.label} scores {{}} {below} {rival}",
                equal=f"{first.label} scores as {rival}, does",
            )
            sentences.append(_describe_difference(wording, first, pair.gain, _test_examples(pair, None, 1, excluded)))
        if fewer := [rival.label for rival in group if rival not in ranked]:
            sentences.append(f"Not chosen from: {join_words(fewer)}, because they have fewer scores.")
    return sentences


def _describe_scores(conditions: Sequence[Condition]) -> list[str]:
    tasks = [condition.task for condition in conditions]
    names = [
        condition.task if tasks.count(condition.task) == 1 else f"{condition.task} ({condition.label})"
        for condition in conditions
    ]
    scores = [
        f"{name} reaches {_with_metric(plus_minus(condition.score), condition)}"
        for name, condition in zip(names, conditions, strict=True)
    ]
    over = [
        f"over {count_noun(score.num_values, score.unit)}" if score.num_values > 1 else f"with one {score.unit}"
        for score in (condition.score for condition in conditions)
    ]
    if len(set(over)) == 1:
        return [f"{join_words(scores)}, {over[0]}."]
    return [f"{join_words([f'{score} {unit}' for score, unit in zip(scores, over, strict=True)])}."]
