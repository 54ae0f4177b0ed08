"""The program runs the cases that the machine supports, and writes a file and tables for each device."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as program
from benchmarks.cases.registry import CASES
from benchmarks.runner import tables
from benchmarks.runner.case import Case, Role
from benchmarks.runner.processes import CaseError
from benchmarks.runner.timing import Timing
from tests.benchmarks.conftest import create_timing
from unifier.files import read_json

ON_CPU = [name for name, case in CASES.items() if case.device == "cpu"]
ON_GPU = ["vit_s16", "translation_base"]

RunProgram = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the measurement of cases; return the names of measured cases, whose results go to an empty folder."""
    variants: list[tuple[str, Role, int]] = [("unifier", "ours", 3), ("unifier, compiled", "ours compiled", 2)]
    variants.extend([("a", "default", 4), ("a, compiled", "compiled", 3), ("b, compiled", "compiled", 5)])
    memory = [{"memory_bytes": 100 * n, "imported_bytes": 0} for *_, n in variants]
    timings = [create_timing(name, role, "bf16", n, **m) for (name, role, n), m in zip(variants, memory, strict=True)]
    timings.append(create_timing("product", "peak", "bf16", 1, memory_bytes=100, imported_bytes=0, units=600))
    marks = "".join(f"<!-- {name} -->\n\nold\n\n<!-- end of {name} -->\n" for name in tables.SECTIONS.values())
    (tmp_path / "README.md").write_text(marks)
    measured: list[str] = []

    def run_case(case: Case, rounds: int, *, compiled: bool) -> list[Timing]:
        measured.append(case.name)
        return timings

    monkeypatch.setattr(program, "run_case", run_case)
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    monkeypatch.setattr(tables, "README", tmp_path / "README.md")
    return measured


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> RunProgram:
    """Return a function that runs the program on a machine with or without an accelerator."""

    def run(*arguments: str, accelerator: str | None = None) -> int:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        monkeypatch.setattr(torch.cuda, "is_available", lambda: accelerator is not None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: accelerator)
        return program.main()

    return run


@pytest.mark.slow
def test_main_without_accelerator_skips_cases(
    names: list[str], run: RunProgram, tmp_path: Path, capsys: Capture
) -> None:
    assert run() == 0
    assert names == ON_CPU
    assert capsys.readouterr().err.startswith("vit_s16, translation_base: ")
    assert not (tmp_path / "results-cuda.json").exists()
    assert "accelerator" not in read_json(tmp_path / "results.json")["machine"]
    with pytest.raises(SystemExit, match="2"):
        run("vit", "vit_s16")
    assert "error: vit_s16: " in capsys.readouterr().err


@pytest.mark.slow
def test_main_failed_case_keeps_others(
    names: list[str], run: RunProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    succeed = program.run_case

    def run_case(case: Case, rounds: int, *, compiled: bool) -> list[Timing]:
        if case.name == "translation":
            raise CaseError("outputs differ")
        return succeed(case, rounds, compiled=compiled)

    monkeypatch.setattr(program, "run_case", run_case)
    assert run() == 1
    assert names == [name for name in ON_CPU if name != "translation"]
    assert capsys.readouterr().err.count("outputs differ; translation") == 1
    assert list(read_json(tmp_path / "results.json")["cases"]) == names


@pytest.mark.slow
def test_main_separates_devices(names: list[str], run: RunProgram, tmp_path: Path) -> None:
    assert run("vit") == 0
    on_cpu = read_json(tmp_path / "results.json")
    assert run("vit_s16", accelerator="H100") == 0
    assert run("translation_base", accelerator="H100") == 0
    assert names == ["vit", *ON_GPU]
    assert read_json(tmp_path / "results.json") == on_cpu
    on_gpu = read_json(tmp_path / "results-cuda.json")
    assert on_gpu["machine"]["accelerator"] == "H100"
    assert list(on_gpu["cases"]) == ON_GPU
    ratios = {"train/vs_default": 1.333, "train/vs_tuned": 1.5, "train/vs_compiled": 1.5, "memory": 0.667, "mfu": 0.5}
    found = {key: ratio for key, ratio in on_gpu["ratios"].items() if key.startswith("vit_s16/")}
    assert found == {f"vit_s16/{key}": ratio for key, ratio in ratios.items()}
    _, cpu_section, gpu_section = (tmp_path / "README.md").read_text().split("<!-- results")
    assert f"### {CASES['vit'].title}" in cpu_section
    assert "H100" not in cpu_section
    assert "On H100 beside " in gpu_section
    assert "| vit_s16 | 1.33 x | 1.50 x | 1.50 x | 0.67 x | 50% |\n" in gpu_section
    assert run("vit_s16", accelerator="another") == 0
    assert list(read_json(tmp_path / "results-cuda.json")["cases"]) == ["vit_s16"], "another machine starts afresh"
    assert read_json(tmp_path / "results.json") == on_cpu
