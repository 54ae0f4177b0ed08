"""A worker builds a variant, warms it up and measures its rounds on the device of the case."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cases.classification import LabeledBatch
from benchmarks.runner import peak, worker
from benchmarks.runner.case import Variant, Workload, autocast
from benchmarks.runner.device import Device, move_batch
from tests.benchmarks.conftest import create_variant


def serve(variant: Variant, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the worker's replies to a build and two rounds."""
    replies: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "stdin", io.StringIO("build\nround\nround\n"))
    worker.serve(variant, "cpu", folder, replies.append)
    return replies


def test_serve_builds_warms_up_and_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    workload = Workload(lambda: rounds.append(1), 7, torch.ones(2), 3)
    peaks = iter([10, 20, 30])
    monkeypatch.setattr(worker, "peak_memory", lambda _: next(peaks))
    build, *measured = serve(create_variant("a", workload), tmp_path, monkeypatch)
    assert len(rounds) == 4
    assert (build["units"], build["flops"]) == (7, 3)
    assert len(measured) == 2
    assert all(reply["seconds"] > 0 for reply in measured)
    assert [build["imported_bytes"], *(reply["memory_bytes"] for reply in measured)] == [10, 20, 30]
    assert torch.load(tmp_path / "a, bf16.pt").equal(torch.ones(2))
    variant = create_variant("a", library="no_such_library")
    assert serve(variant, tmp_path, monkeypatch) == [{"missing": "no_such_library"}]


def test_measure_round_waits_for_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    variant = create_variant("a", Workload(lambda: calls.append("round"), 1))
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)
    workload, build = worker.build_variant(variant, "cuda", tmp_path)
    assert build["imported_bytes"] == 7
    timed = ["synchronize", "round", "synchronize"]
    assert calls == [*["reset_peak_memory_stats"] * 2, *timed, *timed, "empty_cache"]
    calls.clear()
    assert worker.measure_round(workload, "cuda")["memory_bytes"] == 7
    assert calls == ["round", *timed, "empty_cache"]
    calls.clear()
    assert worker.measure_round(workload, "cpu")["memory_bytes"] != 7, "on the processor, the memory of the process"
    assert calls == ["round"]


@pytest.mark.parametrize(("device", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_autocast_applies_to_device_only(device: Device, other: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    with autocast(device, "bf16"):
        assert torch.is_autocast_enabled(device)
        assert not torch.is_autocast_enabled(other)


def test_peak_counts_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak.SIDE == {"cpu": 2048, "cuda": 8192}
    monkeypatch.setitem(peak.SIDE, "cpu", 8)
    (variant,) = peak.peak_variants("cpu", "bf16")
    workload = variant.build("bf16", tmp_path)
    workload.round()
    assert workload.units == 2 * 8**3 * peak.PRODUCTS["cpu"]


def test_move_batch_keeps_type() -> None:
    batch = LabeledBatch(torch.ones(2, 3), torch.ones(2))
    moved = move_batch(batch, "cpu")
    assert isinstance(moved, LabeledBatch)
    assert all(before is after for before, after in zip(batch, moved, strict=True))
