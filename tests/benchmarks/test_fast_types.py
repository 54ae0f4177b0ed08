"""Benchmarks are of the types that the processor is fast in: bfloat16 where it has instructions for that."""

import pytest

from benchmarks import attention, products, scaling
from benchmarks.contests import by_name, decoding, translation, vit
from benchmarks.contests.by_name import CONTESTS
from benchmarks.racing import device
from benchmarks.racing.contest import Contest
from unifier.experiment import Precision


@pytest.mark.parametrize(("fast", "precision"), [(True, "bf16"), (False, "float32")])
def test_a_size_of_the_scaling_is_a_contest_of_three(
    fast: bool, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_name, "fast_bfloat16", lambda _: fast)
    made = scaling.contest(128, 4)
    assert [one.name for one in made.contestants] == list(scaling.RACERS)
    assert {one.precision for one in made.contestants} == {precision}


@pytest.mark.parametrize("contest", [vit.contest(), translation.contest(), decoding.contest("greedy", "", 1)])
def test_without_fast_bfloat16_everyone_races_once_in_float32(
    contest: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_name, "fast_bfloat16", lambda _: True)
    assert by_name.as_here(contest) is contest
    monkeypatch.setattr(by_name, "fast_bfloat16", lambda _: False)
    made = by_name.as_here(contest)
    assert {one.precision for one in made.contestants} == {"float32"}
    names = [one.name for one in made.contestants]
    assert len(set(names)) == len(names)
    assert set(names) == {one.name for one in contest.contestants}
    assert [one.role for one in made.contestants].count("ours") == 1
    assert "float32" not in {one.role for one in made.contestants}, "then they come so"
    assert by_name.as_here(CONTESTS["vit_s16"]) is CONTESTS["vit_s16"], "an accelerator has its own types"


@pytest.mark.parametrize(("fast", "types"), [(True, 2), (False, 1)])
def test_tables_of_kernels_are_of_the_types_that_are_fast(
    fast: bool, types: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "fast_bfloat16", lambda _: fast)
    monkeypatch.setattr(attention, "COLUMNS", (8,))
    monkeypatch.setattr(attention, "AT_ONCE", 8)
    monkeypatch.setattr(products, "COLUMNS", (8,))
    monkeypatch.setattr(products, "MAPS", ((4, 6),))
    for table in (attention.table, products.table):
        assert len("\n".join(table()).splitlines()) == 2 + 2 * types
