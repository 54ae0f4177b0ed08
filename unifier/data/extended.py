"""Additional training examples: texts that a run has translated, a second collection."""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import final

from unifier.data.examples import Examples, split_of
from unifier.data.own.parallel_text import ParallelText
from unifier.data.source import Example, Source, SplitName, name_of, where


@final
class Extended:
    """A source whose training examples are followed by all pairs of `extra`; val and test are its own."""

    def __init__(self, source: Source, extra: ParallelText) -> None:
        self.name, self.scale = name_of(source), getattr(source, "scale", None)
        self._source, self._extra = source, extra

    def split(self, name: SplitName) -> Sequence[Example]:
        """The examples of one split; those to train on still know their places."""
        own = split_of(self._source, name)
        if name != "train":
            return own
        extra = self._extra.whole
        return Examples(range(len(own) + len(extra)), partial(_read, own, extra), partial(_place, own, extra))

    @property
    def sha256(self) -> str | None:
        """A hash of both's; None where the source has none."""
        own = getattr(self._source, "sha256", None)
        return own and hashlib.sha256(f"{own} {self._extra.sha256}".encode()).hexdigest()

    @property
    def dropped(self) -> dict[str, int]:
        """How many pairs cleaning left out of either, by reason."""
        own, extra = getattr(self._source, "dropped", None) or dict[str, int](), self._extra.dropped
        return {reason: own.get(reason, 0) + extra.get(reason, 0) for reason in own | extra}


def _read(own: Sequence[Example], extra: Sequence[Example], index: int) -> Example:
    return own[index] if index < len(own) else extra[index - len(own)]


def _place(own: Sequence[Example], extra: Sequence[Example], index: int) -> str:
    return where(own, index) if index < len(own) else where(extra, index - len(own))
