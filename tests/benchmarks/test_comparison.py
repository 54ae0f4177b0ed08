"""The cost of a comparison is measured part by part."""

from types import SimpleNamespace

import pytest

from benchmarks import comparison


def test_add_timer_sums_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.5, 10.0, 12.0, 20.0, 20.5])
    monkeypatch.setattr(comparison, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    seconds: dict[str, float] = {}
    double = comparison.add_timer(lambda value: 2 * value, "double", seconds)
    assert [double(3), double(4)] == [6, 8]
    assert seconds == {"double": 3.5}
    with pytest.raises(ZeroDivisionError):
        comparison.add_timer(lambda: 1 / 0, "broken", seconds)()
    assert seconds == {"double": 3.5, "broken": 0.5}


@pytest.mark.parametrize(("owner", "name"), comparison.PARTS)
def test_timed_parts_exist(owner: object, name: str) -> None:
    assert name in vars(owner)
