"""A campaign finds planted faults of a reader, repeats its cases, and reports them in its line and exit status."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import campaign, watch
from benchmarks.chaos.campaign import Outcome, check_in_turns, run_campaigns
from benchmarks.chaos.mutations import cut_end, mutate_bytes, mutate_json, mutate_table
from benchmarks.chaos.readers import CASES
from benchmarks.chaos.subject import Subject
from unifier_tokenizers import InputError

CONTENT = b'{"a": [1, 2.5, "text"], "b": {"c": null}}'


def refuse(content: bytes) -> None:
    raise InputError("file.json: broken")


def wait(content: bytes) -> None:
    time.sleep(100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "fault"),
    [
        *[(refuse, ""), (len, ""), ({}.__getitem__, "KeyError"), (wait, "no end")],
        *[(lambda _: b"x" * 10**8, "memory"), (lambda _: int("x"), "ValueError")],
    ],
)
def test_planted_fault_is_found(
    read: Callable[[bytes], Any], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MAX_WAITING_SECONDS", 0.3 if read is wait else 60)
    monkeypatch.setattr(watch, "MAX_BYTES", 5 * 10**7)
    path = tmp_path / "file.json"
    subject = Subject("planted", path, [CONTENT], lambda: read(path.read_bytes()), mutate_bytes)
    line = subject.check(7, 3)
    assert fault in line
    assert line.startswith("planted, seed 7, case 3" if fault else "")
    assert bool(line) == bool(fault)
    assert path.read_bytes() == CONTENT


def test_refusal_without_a_name_is_found(tmp_path: Path) -> None:
    def read() -> None:
        raise InputError("something is broken")

    assert "no file" in Subject("planted", tmp_path / "file", [CONTENT], read, mutate_bytes).check(0, 0)


def test_wrong_values_and_missing_ends_are_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    cut = Subject("file", path, [CONTENT], path.read_bytes, lambda rng, content: ("cut_end", cut_end(rng, content)))
    assert cut.check(0, 0) == ""
    assert "end of the file" in cut._replace(detects_cuts=True).check(0, 0)
    other = cut._replace(difference=lambda content, value: "other bytes" if value != content + b"x" else "")
    assert "other bytes" in other.check(0, 0)


@pytest.mark.parametrize(
    ("mutate", "content"), [(mutate_bytes, CONTENT), (mutate_json, CONTENT), (mutate_table, b"a,b\n1,2\n3,4\n")]
)
def test_mutations_differ_and_depend_on_the_seed(mutate: Any, content: bytes, tmp_path: Path) -> None:
    written: list[bytes] = []
    path = tmp_path / "file"
    subject = Subject("file", path, [content], lambda: written.append(path.read_bytes()), mutate)
    for seed in (0, 0, 1):
        assert check_in_turns([subject.check], seed, CASES, time.monotonic() + 100) == (CASES, [])
    first, again, other = (written[k * CASES : (k + 1) * CASES] for k in range(3))
    assert first == again != other
    assert content not in written
    assert len(set(first)) > CASES / 2


def test_program_prints_a_line_and_returns_1_for_a_wrong_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {"formats": Outcome(1200, []), "readers": Outcome(2, ["png: \x1b[2J"])}
    monkeypatch.setattr(campaign, "load_campaign", lambda name: lambda *_: outcomes[name])
    assert run_campaigns(["formats"], 0, 1) == 0
    assert run_campaigns(["formats", "readers", "kills"], 0, 1) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[1] == "formats: 1,200 tried, 0 wrong"
    assert lines[2:5] == ["readers: 2 tried, 1 wrong", "  png: \\x1b[2J", "kills: 0 tried, 1 wrong"]
    assert "KeyError" in lines[5]
