"""Means and intervals, and numbers with no more digits than their intervals support."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from unifier.report.estimates import (
    Estimate,
    estimate,
    format_bound,
    format_interval,
    format_number,
    format_p_value,
    format_range,
    format_value,
    num_decimals,
    plus_minus,
)


def numbers_in(text: str) -> list[float]:
    return [float(number.replace("−", "-")) for number in re.findall(r"[−\d.]+", text)]


def test_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(3, 2, 5)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    result = estimate(values)
    assert (result.low, result.high) == (pytest.approx(low), pytest.approx(high))
    assert result.sign == int(low > 0) - int(high < 0)
    for choices in (1, 3):
        low, high = stats.ttest_1samp([75, 80, 85], 0).confidence_interval(1 - 0.05 / choices)
        result = estimate([75, 80, 85]).bonferroni(choices)
        assert (result.low, result.high) == (pytest.approx(low), pytest.approx(high))


def test_single_value_has_no_interval() -> None:
    result = estimate([4.0])
    assert (result.mean, result.half_width, result.low, result.sign) == (4.0, None, None, 0)
    assert result.bonferroni(3) == result


@pytest.mark.parametrize("value", [1.2, -55.1, 1e-4, 0.0])
def test_equal_values_have_no_interval(value: float) -> None:
    result = estimate([value, value + value * 1e-13, value])
    assert (result.half_width, result.low, result.sign, result.num_values) == (None, None, 0, 3)
    assert "3 seeds: no interval" in format_interval(result)
    assert "±" not in plus_minus(result)
    assert estimate([value, value + 1e-3]).half_width is not None


@pytest.mark.parametrize("mean", [2.0, -2.0])
def test_interval_that_ends_at_0_contains_it(mean: float) -> None:
    assert Estimate(mean, 2.0, 3).sign == 0
    assert Estimate(mean, 1.99, 3).sign == mean / 2


@pytest.mark.parametrize(("mean", "half"), [(12.4, 12.1), (-12.4, 12.1), (12.1, 12.4), (3.0, 2.996), (40.0, 12.0)])
def test_printed_interval_contains_0_as_it_does(mean: float, half: float) -> None:
    result = Estimate(mean, half, 3)
    low, high = numbers_in(format_interval(result).partition("seeds:")[2])
    assert (low <= 0 <= high) == (result.sign == 0)
    assert numbers_in(format_interval(Estimate(12.0, 12.0, 3)).partition("seeds:")[2]) == [0, 24]


@pytest.mark.parametrize("unit", ["seed", "fold", "test example"])
def test_interval_names_its_unit(unit: str) -> None:
    assert f"over 3 {unit}s: " in format_interval(Estimate(1.0, 0.5, 3, unit))
    assert f"one {unit}" in format_interval(Estimate(1.0, None, 1, unit))


@pytest.mark.parametrize(("mean", "half"), [(0.1, 1.234), (-3.0, 4.01), (0.0, 12.2), (-0.002, 0.00451), (0.5, None)])
def test_printed_bound_covers_the_interval(mean: float, half: float | None) -> None:
    result = Estimate(mean, half, 3)
    (bound,) = numbers_in(format_bound(result))
    assert bound >= result.bound - 1e-9
    assert bound <= result.bound + 10 ** -num_decimals(result)


def test_numbers_have_significant_digits_only() -> None:
    assert [format_p_value(p) for p in (0.0121, 0.001, 0.0004)] == ["p = 0.012", "p = 0.001", "p < 0.001"]
    assert plus_minus(estimate([90.0, 94.0])) == "92 ± 25"
    assert plus_minus(estimate([90.0, 90.01, 90.02])) == "90.0 ± 0.0"
    assert format_number(-0.01) == "0.0"
    assert format_number(-1.25, 2, signed=True) == "−1.25"
    texts = [format_range(*ends) for ends in ((1.8e6,), (0.8e12, 1.3e12), (27, 140), (8.25,))]
    assert texts == ["1.8 M", "0.8–1.3 T", "27–140", "8.2"]


@pytest.mark.parametrize("value", [0.262, 3.41, -1.04, -0.00123, 97.25])
def test_value_alone_has_three_digits(value: float) -> None:
    (number,) = numbers_in(format_value(value))
    assert number == pytest.approx(value, rel=5e-3)
    assert math.isclose(float(f"{value:.3g}"), number)


@pytest.mark.parametrize("mean", [0.0, -0.0022, 0.5, 4.0, 9.9])
@pytest.mark.parametrize("half", [0.00012, 0.0083, 0.12, 0.99])
def test_small_interval_has_two_digits(mean: float, half: float) -> None:
    number, width = numbers_in(plus_minus(Estimate(mean, half, 3)))
    assert math.isclose(width, float(f"{half:.2g}"))
    assert number == round(mean, num_decimals(Estimate(mean, half, 3)))
