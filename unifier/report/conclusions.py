"""The conclusions of a comparison as numbers: scores, and differences between conditions, with their intervals."""

import re

from unifier.report.conditions import contrasts, group_conditions
from unifier.report.estimates import Estimate
from unifier.report.read_results import Results
from unifier.report.summary import joint_effect

REFUSED = re.compile(r"[^\w/. -]", re.ASCII)
"""Characters that at least one tracker refuses in the name of a metric."""


def conclusions(results: Results) -> dict[str, float]:
    """Return the numbers on which the sentences of a report are based.

    The names are `score/<task>/<condition>`, `gain/<task>/<condition> over <baseline>`, and `gain/mean/<settings>` for
    the mean gain of a shared trunk over the tasks. With an interval, the ends of the interval have the names
    `<name>/low` and `<name>/high`. Scores and gains have the unit of the task's main metric on the test split.
    """
    conditions = group_conditions(results.rows)
    values: dict[str, float] = {}

    def add(name: str, estimate: Estimate) -> None:
        name = REFUSED.sub("_", name)
        values[name] = estimate.mean
        if estimate.low is not None and estimate.high is not None:
            values.update({f"{name}/low": estimate.low, f"{name}/high": estimate.high})

    for condition in conditions:
        add(f"score/{condition.task}/{condition.label}", condition.score)
    for pair in contrasts(conditions):
        add(f"gain/{pair.condition.task}/{pair.condition.label} over {pair.baseline.label}", pair.gain)
    for effect in joint_effect(conditions):
        if effect.mean_gain is not None and len(effect.task_gains) > 1:
            add(f"gain/mean/joint over solo{', ' if effect.settings else ''}{effect.settings}", effect.mean_gain)
    return values
