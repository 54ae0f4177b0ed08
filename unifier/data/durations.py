"""How long the sounds of a set are, decoded only where nothing else tells."""

from collections.abc import Sequence
from statistics import median
from typing import get_args

import soundfile

from unifier.data.source import Example, Source, SplitName, where


def usual_seconds(source: Source, *, most: int = 50) -> float:
    """The median length in seconds of about `most` sounds, evenly spaced by their names; 0 where none can be read.

    Sounds of all splits count, so that it is the same whichever fold is tested on.
    """
    known: float | None = getattr(source, "seconds", None)
    if known is not None:
        return known
    splits = [source.split(name) for name in get_args(SplitName)]
    places = sorted((where(split, i), k, i) for k, split in enumerate(splits) for i in range(len(split)))
    some = places[:: max(len(places) // most, 1)]
    found = [seconds for _, k, i in some if (seconds := _seconds(splits[k], i)) is not None]
    return median(found) if found else 0.0


def _seconds(examples: Sequence[Example], index: int) -> float | None:
    try:
        return soundfile.info(where(examples, index)).duration
    except soundfile.LibsndfileError:  # no file of its own, or none that can be read
        pass
    try:
        waveform, rate = examples[index].input
    except (ValueError, OSError):
        return None
    return waveform.shape[-1] / rate
