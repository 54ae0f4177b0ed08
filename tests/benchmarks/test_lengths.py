"""The comparison of trunks over the length: the work is equal, and every trunk has its row, ratio and line."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import lengths
from benchmarks.runner import tables
from unifier.files import read_json
from unifier_tokenizers import Tokens

EVERY_TRUNK = pytest.mark.parametrize("name", lengths.TRUNKS)


@EVERY_TRUNK
def test_step_equals_the_pass_over_the_whole_text(name: str) -> None:
    trunk, matrix = lengths.TRUNKS[name](16).eval(), torch.randn(2, 16, 9)
    tokens = Tokens(matrix, torch.ones(2, 9, dtype=torch.bool), torch.arange(9).expand(2, 1, -1))
    step = lengths.create_step(trunk)
    outputs = [step(matrix[:, :, n : n + 1]) for n in range(9)]
    torch.testing.assert_close(torch.cat(outputs, 2), trunk(tokens, "causal").matrix, atol=1e-5, rtol=1e-4)


def test_trunks_have_about_equal_parameters() -> None:
    counts = [sum(map(Tensor.numel, build(lengths.DIM).parameters())) for build in lengths.TRUNKS.values()]
    assert max(counts) < 1.06 * min(counts)


@pytest.mark.slow
@EVERY_TRUNK
def test_training_step_changes_the_trunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "TOKENS_PER_BATCH", 32)
    trunk = lengths.TRUNKS[name](16)
    before = [parameter.detach().clone() for parameter in trunk.parameters()]
    step = lengths.training_step(trunk, 8)
    step()
    step()  # The output projection starts at 0, so the first step does not change the trunk.
    assert any(not torch.equal(old, new) for old, new in zip(before, trunk.parameters(), strict=True))


@pytest.mark.slow
def test_run_writes_numbers_tables_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("<!-- lengths -->\n\nold\n\n<!-- end of lengths -->\n")
    monkeypatch.setattr(tables, "README", tmp_path / "README.md")
    monkeypatch.setattr(lengths, "FOLDER", tmp_path)
    monkeypatch.setattr(lengths, "DIM", 16)
    monkeypatch.setattr(lengths, "TOKENS_PER_BATCH", 64)
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["lengths", "--lengths", "16", "32", "--rounds", "2", "--threads", str(threads)])
    lengths.main()
    results, page = read_json(tmp_path / "lengths.json"), (tmp_path / "README.md").read_text()
    for task in lengths.TASKS:
        times = results["seconds"][task]
        assert [*times] == ["16", "32"]
        assert all([*row] == [*lengths.TRUNKS] and all(len(own) == 2 for own in row.values()) for row in times.values())
    rows = [line for line in page.splitlines() if line.startswith(("| 16 |", "| 32 |"))]
    assert len(rows) == 4
    assert all(row.count(" x)") == len(lengths.TRUNKS) - 1 for row in rows)
    figure = (tmp_path / "lengths.svg").read_text()
    assert all(name in figure for name in lengths.TRUNKS)
