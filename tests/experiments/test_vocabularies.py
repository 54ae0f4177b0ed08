"""The comparison of vocabularies: every level trains both tasks with equal FLOPs."""

import gzip
import json
from pathlib import Path

import pytest

from unifier.cli import main
from unifier.config import list_experiments

FILE = Path(__file__).parents[2] / "experiments" / "vocabularies.py"


def test_grid_holds_every_level() -> None:
    comparison = list_experiments(FILE)["vocabularies"]()
    assert set(comparison.grid["level"]) == {"word", "bpe", "wordpiece", "unigram", "byte", "character"}  # pyright: ignore[reportAttributeAccessIssue]
    assert comparison.budget_unit == "flops"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_each_level_trains_with_equal_flops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            path = tmp_path / "multi30k" / f"{name}.{language}.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress("".join(f"{language} man {k} of {name}\n" for k in range(20)).encode()))
    (tmp_path / "sst2").mkdir()
    for name in ("train", "dev", "test"):
        lines = (f"{k % 2} a {('bad', 'good')[k % 2]} film {k}\n" for k in range(20))
        (tmp_path / "sst2" / f"stsa.binary.{name}").write_text("".join(lines))
    settings = ["levels=word,byte", "seeds=0", "vocabulary=300", "dim=16", "depth=1", "ffn_dim=16"]
    settings += ["flops=2e6", "batch_tokens=64", "num_validations=1", "precision=float32"]
    assert main(["run", str(FILE), *settings, "--data", str(tmp_path), "--out", str(tmp_path), "--track", "off"]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    assert [(row["experiment"], row["varied"]["level"]) for row in rows] == [
        ("multi30k", "word"), ("sst2", "word"), ("multi30k", "byte"), ("sst2", "byte")
    ]  # fmt: skip
    assert all(2e6 <= row["result"]["budget"]["flops"] < 1e7 for row in rows)
