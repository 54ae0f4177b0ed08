"""Ratios compare medians with the fastest peer of the same precision."""

from dataclasses import replace

import pytest

from benchmarks.runner.timing import Timing, compute_ratios
from tests.benchmarks.conftest import create_timing


def test_ratios_use_medians_and_fastest_peer(timings: list[Timing]) -> None:
    expected = {"train/vs_default": 5 / 2, "train/vs_tuned": 3 / 2, "train/vs_our_allocator": 4 / 2}
    expected |= {"train/vs_float32": (8 / 20) / (2 / 10), "memory": 60 / 80, "memory_float32": 90 / 100}
    expected |= {"work_memory": 10 / 30, "work_memory_float32": 40 / 50}
    expected |= {"mfu": (600 / 2) / (1000 / 2), "mfu_float32": (600 / 4) / (800 / 4)}
    ratios = compute_ratios("vit", "train", timings)
    assert ratios == pytest.approx({f"vit/{name}": ratio for name, ratio in expected.items()})


def test_ratios_default_excludes_compiled_ours(timings: list[Timing]) -> None:
    compiled = create_timing("unifier, compiled", "ours compiled", "bf16", 1, memory_bytes=70)
    ratios = compute_ratios("vit", "train", [compiled, *timings])
    assert ratios["vit/train/vs_default"] == pytest.approx(5 / 2)
    assert ratios["vit/train/vs_tuned"] == pytest.approx(3 / 1)
    assert ratios["vit/train/vs_float32"] == pytest.approx((8 / 20) / (1 / 10))
    assert ratios["vit/memory"] == pytest.approx(70 / 80)


def test_ratios_default_may_be_best(timings: list[Timing]) -> None:
    slow = create_timing("a, tuned", "tuned", "bf16", 30, 30, 30)
    ratios = compute_ratios("vit", "train", [*timings[:4], slow])
    assert ratios["vit/train/vs_tuned"] == ratios["vit/train/vs_default"]
    assert not any("mfu" in key or "vs_float32" in key for key in ratios), "without a peak or a peer in float32"


def test_ratios_without_bf16_use_float32(timings: list[Timing]) -> None:
    ratios = compute_ratios("greedy", "decode", [timings[1], replace(timings[6], role="default")])
    assert ratios["greedy/decode/vs_default"] == pytest.approx(1)
    assert ratios["greedy/memory"] == pytest.approx(90 / 100)
