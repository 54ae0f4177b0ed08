"""Target texts that belong to groups of examples, such as pairs of languages, for metrics of each group."""

from collections.abc import Sequence
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray


@final
class GroupedText(str):
    """Target text that belongs to named groups of examples. Metrics are computed of all texts and of each group."""

    groups: tuple[str, ...]
    """The names of the groups, such as "en-de"."""
    language: str | None
    """The code of the language, or None for the language of the head."""
    cluster: str
    """The name that dependent examples share, such as the translations of one sentence, or "" for independent ones."""

    def __new__(cls, text: str, groups: Sequence[str] = (), language: str | None = None, cluster: str = "") -> Self:
        """Create the text.

        Args:
            text: The text.
            groups: The names of the groups.
            language: The code of the language, or None.
            cluster: The name that dependent examples share, or "".
        """
        self = super().__new__(cls, text)
        self.groups, self.language, self.cluster = tuple(groups), language, cluster
        return self


def rows_by_group(targets: Sequence[Any]) -> dict[str, list[int]]:
    """Return the indices of the targets of each group, in the order of the groups' first targets.

    Targets that are no `GroupedText` belong to no group.
    """
    rows: dict[str, list[int]] = {}
    for index, target in enumerate(targets):
        for group in target.groups if isinstance(target, GroupedText) else ():
            rows.setdefault(group, []).append(index)
    return rows


def clusters_of(targets: Sequence[Any]) -> list[str]:
    """Return the name of each target's cluster. A target that is no `GroupedText`, or has no cluster, is alone."""
    names = [target.cluster if isinstance(target, GroupedText) else "" for target in targets]
    return cluster_names(names, [str(index) for index in range(len(names))])


def cluster_names(names: Sequence[str], ids: Sequence[str]) -> list[str]:
    """Return the cluster of each example, given the names that dependent examples share and the ids of the examples.

    An example without a name, "", is alone in its cluster.
    """
    return [f"cluster {name}" if name else example_id for name, example_id in zip(names, ids, strict=True)]


def sum_clusters(statistics: NDArray[Any], clusters: Sequence[str]) -> NDArray[Any]:
    """Return the summed statistics (C, K) of the C clusters, given the statistics (n, K) and clusters of n examples."""
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(name, len(numbers)) for name in clusters]
    sums = np.zeros((len(numbers), *statistics.shape[1:]), statistics.dtype)
    np.add.at(sums, rows, statistics)
    return sums


def language_of(targets: Sequence[Any], language: str) -> str:
    """Return the language of the targets if all have the same language, or else the given language."""
    found = {target.language if isinstance(target, GroupedText) else None for target in targets}
    return found.pop() or language if len(found) == 1 else language
