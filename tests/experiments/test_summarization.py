"""Summaries from a file of one's own to a run, and the commands that read the model."""

import json
from pathlib import Path

import pytest

from tests.experiments.test_recipes import SMALL, build
from unifier.cli import main
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")


def write_pairs(path: Path) -> Path:
    """Write texts whose summary is the sentence that begins with "We show"."""
    animals = ("cats", "dogs", "birds", "old fish")
    rows = [(f"There are {a}.", f"We show that {a} sing.", f"Nobody saw {a} {k}.") for k in range(20) for a in animals]
    path.write_text("".join(f"{' '.join(row[k % 3 :] + row[: k % 3])}\t{row[1]}\n" for k, row in enumerate(rows)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("how", ["choose", "summary"])
def test_summaries_are_chosen_or_written(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(write_pairs(tmp_path / "animals.tsv"))
    settings = [f"data={data}", f"how={how}", "dim=32", "depth=1", "batch_tokens=512", "vocabulary=300"]
    settings += ["num_validations=1", "learning_rate=0.01", "dropout=0.1"]
    settings += ["steps=80"] if how == "choose" else ["steps=20", "beam_width=2"]
    assert main(["run", "summarization", *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    scores = json.loads((run / "result.json").read_text())["metrics"]
    assert list(scores)[-3:] == [f"test/animals/{name}" for name in ("rouge1", "rouge2", "rougeL")]
    intervals = json.loads((run / "intervals.json").read_text()) if (run / "intervals.json").exists() else {}
    assert not intervals or "rouge1" in str(intervals)
    assert "summarization" in (run / "model" / "README.md").read_text()
    if how == "choose":
        assert scores["test/animals/rouge1"] > 95
        text = tmp_path / "text.txt"
        text.write_text("Nobody saw cats. We show that cats sing. There are cats.\n")
        assert main(["predict", str(run), str(text)]) == 0
        assert capsys.readouterr().out.splitlines()[1].endswith(",We show that cats sing.")
    assert main(["evaluate", str(run), data, "--out", str(tmp_path / "scores")]) == 0
    content = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    found = content["scores"]["rouge1"]
    assert found["low"] <= found["score"] <= found["high"]


def test_choosing_has_no_decoder(tmp_path: Path) -> None:
    settings = SMALL | {"data": str(write_pairs(tmp_path / "animals.tsv")), "vocabulary": 300}
    with pytest.raises(InputError, match="how=choose"):
        build("summarization", **settings, beam_width=2)
