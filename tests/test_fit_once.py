"""What is learned of a set's inputs holds no more of them than it must."""

from collections.abc import Iterable
from typing import Any

from unifier.data.kept import fit_once
from unifier.data.source import Example, SplitName


class Sounds:
    """Six examples, and which of them have been read."""

    name = "sounds"

    def __init__(self) -> None:
        self.read = list[int]()

    def split(self, name: SplitName) -> Any:
        return self

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Example:
        self.read.append(index)
        return Example(index, None)


class Learner:
    """How many examples had been read when each one came."""

    def __init__(self, source: Sounds) -> None:
        self.source = source
        self.found = list[int]()

    def fit(self, raws: Iterable[Any]) -> None:
        self.found += [len(self.source.read) for _ in raws]

    def encode(self, raw: Any) -> None: ...

    def named_buffers(self) -> list[Any]:
        return []

    def encoding_key(self) -> None: ...


def test_examples_are_learned_one_after_the_other() -> None:
    learner = Learner(Sounds())
    fit_once(learner, learner.source)
    assert learner.found == [1, 2, 3, 4, 5, 6]
