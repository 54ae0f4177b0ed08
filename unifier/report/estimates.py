"""Means with 95 % confidence intervals, formatted with only the significant digits."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

MINUS = "−"
"""The Unicode minus sign, which has the width of a digit."""

UNIT_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
"""SI prefixes and their factors."""

MAX_DECIMALS = 6
"""Maximum number of digits after the decimal point."""


class Estimate(NamedTuple):
    """Mean with a symmetric 95 % confidence interval."""

    mean: float
    half_width: float | None
    """Half the width of the interval, or None for a single value or for equal values."""
    num_values: int
    """The number of values."""
    unit: str = "seed"
    """The unit of averaging: "seed", "fold", "test example" or "independent test example"."""

    @property
    def low(self) -> float | None:
        """The lower end of the interval."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """The upper end of the interval."""
        return None if self.half_width is None else self.mean + self.half_width

    @property
    def bound(self) -> float:
        """The largest absolute value in the interval. Without an interval, the absolute value of the mean."""
        return abs(self.mean) + (self.half_width or 0.0)

    @property
    def contains_zero(self) -> bool:
        """True if the interval contains 0, or without an interval if the mean is 0."""
        return abs(self.mean) <= (self.half_width or 0.0)

    @property
    def sign(self) -> int:
        """The sign of the mean if the interval excludes 0, else 0."""
        if self.half_width is None or self.contains_zero:
            return 0
        return 1 if self.mean > 0 else -1

    def bonferroni(self, choices: int) -> "Estimate":
        """Widen Student's interval by Bonferroni's correction for choosing one of several estimates.

        Args:
            choices: The number of estimates from which this estimate was chosen.
        """
        if self.half_width is None:
            return self
        wide, narrow = (stats.t.ppf(1 - 0.025 / number, self.num_values - 1) for number in (choices, 1))
        return self._replace(half_width=self.half_width * float(wide / narrow))


def estimate(values: Iterable[float], unit: str = "seed") -> Estimate:
    """Return the mean of one or more values, with its 95 % interval by Student's t.

    Values that are equal up to rounding errors have no interval. Runs with equal scores on a finite test set do not
    prove that further runs have equal scores.
    """
    array = np.fromiter(values, float)
    half_width = None
    if not np.allclose(array, array[0], rtol=1e-9, atol=1e-12):
        half_width = float(stats.t.ppf(0.975, len(array) - 1) * stats.sem(array))
    return Estimate(float(array.mean()), half_width, len(array), unit)


def num_decimals(estimate: Estimate) -> int:
    """Return the number of digits to print after the decimal point of an estimate.

    Scores of up to 100 have one decimal, or no decimal if half the interval is 10 or more. Small numbers have more
    decimals, for two significant digits of half the interval. Without an interval, the mean has three significant
    digits.
    """
    half_width, mean = estimate.half_width or 0.0, abs(estimate.mean)
    if half_width >= 10:
        return 0
    if mean >= 10 or half_width >= 1:
        return 1
    digits, size = (2, half_width) if half_width else (3, mean)
    return min(digits - 1 - math.floor(math.log10(size)), MAX_DECIMALS) if size > 0 else 1


def format_number(value: float, places: int = 1, *, signed: bool = False) -> str:
    """Format a number with a Unicode minus sign. A number that rounds to zero has no sign."""
    text = f"{value:{'+' if signed else ''}.{places}f}"
    if float(text) == 0:
        return text.lstrip("+-")
    return text.replace("-", MINUS)


def plus_minus(estimate: Estimate, max_places: int = MAX_DECIMALS, *, signed: bool = False) -> str:
    """Format an estimate as 97.2 ± 0.6 with at most `max_places` decimals, or the mean without an interval."""
    places = min(num_decimals(estimate), max_places)
    mean = format_number(estimate.mean, places, signed=signed)
    return mean if estimate.half_width is None else f"{mean} ± {format_number(estimate.half_width, places)}"


def format_value(value: float, min_places: int = 1) -> str:
    """Format a number without an interval, with at least `min_places` decimals: 97.2, 0.262, 3.41."""
    return format_number(value, max(num_decimals(Estimate(value, None, 1)), min_places))


def format_bound(estimate: Estimate) -> str:
    """Format the `bound` of an estimate, rounded up."""
    places = num_decimals(estimate)
    return format_number(math.ceil(round(estimate.bound * 10**places, 6)) / 10**places, places)


def format_interval(estimate: Estimate) -> str:
    """Format the interval in parentheses with the number of values: (95 % interval over 3 seeds: 0.4 to 1.2).

    Without an interval, the text states the reason: a single value or equal values.
    """
    over = count_noun(estimate.num_values, estimate.unit)
    if estimate.half_width is None:
        reason = f"the same in {over}" if estimate.num_values > 1 else f"one {estimate.unit}"
        return f"({reason}: no interval)"
    return f"(95 % interval over {over}: {format_ends(estimate)})"


def format_ends(estimate: Estimate) -> str:
    """Format the ends of an estimate's interval as 0.4 to 1.2.

    A nonzero end is never rounded to 0, so the printed interval contains 0 only if the exact interval contains 0.
    """
    assert estimate.half_width is not None
    ends, places = (estimate.mean - estimate.half_width, estimate.mean + estimate.half_width), num_decimals(estimate)
    while any(end and not round(end, places) for end in ends):
        places += 1
    return " to ".join(format_number(end, places) for end in ends)


def format_p_value(p: float) -> str:
    """Format a p-value with three decimals: p = 0.012, p < 0.001."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def magnitude(estimate: Estimate) -> Estimate:
    """Return the estimate with a positive mean, for a sentence in which the verb states the direction."""
    return estimate._replace(mean=abs(estimate.mean))


def format_range(low: float, high: float | None = None) -> str:
    """Format a large number as 1.8 M, or a range of large numbers as 0.8–1.3 T."""
    largest = low if high is None else high
    scale, prefix = next(((scale, f" {prefix}") for scale, prefix in UNIT_PREFIXES if abs(largest) >= scale), (1.0, ""))
    ends = [low / scale] if high is None else [low / scale, high / scale]
    places = 0 if largest / scale >= 100 or (not prefix and largest >= 10) else 1
    texts = [f"{end:.{places}f}" for end in ends]
    if len(texts) == 2 and texts[0] == texts[1]:
        texts = [f"{end:.{places + 1}f}" for end in ends]
    return "–".join(texts) + prefix


def join_words(words: Sequence[str]) -> str:
    """Join words into a list such as "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def join_nonempty(*parts: str, between: str = ", ") -> str:
    """Join the nonempty parts with the separator `between`."""
    return between.join(filter(None, parts))


def display_name(name: str) -> str:
    """Return the readable name of a metric or an experiment, such as BLEU or macro f1."""
    return {
        "bleu": "BLEU",
        "chrf": "chrF",
        "f1": "F1",
        "mcd": "MCD in dB",
        "mcd_sl": "MCD-SL in dB",
        "r2": "R2 in %",
        "iou": "IoU",
        "dice": "Dice",
        "pixel_iou": "IoU of all pixels",
        "rouge1": "ROUGE-1",
        "rouge2": "ROUGE-2",
        "rougeL": "ROUGE-L",
    }.get(name, name.replace("_", " "))


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun: 1 seed, 2 seeds."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
