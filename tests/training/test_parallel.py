"""Training on two processes: the results of one process, one folder, and known faults of other trainers.

The numbers of rows are those of a list of eighteen public faults of distributed training.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.data.conftest import refused
from tests.two_processes import Pair, normalize, nothing, slow, stop, train
from unifier.cli import main
from unifier.distributed import PeerError, World
from unifier.files import read_csv
from unifier.training import parallel

pytestmark = [pytest.mark.extras, pytest.mark.usefixtures("undrawn")]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


RUNS: dict[str, tuple[tuple[str, ...], dict[str, Any], float]] = {
    "solo": (("digits",), {"optimizer": "adamw", "steps": 50}, 1e-5),
    "muon": (("digits",), {"optimizer": "muon", "steps": 50}, 1e-4),
    "text": (("text",), {"optimizer": "adamw", "steps": 50}, 1e-5),
    "experts": (("digits", "text"), {"optimizer": "adamw", "steps": 20, "experts": 4}, 1e-4),
    "joint": (
        ("digits", "text", "rare"),
        {"optimizer": "adamw", "steps": 50, "grad_accumulation": 2, "loss_weighting": "uncertainty"},
        1e-5,
    ),
}


@pytest.mark.parametrize("kind", RUNS)
def test_losses_and_scores_equal_those_of_one_process(kind: str, pair: Pair, tmp_path: Path) -> None:
    tasks, settings, tolerance = RUNS[kind]
    one = train(tmp_path / "one", tasks, **settings)
    first, second = pair(train, tmp_path / "two", tasks, **settings)
    assert first.losses == pytest.approx(one.losses, rel=tolerance)
    assert first.hashes == second.hashes, "rows 3 and 12"
    assert first.result.budget["tokens"] == one.result.budget["tokens"]
    for mine, other, whole in zip(first.indices, second.indices, one.indices, strict=True):
        assert {*mine, *other} == {*whole}, "rows 1 and 16"
        assert len(whole) == 1 or len(mine) + len(other) == len(whole)
    assert first.predicted == one.predicted, "rows 4 and 7"
    assert first.result.metrics == pytest.approx(one.result.metrics, abs=1e-4), "row 5"
    folders = [*(tmp_path / "two").rglob("settings.json")]
    assert len(folders) == 1, "row 10"
    rows = read_csv(folders[0].parent / "metrics.csv")
    assert len(rows) == len({tuple(row.values()) for row in rows}), "row 11"


@pytest.mark.parametrize("kind", ["hard", "masks", "replaced", "norm"])
def test_parts_that_use_the_whole_batch(kind: str, pair: Pair, tmp_path: Path) -> None:
    """Losses of several means, statistics of a batch, and samples for some places."""
    task, wrap = ("digits", normalize) if kind == "norm" else (kind, nothing)
    settings: dict[str, Any] = {"optimizer": "adamw", "steps": 20}
    one = train(tmp_path / "one", [task], wrap, **settings)
    first, second = pair(train, tmp_path / "two", [task], wrap, **settings)
    assert first.losses == pytest.approx(one.losses, rel=1e-4)
    assert first.hashes == second.hashes
    assert first.result.metrics == pytest.approx(one.result.metrics, abs=1e-2)


@pytest.mark.parametrize("stopped_by", [1, 2])
def test_stopped_run_resumes_with_another_number_of_processes(stopped_by: int, pair: Pair, tmp_path: Path) -> None:
    """Rows 8 and 13. A signal to rank 1 alone stops both processes."""
    settings: dict[str, Any] = {"steps": 12, "optimizer": "adamw"}
    whole = train(tmp_path / "whole", ["digits"], **settings)
    if stopped_by == 2:
        folder, other = pair(stop, tmp_path / "run", ["digits"], rank=1, step=5, **settings)
        assert folder == other
        resumed = train(tmp_path / "run", ["digits"], resume=folder, **settings)
    else:
        folder = stop(tmp_path / "run", ["digits"], rank=0, step=5, **settings)
        resumed, _ = pair(train, tmp_path / "run", ["digits"], resume=folder, **settings)
    assert resumed.losses == pytest.approx(whole.losses, rel=1e-5)
    assert resumed.result.budget["tokens"] == whole.result.budget["tokens"]
    assert {*resumed.indices[-1]} <= {*whole.indices[-1]}
    assert len(resumed.indices) < len(whole.indices)


def test_budget_in_seconds_ends_at_one_step(pair: Pair, tmp_path: Path) -> None:
    """Rows 6 and 15."""
    first, second = pair(train, tmp_path, ["digits"], slow, seconds=2)
    assert first.hashes == second.hashes
    assert len(first.indices) == len(second.indices)
    assert first.result.metrics == second.result.metrics
    assert len([*tmp_path.rglob("best.ckpt")]) == 1


def test_batch_of_fewer_examples_than_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "world", lambda: World(size=4))

    def batches(max_tokens: int, lengths: list[int], streams: tuple[str, ...] = ()) -> Any:
        lengths_and_targets = {"texts": np.stack([lengths, np.ones_like(lengths)], 1)}
        return SimpleNamespace(max_tokens=max_tokens, lengths=lengths_and_targets, stream_tasks=streams)

    parallel.check_batch_size(batches(40, [5, 10, 15, 10]))
    for wrong in (batches(39, [10] * 4), batches(400, [10] * 3), batches(40, [5, 10, 15, 10], ("texts",))):
        with refused("batch_tokens=", "texts"):
            parallel.check_batch_size(wrong)


def test_process_that_ends_before_it_is_connected_ends_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(parallel, "GRACE_SECONDS", 0)
    running, failed = SimpleNamespace(poll=lambda: None), SimpleNamespace(poll=lambda: 77)
    with pytest.raises(SystemExit, match="1"):
        parallel.end_after([running, failed])  # pyright: ignore[reportArgumentType]
    assert "process 2" in (line := capsys.readouterr().err)
    assert "77" in line


def test_process_that_is_not_connected_names_its_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert main(["report", str(tmp_path)]) == 2
    sys.stdout.close()  # The null device.
    assert "process 1:" in capsys.readouterr().err


def test_process_whose_parent_has_ended_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "end_with_parent", lambda: None)
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv(parallel.LAUNCHED, "1" if os.getppid() != 1 else "2")
    with pytest.raises(PeerError):
        parallel.start_processes()
