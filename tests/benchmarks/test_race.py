"""A race: everyone has the same turns and the same machine, and answers are held against ours."""

import io
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.racing import race, worker
from benchmarks.racing.agreement import far_apart
from benchmarks.racing.contest import Contest, Contestant, Workload


def made_up(*contestants: Contestant) -> Contest:
    return Contest("made up", "train", "Making up", "things", contestants, far_apart)


def test_a_contest_stops_where_outputs_differ(tmp_path: Path) -> None:
    ours, equal, other, silent = (
        Contestant(name, "best", "bf16", "torch", lambda *_: Workload(lambda: None, 1))
        for name in ("ours", "equal", "other", "silent")
    )
    for contestant, output in ((ours, 1.0), (equal, 1.0), (other, 1.1)):
        torch.save(torch.tensor([output]), worker.outputs_file(tmp_path, contestant))
    contest = made_up(ours, equal, other, silent)
    assert race.compared(contest, equal, tmp_path)
    assert not race.compared(contest, silent, tmp_path)
    with pytest.raises(race.FailedError, match="made up: other, bf16: outputs differ from ours by"):
        race.compared(contest, other, tmp_path)


def test_everyone_has_a_turn_in_each_round_and_another_begins_it() -> None:
    turns: list[str] = []

    def ask(name: str) -> worker.Answer:
        turns.append(name)
        return {"from": name}

    answers = race.take_turns("made up", [partial(ask, name) for name in "abc"], 4)
    assert "".join(turns) == "abcbcacababc"
    assert answers == [[{"from": name}] * 4 for name in "abc"]


def test_the_memory_that_a_race_begins_with_is_held_by_one_that_does_not_race(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ended: list[int] = []

    class Process:
        def __init__(self, contest: Contest, contestant: Contestant, folder: Path) -> None:
            self.name, self.number = contestant.name, len(asked)

        def __enter__(self) -> "Process":
            return self

        def __exit__(self, *_: object) -> None:
            ended.append(len(asked))

        def ask(self, what: str) -> worker.Answer:
            asked.append(f"{self.number} {what}")
            measured = {"seconds": 1.0 + self.number, "memory_bytes": 1}
            ready = {"units": 1, "flops": None, "imported_bytes": 1, "start_seconds": 0.0}
            return ready if what == "build" else measured

    monkeypatch.setattr(race, "Runner", Process)
    a, b = (Contestant(name, "ours", "bf16", "torch", lambda *_: Workload(lambda: None, 1)) for name in "ab")
    timings = race.race(made_up(a, b), 1)
    assert asked == ["0 build", "1 build", "2 build", "1 round", "2 round"]
    assert [(timing.name, timing.seconds) for timing in timings] == [("a", [2.0]), ("b", [3.0])]
    assert ended == [5, 5, 5]  # the one that holds it lives as long as they


def served(contestant: Contestant, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a worker answers when it is asked to build, and for two rounds."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "stdin", io.StringIO("build\nround\nround\n"))
    worker.serve(contestant, "cpu", folder, said.append)
    return said


def test_a_worker_builds_warms_up_and_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    workload = Workload(lambda: rounds.append(1), 7, torch.ones(2), 3)
    peaks = iter([10, 20, 30])  # the process's own depend on what other tests have freed
    monkeypatch.setattr(worker, "peak_memory", lambda _: next(peaks))
    ready, *measured = served(Contestant("a", "ours", "bf16", "torch", lambda *_: workload), tmp_path, monkeypatch)
    assert len(rounds) == 4
    assert (ready["units"], ready["flops"]) == (7, 3)
    assert len(measured) == 2
    assert all(answer["seconds"] > 0 for answer in measured)
    assert [ready["imported_bytes"], *(answer["memory_bytes"] for answer in measured)] == [10, 20, 30]
    assert torch.load(tmp_path / "a, bf16.pt").equal(torch.ones(2))


def test_a_peer_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contestant = Contestant("a", "best", "bf16", "no_such_library", lambda *_: Workload(lambda: None, 1))
    assert served(contestant, tmp_path, monkeypatch) == [{"missing": "no_such_library"}]
