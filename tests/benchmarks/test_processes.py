"""A case gives each variant the same turns and the same machine, and compares outputs with ours."""

from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.cases.registry import CASES
from benchmarks.runner import processes, worker
from benchmarks.runner.case import Case, Variant
from benchmarks.runner.processes import CaseError, check_outputs, process_environment, run_case, run_rounds
from tests.benchmarks.conftest import create_case, create_variant


def test_check_outputs_stops_at_mismatch(tmp_path: Path) -> None:
    ours, equal, other, without = map(create_variant, ("ours", "equal", "other", "without"))
    for variant, output in ((ours, 1.0), (equal, 1.0), (other, 1.1)):
        torch.save(torch.tensor([output]), worker.outputs_path(tmp_path, variant))
    case = create_case(ours, equal, other, without)
    assert check_outputs(case, equal, tmp_path)
    assert not check_outputs(case, without, tmp_path)
    with pytest.raises(CaseError, match=r"example: other, bf16: .* 1\.0e-01"):
        check_outputs(case, other, tmp_path)


def test_run_rounds_rotates_first_variant() -> None:
    turns: list[str] = []

    def run(name: str) -> worker.Reply:
        turns.append(name)
        return {"from": name}

    replies = run_rounds("example", [partial(run, name) for name in "abc"], 4)
    assert "".join(turns) == "abcbcacababc"
    assert replies == [[{"from": name}] * 4 for name in "abc"]


def test_run_case_holds_first_memory_untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    ends: list[int] = []

    class Process:
        def __init__(self, case: Case, variant: Variant, folder: Path) -> None:
            self.name, self.number = variant.name, len(requests)

        def __enter__(self) -> "Process":
            return self

        def __exit__(self, *_: object) -> None:
            ends.append(len(requests))

        def request(self, command: str) -> worker.Reply:
            requests.append(f"{self.number} {command}")
            if command == "build":
                return {"units": 1, "flops": None, "imported_bytes": 1, "start_seconds": 0.0}
            return {"seconds": 1.0 + self.number, "memory_bytes": 1}

    monkeypatch.setattr(processes, "VariantProcess", Process)
    timings = run_case(create_case(create_variant("a"), create_variant("b")), 1)
    assert requests == ["0 build", "1 build", "2 build", "1 round", "2 round"]
    assert [(timing.name, timing.seconds) for timing in timings] == [("a", [2.0]), ("b", [3.0])]
    assert ends == [5, 5, 5], "the untimed process lives as long as the others"


@pytest.mark.parametrize(("name", "visible"), [("vit", ""), ("vit_s16", "0")])
def test_environment_hides_accelerator_on_cpu(
    name: str, visible: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    case = CASES[name]
    assert process_environment(case, case.variants[0], tmp_path)["CUDA_VISIBLE_DEVICES"] == visible
