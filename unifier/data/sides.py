"""How large a set's pictures are."""

from operator import itemgetter

import numpy as np

from unifier.data.examples import Examples
from unifier.data.source import BadExamples, Example, Source, readable, where
from unifier.data.splitting import SPLITS
from unifier_tokenizers import InputError


def typical_side(source: Source, *, bad_examples: BadExamples = "stop", most: int = 200) -> int:
    """The median of pictures' longer sides, in pixels, of at most `most` pictures evenly spaced over all splits.

    They are taken in the order of their places, so that every fold finds the same. Raises InputError where none can be
    read, or at the first that cannot, unless bad_examples is "skip".
    """
    splits = [source.split(name) for name in SPLITS]
    every = sorted((where(split, index), k, index) for k, split in enumerate(splits) for index in range(len(split)))

    def read(entry: tuple[str, int, int]) -> Example:
        _, k, index = entry
        return splits[k][index]

    pictures = Examples(every, read, itemgetter(0))
    sides = [max(example.input.shape[:2]) for example in readable(pictures, bad_examples=bad_examples, most=most)]
    if not sides:
        raise InputError(f"{source.name}: none of its pictures can be read")
    return int(np.median(sides))
