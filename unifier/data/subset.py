"""A share of the training examples, for curves of the score over how many there are."""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, final

from numpy.random import RandomState  # the one whose stream no version of NumPy may change

from unifier.data.examples import Examples, split_of
from unifier.data.source import Example, Scale, Source, SplitName, method_of, name_of, where
from unifier_tokenizers import InputError


@final
class Subset:
    """A source with `share` of its training examples, in their order; val and test are whole.

    They are the first of one permutation that `seed` names, so that a smaller share lies within every larger one; at
    least one is kept. It has no `copies`: those of val and test in the whole may not be in the share. Raises InputError
    for a share outside (0, 1].
    """

    def __init__(self, source: Source, share: float, seed: int = 0) -> None:
        if not 0 < share <= 1:
            raise InputError(f"share={share}: a share of the training examples, above 0 and at most 1, is expected")
        self.name = name_of(source)
        self.whole: Source = source
        self._source: Any = source
        self._share, self._seed = share, seed

    def split(self, name: SplitName) -> Sequence[Example]:
        """The examples of one split; those to train on still know their places."""
        whole = split_of(self._source, name)
        if name != "train":
            return whole
        count = max(1, round(self._share * len(whole)))
        kept = sorted(RandomState(self._seed).permutation(len(whole))[:count].tolist())
        return Examples(kept, whole.__getitem__, partial(where, whole), method_of(whole, "target"))

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the whole, of which a small share may lack some."""
        return self._source.labels

    @property
    def scale(self) -> Scale | None:
        """The whole's."""
        return getattr(self._source, "scale", None)

    @property
    def dropped(self) -> dict[str, int] | None:
        """What the whole left out."""
        return getattr(self._source, "dropped", None)

    @property
    def sha256(self) -> str | None:
        """A hash of the whole's and of what is kept of it; None where the whole has none."""
        whole = getattr(self._source, "sha256", None)
        return whole and hashlib.sha256(f"{whole} {self._share} {self._seed}".encode()).hexdigest()
