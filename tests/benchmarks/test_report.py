"""Results retain other cases of the same machine, and README.md shows the recorded results."""

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.cases.registry import CASES
from benchmarks.runner import tables
from benchmarks.runner.device import Device
from benchmarks.runner.figure import draw_figure
from benchmarks.runner.report import FILES, Results, build_results
from benchmarks.runner.timing import Timing
from tests.benchmarks.conftest import create_case
from unifier.training.result import processor, source_commit

FOLDER = tables.README.parent


@pytest.fixture(scope="module")
def results(timings: list[Timing]) -> Results:
    """Return the results of one case."""
    return build_results([(create_case(), timings)])


def test_results_retain_cases_of_same_machine(timings: list[Timing], results: Results) -> None:
    earlier = build_results([(replace(create_case(), name="earlier"), timings)])
    both = build_results([(create_case(), timings)], earlier)
    assert list(both["cases"]) == ["earlier", "example"]
    assert both["ratios"].items() > earlier["ratios"].items()
    assert both["ratios"]["example/mfu"] == 0.6
    assert both["cases"]["example"]["commit"] == source_commit()
    assert build_results([(create_case(), timings)], {**earlier, "machine": {}}) == results


def test_processor_includes_family_and_model(tmp_path: Path) -> None:
    core = "processor\t: {}\ncpu family\t: {}\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\n"
    names: list[str] = []
    for family in (25, 26):
        file = tmp_path / str(family)
        file.write_text(core.format(0, family) + core.format(1, family))
        names.append(processor(file))
    assert names == ["AMD EPYC (family 25, model 17)", "AMD EPYC (family 26, model 17)"]
    (tmp_path / "bare").write_text("processor\t: 0\nFeatures\t: fp asimd\n\n")
    assert processor(tmp_path / "bare") == platform.machine()
    assert processor(tmp_path / "absent") == (platform.processor() or platform.machine())


def test_section_is_replaced_between_marks(results: Results) -> None:
    begin, end = "<!-- results -->", "<!-- end of results -->"
    text = tables.format_results(results)
    page = tables.insert_section(f"above\n{begin}\nold\n{end}\nbelow\n", "results", text)
    machine = results["machine"]
    assert page.startswith(f"above\n{begin}\n\nOn {machine['processor']}, {machine['cores']} cores; ")
    assert f"torch {torch.__version__}" in page
    assert page.endswith(f"\n\n{end}\nbelow\n")
    assert "| example | 2.50 x | 1.50 x | 2.00 x | 2.00 x | 0.75 x | 0.33 x | 60% |" in page
    assert "| **unifier** | bf16 | 5 | 1 | 10 |" in page
    assert tables.insert_section(page, "results", text) == page


def test_figure_leaves_out_peak(results: Results, tmp_path: Path) -> None:
    draw_figure(results, tmp_path / "results.svg")
    svg = (tmp_path / "results.svg").read_text()
    assert "Training an example: things a second" in svg
    assert "product" not in svg


@pytest.mark.parametrize("device", FILES)
def test_page_shows_recorded_results(device: Device) -> None:
    page, path = tables.README.read_text(), FOLDER / FILES[device]
    assert path.exists() or device != "cpu"
    text = "No machine with an accelerator has run these cases yet."
    if path.exists():
        recorded = json.loads(path.read_text())
        text = tables.format_results(recorded)
        assert set(recorded["cases"]) == {name for name, case in CASES.items() if case.device == device}
    assert tables.insert_section(page, tables.SECTIONS[device], text) == page


def test_page_shows_other_measurements() -> None:
    page = tables.README.read_text()
    assert (FOLDER / "results.svg").stat().st_size < 200_000
    for name in ("products", "attention", "softmax", "scaling", "overheads", "prediction", "serving", "parallel text"):
        section = page.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        assert "| ---" in section, f"{name} has no table"
