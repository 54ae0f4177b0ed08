"""Numbers as a person reads them: digits that mean something, and none that do not."""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from unifier.console import print_table
from unifier.report.conditions import group_conditions
from unifier.report.estimates import Estimate, decimals, estimate, format_alone, format_number, format_range, plus_minus
from unifier.report.tables import control_table, score_tables
from unifier.training.result import Result

Rows = Callable[..., dict[str, Any]]


def test_numbers_have_no_more_digits_than_they_mean() -> None:
    assert plus_minus(estimate([90.0, 94.0])) == "92 ± 25"
    assert plus_minus(estimate([90.0, 90.01, 90.02])) == "90.0 ± 0.0"
    assert format_number(-0.01) == "0.0"
    assert format_number(-1.25, 2, signed=True) == "−1.25"
    assert (format_range(1.8e6), format_range(0.8e12, 1.3e12), format_range(27, 140), format_range(8.25)) == (
        "1.8 M",
        "0.8–1.3 T",
        "27–140",
        "8.2",
    )


@pytest.mark.parametrize("value", [0.262, 3.41, -1.04, -0.00123, 97.25])
def test_a_number_alone_is_told_to_three_digits(value: float) -> None:
    assert float(format_alone(value).replace("−", "-")) == pytest.approx(value, rel=5e-3)
    assert math.isclose(float(f"{value:.3g}"), float(format_alone(value).replace("−", "-")))


@pytest.mark.parametrize("mean", [0.0, -0.0022, 0.5, 4.0, 9.9])
@pytest.mark.parametrize("half", [0.00012, 0.0083, 0.12, 0.99])
def test_and_a_small_one_to_two_digits_of_half_its_interval(mean: float, half: float) -> None:
    said, told = plus_minus(Estimate(mean, half, 3)).replace("−", "-").split(" ± ")
    assert math.isclose(float(told), float(f"{half:.2g}"))
    assert float(said) == round(mean, decimals(Estimate(mean, half, 3)))


def test_a_difference_has_no_more_digits_than_its_scores(row: Rows) -> None:
    """Gains of a hundredth, of accuracies that are told to a tenth."""
    joint = {"mode": "joint", "experiment": "joint"}
    rows = [
        row("digits", 90.0 + seed + gain * (1 + seed / 10), seed, **way)
        for gain, way in ((0.0, {}), (0.01, joint))
        for seed in range(3)
    ]
    (_, line) = score_tables(group_conditions(rows))["digits"]
    assert len(re.findall(r"\d\.\d(?!\d)", " ".join(line.values()))) == 2 * 3, line
    gains = (0.4, 0.3, 0.45)
    rows = [
        row("digits", 50.0 + 20 * seed + share * gain, seed, **way)
        for share, way in ((0, {}), (1, joint))
        for seed, gain in enumerate(gains)
    ]
    for one in rows:
        one["result"]["data"]["digits"]["score_range"] = None
    (_, line) = score_tables(group_conditions(rows))["digits"]
    assert (line["accuracy"], line["minus solo"]) == ("70 ± 50", "+0.4 ± 0.2")  # tens apart, and by seed not


@pytest.mark.parametrize(("reference", "said"), [(98.0, ", normalized"), (None, "")])
def test_a_column_of_differences_says_that_they_are_normalized(row: Rows, reference: float | None, said: str) -> None:
    facts = {"mode": "transfer", "trainable": "none"}
    rows = [row("digits", 90.0), row("digits", 50.0, **facts), row("digits", 70.0, start="genres", **facts)]
    for one in rows:
        one["result"]["data"]["digits"]["score_range"]["reference"] = reference
    found = group_conditions(rows)
    assert [name for name in score_tables(found)["digits"][0] if "solo" in name] == [f"minus solo{said}"]
    assert [name for name in control_table(found)[0] if "minus" in name] == [f"minus random{said}"]


def test_what_an_task_is_not_judged_by_keeps_its_digits(row: Rows) -> None:
    one = row("digits", 90.0)
    one["result"]["metrics"] |= {"test/digits/map": 0.262, "test/digits/nats": -1.04}
    ((line,),) = score_tables(group_conditions([one])).values()
    assert line["also"].split(", ")[-2:] == ["0.262 map", "−1.04 nats"]


def test_nor_does_a_run_s_own_table_lose_them(row: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    one = row("digits", 90.0)["result"] | {
        "metrics": {"test/digits/negative_mse": -0.00123, "test/digits/loss": math.nan}
    }
    names = [field.name for field in fields(Result)]
    print_table([Result(**{name: one.get(name) for name in names})])
    assert "negative_mse −0.00123, loss nan" in capsys.readouterr().out
