"""The cost of a comparison is measured part by part."""

from types import SimpleNamespace

import pytest

from benchmarks import comparison
from benchmarks.comparison import PARTS, timed


def test_seconds_add_up_and_results_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.5, 10.0, 12.0, 20.0, 20.5])
    monkeypatch.setattr(comparison, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    spent: dict[str, float] = {}
    double = timed(lambda value: 2 * value, "double", spent)
    assert [double(3), double(4)] == [6, 8]
    assert spent == {"double": 3.5}
    with pytest.raises(ZeroDivisionError):
        timed(lambda: 1 / 0, "broken", spent)()
    assert spent == {"double": 3.5, "broken": 0.5}


@pytest.mark.parametrize(("owner", "name"), PARTS)
def test_timed_parts_exist(owner: object, name: str) -> None:
    assert name in vars(owner)
