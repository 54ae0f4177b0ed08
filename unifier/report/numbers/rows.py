"""A row of a report and its score: the metric it is judged by, chance and reference."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
"""One run's one arm, as comparison.json holds it."""


def metric_of(row: Row) -> str:
    """The metric an arm is judged by: its scale's, else its first."""
    return scale_of(row).get("metric") or first_metric(row)


def first_metric(row: Row) -> str:
    """The metric that selects a run's weights."""
    return metrics_of(row)[0]


def scale_of(row: Row) -> Mapping[str, Any]:
    """What chance and a reference reach on a row's arm; empty where that is not known, or of a metric it has not."""
    scale = own_scale(row)
    return scale if scale.get("metric") in metrics_of(row) else {}


def own_scale(row: Row) -> Mapping[str, Any]:
    """What its source says of chance and a reference, of whatever metric; empty where it says nothing."""
    return data_of(row).get("scale") or {}


def data_of(row: Row) -> Mapping[str, Any]:
    """What its result says of its arm's data; empty where it says nothing."""
    return row["result"].get("data", {}).get(row["arm"], {})


def metrics_of(row: Row) -> list[str]:
    """All that a row's arm is scored by on the test split."""
    prefix = f"test/{row['arm']}/"
    return [name.removeprefix(prefix) for name in row["result"]["metrics"] if name.startswith(prefix)]
