"""Strings of spoken digits with the name of a digit: the target is the place at which this digit is spoken."""

from functools import cached_property, partial
from typing import NamedTuple, final

import numpy as np

from unifier.data.dataset import Examples
from unifier.data.readers import Archive
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName
from unifier.datasets.fsdd import DigitString, FSDDStrings, compose_string
from unifier.heads.question_answering import CONTEXT, QUESTION, SpanTarget, timed_span
from unifier_tokenizers import InputError


class NamedDigit(NamedTuple):
    """A string of spoken digits, and one of its digits."""

    string: DigitString
    digit: str


@final
class DigitSpans:
    """Strings of spoken digits in which one digit is named (see `FSDDStrings`).

    The input has the members "question", which is a digit such as "7", and "context", which is an `Audio`. The target
    is a `SpanTarget` with the first and the last token of each place at which the digit is spoken. The digit is drawn
    with a fixed seed. A digit that is spoken several times has several right answers.
    """

    name = "fsdd_spans"
    labels = FSDDStrings.labels
    license = FSDDStrings.license
    score_range = ScoreRange("f1", 0.0, None, NO_SCORE_RANGE)

    def __init__(self, strings: FSDDStrings, token_seconds: float) -> None:
        """Store the strings.

        Args:
            strings: The strings of digits.
            token_seconds: The time from one token of the context to the next, in seconds.
        """
        if not token_seconds > 0:
            raise InputError(f"token_seconds={token_seconds}: a number above 0 is expected")
        self._strings, self._seconds = strings, token_seconds

    def split(self, name: SplitName) -> Examples[NamedDigit]:
        """Return the strings of one split, each with a digit."""
        rng = np.random.default_rng(SPLITS.index(name))
        rows: list[NamedDigit] = []
        for string in self._strings.strings(name):
            spoken = sorted({recording.sound.target for recording in string.recordings})
            rows.append(NamedDigit(string, str(rng.choice(spoken))))
        return Examples(rows, partial(_read, self._strings.archive, self._seconds), _name_of)

    @cached_property
    def sha256(self) -> str:
        """The hash of the strings, and the time between tokens."""
        return f"{self._strings.sha256}-{self._seconds:g}"


def _read(archive: Archive, token_seconds: float, row: NamedDigit) -> Example:
    sound, times = compose_string(archive, row.string)
    spans: list[tuple[int, int]] = []
    for recording, (begin, end) in zip(row.string.recordings, times, strict=True):
        if recording.sound.target == row.digit:
            spans.append(timed_span(begin, end, token_seconds))
    return Example({QUESTION: row.digit, CONTEXT: sound}, SpanTarget(tuple(spans)))


def _name_of(row: NamedDigit) -> str:
    digits = "".join(recording.sound.target for recording in row.string.recordings)
    return f"string {row.string.seed} of {row.string.recordings[0].speaker} ({digits}), digit {row.digit}"
