"""Target texts that belong to groups of examples, such as pairs of languages, for metrics of each group."""

from collections.abc import Sequence
from typing import Any, Self, final


@final
class GroupedText(str):
    """Target text that belongs to named groups of examples. Metrics are computed of all texts and of each group."""

    groups: tuple[str, ...]
    """The names of the groups, such as "en-de"."""
    language: str | None
    """The code of the language, or None for the language of the head."""

    def __new__(cls, text: str, groups: Sequence[str] = (), language: str | None = None) -> Self:
        """Create the text.

        Args:
            text: The text.
            groups: The names of the groups.
            language: The code of the language, or None.
        """
        self = super().__new__(cls, text)
        self.groups, self.language = tuple(groups), language
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


def language_of(targets: Sequence[Any], language: str) -> str:
    """Return the language of the targets if all have the same language, or else the given language."""
    found = {target.language if isinstance(target, GroupedText) else None for target in targets}
    return found.pop() or language if len(found) == 1 else language
