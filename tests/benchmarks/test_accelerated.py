"""Races on an accelerator: where they are held, what is timed and written, and what a machine without one does."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as program
from benchmarks.contests import accelerated
from benchmarks.contests.by_name import CONTESTS
from benchmarks.racing import peak, race, tables, worker
from benchmarks.racing.contest import OURS, Contest, Contestant, Role, Workload, autocast
from benchmarks.racing.device import Device, sent
from benchmarks.racing.timing import Timing
from unifier.files import read_json

HERE = [name for name, contest in CONTESTS.items() if contest.device == "cpu"]
THERE = ["vit_s16", "translation_base"]


def test_these_are_raced_on_an_accelerator_and_all_others_on_the_processor() -> None:
    assert [name for name, contest in CONTESTS.items() if contest.device == "cuda"] == THERE
    assert HERE == ["vit", "translation", "greedy", "beam5", "spectrogram"]
    for name in THERE:
        entered = CONTESTS[name].contestants
        assert {one.precision for one in entered} == {"bf16"}
        assert [(one.name, one.compiled) for one in entered if one.role in OURS] == [
            ("unifier", False),
            ("unifier, compiled", True),
        ]
        assert all(one.compiled == (one.role == "compiled") for one in entered if one.role not in OURS)
    compiled = [one.name for one in CONTESTS["vit_s16"].contestants if one.role == "compiled"]
    assert [name.partition(",")[0] for name in compiled] == ["timm", "transformers", "x-transformers", "torch.nn"]


def test_the_models_are_of_the_sizes_that_they_are_called_by() -> None:
    shape, size = accelerated.VIT_S16, accelerated.BASE
    assert (shape.patches + shape.class_token, shape.channels, shape.dim // shape.heads) == (197, 3, 64)
    assert (size.vocabulary, size.dim, size.depth, size.heads, size.hidden) == (32_000, 512, 6, 8, 2048)
    assert size.dropout == 0.1


@pytest.mark.parametrize(("name", "seen"), [("vit", ""), ("vit_s16", "0")])
def test_a_race_on_the_processor_sees_no_accelerator(
    name: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    contest = CONTESTS[name]
    assert race.environment(contest, contest.contestants[0], tmp_path)["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize(("device", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_products_are_in_bfloat16_on_the_contest_s_device(
    device: Device, other: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    with autocast(device, "bf16"):
        assert torch.is_autocast_enabled(device)
        assert not torch.is_autocast_enabled(other)


def test_a_peak_is_of_products_that_fit_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak.SIDE == {"cpu": 2048, "cuda": 8192}
    monkeypatch.setitem(peak.SIDE, "cpu", 8)
    (contestant,) = peak.peaks("cpu", "bf16")
    workload = contestant.build("bf16", tmp_path)
    workload.round()
    assert workload.units == 2 * 8**3 * peak.PRODUCTS["cpu"]
    for name in THERE:
        assert [one.name for one in CONTESTS[name].contestants if one.role == "peak"] == ["matrix product"]


def test_a_round_is_over_when_its_last_operation_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    contestant = Contestant("a", "ours", "bf16", "torch", lambda *_: Workload(lambda: done.append("round"), 1))
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: done.append(name))
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 7)
    workload, ready = worker.build(contestant, "cuda", tmp_path)
    assert ready["imported_bytes"] == 7
    timed = ["synchronize", "round", "synchronize"]
    forgotten = ["reset_peak_memory_stats"] * 2  # what importing took, and what building did
    assert done == [*forgotten, *timed, *timed, "empty_cache"]
    done.clear()
    assert worker.measured(workload, "cuda")["memory_bytes"] == 7
    assert done == ["round", *timed, "empty_cache"]
    done.clear()
    assert worker.measured(workload, "cpu")["memory_bytes"] != 7, "the process's, beside an accelerator too"
    assert done == ["round"]


def test_a_batch_is_sent_whole() -> None:
    from benchmarks.contests.classifying import Labeled

    batch = Labeled(torch.ones(2, 3), torch.ones(2))
    there = sent(batch, "cpu")
    assert isinstance(there, Labeled)
    assert all(one is other for one, other in zip(batch, there, strict=True))


def timing(name: str, role: Role, seconds: float, units: float = 10) -> Timing:
    return Timing(
        name=name,
        role=role,
        precision="bf16",
        seconds=[seconds],
        units=units,
        memory_bytes=int(100 * seconds),
        imported_bytes=0,
        start_seconds=0,
        flops=600 if role in OURS else None,
        compared=True,
    )


RACED = [
    timing("unifier", "ours", 3),
    timing("unifier, compiled", "ours compiled", 2),
    timing("a", "as it comes", 4),
    timing("a, compiled", "compiled", 3),
    timing("b, compiled", "compiled", 5),
    timing("product", "peak", 1, units=600),
]


@pytest.fixture
def raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the contests that the program has had raced, all of which it writes into an empty folder."""
    page = "".join(f"<!-- {mark} -->\n\nold\n\n<!-- end of {mark} -->\n" for mark in tables.MARKS.values())
    (tmp_path / "README.md").write_text(page)
    names: list[str] = []

    def held(contest: Contest, rounds: int, *, compiled: bool) -> list[Timing]:
        names.append(contest.name)
        return RACED

    monkeypatch.setattr(program, "race", held)
    monkeypatch.setattr(program, "HERE", tmp_path)
    monkeypatch.setattr(tables, "README", tmp_path / "README.md")
    return names


def run(monkeypatch: pytest.MonkeyPatch, *asked: str, accelerator: str | None = None) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *asked])
    monkeypatch.setattr("torch.cuda.is_available", lambda: accelerator is not None)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: accelerator)
    return program.main()


def test_a_machine_without_one_leaves_these_out_and_says_so(
    raced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    assert raced == HERE
    said = "vit_s16, translation_base: an accelerator is needed (cuda), and none is here"
    assert f"{said}; not raced\n" in capsys.readouterr().err
    assert not (tmp_path / "results-cuda.json").exists()
    assert "accelerator" not in read_json(tmp_path / "results.json")["machine"]
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "vit", "vit_s16")
    assert "error: vit_s16: an accelerator is needed" in capsys.readouterr().err


def test_a_contest_that_fails_takes_nothing_from_the_others(
    raced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def held(contest: Contest, rounds: int, *, compiled: bool) -> list[Timing]:
        if contest.name == "translation":
            raise race.FailedError("translation: outputs differ from ours")
        return won(contest, rounds, compiled=compiled)

    won = program.race
    monkeypatch.setattr(program, "race", held)
    assert run(monkeypatch) == 1
    assert raced == [name for name in HERE if name != "translation"]
    assert capsys.readouterr().err.count("translation: outputs differ from ours; translation has no new result") == 1
    assert list(read_json(tmp_path / "results.json")["contests"]) == raced


def test_each_device_has_its_own_file_and_tables(
    raced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(name: str) -> Any:
        return read_json(tmp_path / name)

    assert run(monkeypatch, "vit") == 0
    before = kept("results.json")
    assert run(monkeypatch, "vit_s16", accelerator="H100") == 0
    assert run(monkeypatch, "translation_base", accelerator="H100") == 0
    assert raced == ["vit", *THERE]
    assert kept("results.json") == before
    there = kept("results-cuda.json")
    assert there["machine"]["accelerator"] == "H100"
    assert list(there["contests"]) == THERE
    assert {key: share for key, share in there["ratios"].items() if key.startswith("vit_s16/")} == {
        "vit_s16/train/vs_as_it_comes": 1.333,
        "vit_s16/train/vs_best": 1.5,
        "vit_s16/train/vs_compiled": 1.5,
        "vit_s16/memory": 0.667,
        "vit_s16/mfu": 0.5,
    }
    _, processor, accelerator = (tmp_path / "README.md").read_text().split("<!-- results")
    assert "### Training a vision transformer" in processor
    assert "H100" not in processor
    assert "On H100 beside " in accelerator
    columns = ["peers as they come", "peers at their best", "peers compiled", "memory", "share of the peak"]
    assert tables.row(["ours against", *columns]) in accelerator
    assert "| vit_s16 | 1.33 x | 1.50 x | 1.50 x | 0.67 x | 50% |\n" in accelerator
    assert run(monkeypatch, "vit_s16", accelerator="another") == 0
    assert list(kept("results-cuda.json")["contests"]) == ["vit_s16"], "what another one did is not mixed in"
    assert kept("results.json") == before


def test_a_contest_stands_in_on_the_processor_where_it_is_told_to() -> None:
    standing: Device = "cpu"
    small = accelerated.vit_s16(replace(accelerated.VIT_S16, device=standing))
    assert small.device == standing
    assert accelerated.translation_base(plan=accelerated.NEWS._replace(device=standing)).device == standing
