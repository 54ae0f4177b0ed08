"""Typical and largest sizes of a data set's examples, the same whichever fold is tested on."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from statistics import median

import soundfile

from unifier.data.dataset import open_split
from unifier.data.readers import UNKNOWN_FRAMES, open_audio
from unifier.data.source import SPLITS, Example, Source, SplitName, describe_example

Measure = Callable[[Sequence[Example], int], float]
"""What is measured of the example at that place in a split; ValueError or OSError where it cannot be read."""


def median_side(source: Source, *, max_examples: int = 200) -> float:
    """The median of pictures' longer sides, in pixels; see `usual`."""
    return median_of(source, lambda split, index: max(split[index].input.shape[:2]), max_examples)


def median_duration(source: Source, *, max_examples: int = 50) -> float:
    """The median length of sounds, read from files' headers where there are any; see `usual`."""
    known: float | None = getattr(source, "seconds", None)
    return median_of(source, _seconds, max_examples) if known is None else known


def max_duration(source: Source, *, max_files: int = 50) -> float:
    """The longest sound among the largest files of all splits, read as `usual_seconds` reads it; 0 if none can be."""
    known: float | None = getattr(source, "seconds", None)
    if known is not None:
        return known
    splits = _splits(source)
    largest = nlargest(max_files, _places(splits), key=lambda place: _size(place[0]))
    return max(_measured(splits, _seconds, largest), default=0.0)


def median_of(source: Source, measure: Measure, most: int) -> float:
    """The median over at most so many examples of all splits, evenly spaced by their places; 0 if none can be read."""
    splits = _splits(source)
    places = _places(splits)
    found = _measured(splits, measure, places[:: max(-(-len(places) // most), 1)])
    return median(found) if found else 0.0


_Splits = Mapping[SplitName, Sequence[Example]]


_Place = tuple[str, SplitName, int]
"""An example's name, its split and its place in there."""


def _splits(source: Source) -> _Splits:
    return {name: open_split(source, name) for name in SPLITS}


def _places(splits: _Splits) -> list[_Place]:
    return sorted(
        (describe_example(split, index), name, index) for name, split in splits.items() for index in range(len(split))
    )


def _measured(splits: _Splits, measure: Measure, places: Sequence[_Place]) -> list[float]:
    found: list[float] = []
    for _, name, index in places:
        try:
            found.append(measure(splits[name], index))
        except (ValueError, OSError):
            continue
    return found


def _size(name: str) -> int:
    try:
        return Path(name).stat().st_size
    except OSError:  # no file of its own, or none any more
        return 0


def _seconds(split: Sequence[Example], index: int) -> float:
    # Where there is no file of its own, or none that can be read, the set may read it all the same.
    with suppress(soundfile.LibsndfileError, OSError), open_audio(Path(describe_example(split, index))) as file:
        if file.frames < UNKNOWN_FRAMES:
            return file.frames / file.samplerate
    waveform, rate = split[index].input
    return waveform.shape[-1] / rate
