"""More to train on than a data set has: texts that a run has translated, a second collection."""

from collections.abc import Sequence
from functools import partial
from typing import final

from unifier.data.examples import Examples
from unifier.data.source import Example, Source, SplitName, where


@final
class Extended:
    """A source whose training examples are followed by `extra` ones; val and test are its own."""

    def __init__(self, source: Source, extra: Sequence[Example]) -> None:
        self.name, self.scale = source.name, getattr(source, "scale", None)
        self._source, self._extra = source, extra

    def split(self, name: SplitName) -> Sequence[Example]:
        """The examples of one split; those to train on still know their places."""
        own: Sequence[Example] = self._source.split(name)
        if name != "train":
            return own
        count = range(len(own) + len(self._extra))
        return Examples(count, partial(_read, own, self._extra), partial(_place, own, self._extra))


def _read(own: Sequence[Example], extra: Sequence[Example], index: int) -> Example:
    return own[index] if index < len(own) else extra[index - len(own)]


def _place(own: Sequence[Example], extra: Sequence[Example], index: int) -> str:
    return where(own, index) if index < len(own) else where(extra, index - len(own))
