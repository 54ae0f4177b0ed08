"""What comparing costs is measured part by part."""

import time

import pytest

from benchmarks.comparison import PARTS, timed


def test_seconds_add_up_under_their_name_and_the_answer_stays() -> None:
    spent: dict[str, float] = {}
    slow = timed(lambda value: time.sleep(0.02) or value, "slow", spent)
    assert [slow(3), slow(4)] == [3, 4]
    assert list(spent) == ["slow"]
    assert 0.04 <= spent["slow"] < 0.5


def test_what_breaks_is_counted_and_still_breaks() -> None:
    spent: dict[str, float] = {}
    with pytest.raises(ZeroDivisionError):
        timed(lambda: 1 / 0, "broken", spent)()
    assert spent["broken"] > 0


def test_what_is_timed_is_what_runs_call() -> None:
    for owner, name in PARTS:
        assert name in vars(owner)
