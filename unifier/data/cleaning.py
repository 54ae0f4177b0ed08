"""Cleaning of text pairs: which ones are left out."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unifier.data.keeping.mapped import Mapped

Duplicates = Literal["keep", "drop"]
"""Whether a pair stays that has occurred before, both sides of it."""


def too_unlike(pairs: Iterable[tuple[bytes, bytes]], ratio: float) -> NDArray[np.bool_]:
    """Of which pairs the longer text has more than `ratio` times the characters of the shorter; a bool a pair."""
    return np.fromiter((_unlike(*pair, ratio) for pair in pairs), np.bool_)


def _unlike(source: bytes, target: bytes, ratio: float) -> bool:
    shorter, longer = sorted(len(text.decode(errors="replace").strip()) for text in (source, target))
    return longer > ratio * shorter


def repeated(pairs: Iterable[tuple[bytes, bytes]], *, first_too: bool = False) -> NDArray[np.bool_]:
    """Which pairs have occurred before, or also occur again (`first_too`); a bool a pair.

    Eight bytes a pair are kept, in a mapped array: a hash of 64 bits; sorting takes some twenty for a moment. Of ten
    million unlike pairs, two have the same hash with a chance of 3 in a million.
    """
    hashes = Mapped(np.uint64)
    for source, target in pairs:
        digest = blake2b(b"%d\t%b%b" % (len(source), source, target), digest_size=8).digest()
        hashes.append(np.frombuffer(digest, np.uint64))
    found = hashes.read()
    copies = np.zeros(len(found), np.bool_)
    order = found.argsort(kind="stable")
    ranked = found[order]
    alike = ranked[1:] == ranked[:-1]
    copies[order[1:][alike]] = True
    if first_too:
        copies[order[:-1][alike]] = True
    return copies
