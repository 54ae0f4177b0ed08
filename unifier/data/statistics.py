"""Typical and largest sizes of a data set's examples. The sizes are equal for all folds of a cross-validation."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from statistics import median
from typing import NamedTuple

import soundfile

from unifier.data.audio_files import UNKNOWN_FRAMES, open_audio
from unifier.data.dataset import open_split
from unifier.data.source import SPLITS, Example, Source, SplitName, describe_example
from unifier_tokenizers import InputError

Measure = Callable[[Sequence[Example], int], float]
"""Function that measures one example, given a split and an index.

The function raises ValueError or OSError if the example cannot be read.
"""

Splits = Mapping[SplitName, Sequence[Example]]


class ExampleRef(NamedTuple):
    """Reference to an example of a source. Sorting by name gives all folds an equal order of references."""

    name: str
    split: SplitName
    row: int


def median_side(source: Source, *, max_examples: int = 200) -> float:
    """Return the median length of the pictures' longer sides in pixels; see `median_of`."""
    return median_of(source, lambda split, index: max(split[index].input.shape[:2]), max_examples)


def median_duration(source: Source, *, max_examples: int = 50) -> float:
    """Return the median length of the sounds in seconds. Lengths are read from file headers if possible."""
    seconds: float | None = getattr(source, "seconds", None)
    return median_of(source, _duration, max_examples) if seconds is None else seconds


def max_duration(source: Source, *, max_files: int = 50) -> float:
    """Return the length of the longest sound in seconds. Only the largest files of all splits are read.

    Returns 0 if no file can be read.
    """
    seconds: float | None = getattr(source, "seconds", None)
    if seconds is not None:
        return seconds
    splits = _open_splits(source)
    largest = nlargest(max_files, _list_examples(splits), key=lambda example: _file_size(example.name))
    return max(_measure(splits, _duration, largest), default=0.0)


def median_of(source: Source, measure: Measure, max_examples: int) -> float:
    """Return the median of `measure` over evenly spaced examples of all splits.

    Args:
        source: The data set.
        measure: Function that measures one example. Examples that cannot be read are left out.
        max_examples: Maximum number of examples to measure.

    Returns:
        The median, or 0 if no example can be read.
    """
    splits = _open_splits(source)
    examples = _list_examples(splits)
    values = _measure(splits, measure, examples[:: max(-(-len(examples) // max_examples), 1)])
    return median(values) if values else 0.0


def _open_splits(source: Source) -> Splits:
    return {name: open_split(source, name) for name in SPLITS}


def _list_examples(splits: Splits) -> list[ExampleRef]:
    return sorted(
        ExampleRef(describe_example(split, index), name, index)
        for name, split in splits.items()
        for index in range(len(split))
    )


def _measure(splits: Splits, measure: Measure, examples: Sequence[ExampleRef]) -> list[float]:
    """Measure each example. Examples that cannot be read are left out."""
    values: list[float] = []
    for example in examples:
        try:
            values.append(measure(splits[example.split], example.row))
        except (ValueError, OSError):
            continue
    return values


def _file_size(name: str) -> int:
    """Return the size of a file in bytes, or 0 if the file does not exist."""
    try:
        return Path(name).stat().st_size
    except OSError:
        return 0


def _duration(split: Sequence[Example], index: int) -> float:
    """Return the length of a sound in seconds, from the header of its file if the sound has its own file."""
    # In some data sets, a sound has no file of its own, for example if all sounds are in one archive.
    with (
        suppress(soundfile.LibsndfileError, OSError, InputError),
        open_audio(Path(describe_example(split, index))) as file,
    ):
        if file.frames < UNKNOWN_FRAMES:
            return file.frames / file.samplerate
    waveform, rate = split[index].input
    return waveform.shape[-1] / rate
