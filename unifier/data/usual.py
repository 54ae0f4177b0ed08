"""How large a set's examples usually are: medians that are the same whichever fold is tested on."""

from collections.abc import Callable, Sequence
from statistics import median

import soundfile

from unifier.data.source import SPLITS, Example, Source, where

Measure = Callable[[Sequence[Example], int], float]
"""What is measured of the example at that place in a split; ValueError or OSError where it cannot be read."""


def usual_side(source: Source, *, most: int = 200) -> float:
    """The median of pictures' longer sides, in pixels; see `usual`."""
    return usual(source, lambda split, index: max(split[index].input.shape[:2]), most)


def usual_seconds(source: Source, *, most: int = 50) -> float:
    """The median length of sounds, read from files' headers where there are any; see `usual`."""
    known: float | None = getattr(source, "seconds", None)
    return usual(source, _seconds, most) if known is None else known


def usual(source: Source, measure: Measure, most: int) -> float:
    """The median over at most so many examples of all splits, evenly spaced by their places; 0 if none can be read."""
    splits = [source.split(name) for name in SPLITS]
    places = sorted((where(split, index), k, index) for k, split in enumerate(splits) for index in range(len(split)))
    found: list[float] = []
    for _, k, index in places[:: max(-(-len(places) // most), 1)]:
        try:
            found.append(measure(splits[k], index))
        except (ValueError, OSError):
            continue
    return median(found) if found else 0.0


def _seconds(split: Sequence[Example], index: int) -> float:
    try:
        return soundfile.info(where(split, index)).duration
    except soundfile.LibsndfileError:  # no file of its own, or none that can be read
        waveform, rate = split[index].input
        return waveform.shape[-1] / rate
