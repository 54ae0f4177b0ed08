"""A mean over seeds or folds, and its 95 % confidence interval.

Numbers as text, without digits that mean nothing."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Estimate(NamedTuple):
    """A mean with its 95 % interval, by Student's t; one value has none, nor have values that are all the same."""

    mean: float
    half: float | None
    """Half the interval's width."""
    size: int
    unit: str = "seed"
    """What there are so many of."""

    @property
    def low(self) -> float | None:
        """The interval's lower end."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """The interval's upper end."""
        return None if self.half is None else self.mean + self.half

    @property
    def contains_zero(self) -> bool:
        """Whether the interval holds 0; where there is none, whether the mean is 0."""
        return abs(self.mean) <= (self.half or 0.0)

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves 0 out, else 0: the values cannot be told from none."""
        if self.half is None or self.contains_zero:
            return 0
        return 1 if self.mean > 0 else -1

    def among(self, choices: int) -> "Estimate":
        """The estimate with its interval widened by Bonferroni for the best of `choices`."""
        if self.half is None:
            return self
        wide, narrow = (stats.t.ppf(1 - 0.025 / number, self.size - 1) for number in (choices, 1))
        return self._replace(half=self.half * float(wide / narrow))


def estimate(values: Iterable[float], unit: str = "seed") -> Estimate:
    """The mean of at least one value, and its interval.

    Scores of a finite test come in steps, so that values that are the same, but for rounding, say nothing of how far
    others would lie apart.
    """
    array = np.fromiter(values, float)
    half = None
    if not np.allclose(array, array[0], rtol=1e-9, atol=1e-12):
        half = float(stats.t.ppf(0.975, len(array) - 1) * stats.sem(array))
    return Estimate(float(array.mean()), half, len(array), unit)


MINUS = "−"


UNIT_NAMES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


MAX_DECIMALS = 6
"""Digits after the point that a number has at most."""


def decimals(estimate: Estimate) -> int:
    """Digits after the point: one, as scores out of 100 have it, none where tens are unsure, more of what is small.

    A small number has two digits of half its interval, or where it has none three of its own.
    """
    half, mean = estimate.half or 0.0, abs(estimate.mean)
    if half >= 10:
        return 0
    if mean >= 10 or half >= 1:
        return 1
    digits, size = (2, half) if half else (3, mean)
    return min(digits - 1 - math.floor(math.log10(size)), MAX_DECIMALS) if size > 0 else 1


def format_number(value: float, places: int = 1, *, signed: bool = False) -> str:
    """A number with a true minus sign, and none before a zero."""
    said = f"{value:{'+' if signed else ''}.{places}f}"
    if float(said) == 0:
        return said.lstrip("+-")
    return said.replace("-", MINUS)


def plus_minus(estimate: Estimate, most: int = MAX_DECIMALS, *, signed: bool = False) -> str:
    """97.2 ± 0.6, with that many digits after the point at most; the mean alone where there is no interval."""
    places = min(decimals(estimate), most)
    mean = format_number(estimate.mean, places, signed=signed)
    return mean if estimate.half is None else f"{mean} ± {format_number(estimate.half, places)}"


def format_alone(value: float, least: int = 1) -> str:
    """A number of which no interval is told, with that many digits after the point at least: 97.2, 0.262, 3.41."""
    return format_number(value, max(decimals(Estimate(value, None, 1)), least))


def interval(estimate: Estimate) -> str:
    """(95 % interval 0.4 to 1.2), or that there is none: of one seed or fold, or where all are the same.

    An end that is not 0 is not rounded to it, so that an interval holds 0 where it says so.
    """
    if estimate.low is None or estimate.high is None:
        alike = (
            f"the same in {count_noun(estimate.size, estimate.unit)}" if estimate.size > 1 else f"one {estimate.unit}"
        )
        return f"({alike}: no interval)"
    places = decimals(estimate)
    while any(end and not round(end, places) for end in (estimate.low, estimate.high)):
        places += 1
    return f"(95 % interval {format_number(estimate.low, places)} to {format_number(estimate.high, places)})"


def magnitude(estimate: Estimate) -> Estimate:
    """The same without its sign, for a sentence whose verb says it: costs 0.7 (0.3 to 1.0)."""
    return estimate._replace(mean=abs(estimate.mean))


def format_range(low: float, high: float | None = None) -> str:
    """1.8 M; a range as 0.8–1.3 T."""
    largest = low if high is None else high
    scale, unit = next(((scale, f" {unit}") for scale, unit in UNIT_NAMES if abs(largest) >= scale), (1.0, ""))
    ends = [low / scale] if high is None else [low / scale, high / scale]
    places = 0 if largest / scale >= 100 or (not unit and largest >= 10) else 1
    said = [f"{end:.{places}f}" for end in ends]
    if len(said) == 2 and said[0] == said[1]:
        said = [f"{end:.{places + 1}f}" for end in ends]
    return "–".join(said) + unit


def join(words: Sequence[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def list_names(*parts: str, between: str = ", ") -> str:
    """a, b, c, without those that are empty."""
    return between.join(filter(None, parts))


def plain_name(name: str) -> str:
    """A metric's or an experiment's name as the field writes it."""
    return {"bleu": "BLEU", "chrf": "chrF"}.get(name, name.replace("_", " "))


def count_noun(number: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
