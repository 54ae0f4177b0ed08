"""The comparison of readers: every reader runs, and the report has the accuracy over the distance."""

import csv
import json
from pathlib import Path

import pytest

from unifier.cli import main
from unifier.config import build_described, check_settings, list_experiments
from unifier.experiment import Experiment
from unifier_tokenizers import InputError

FILE = Path(__file__).parents[2] / "experiments" / "distance.py"


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_each_reader_has_a_curve_and_a_transformer_its_heads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [
        "readers=dilated,transformer",
        "distances=2,6,9",
        "seeds=0",
        "dim=16",
        "depth=2",
        "heads=2",
        "ffn_dim=16",
        "examples=60",
    ]
    settings += ["tokens=500", "batch_tokens=256", "num_validations=1"]
    assert main(["run", str(FILE), *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    with (folder / "figures" / "distances-distant_references.csv").open() as file:
        lines = list(csv.DictReader(file))
    conditions = [f"reader={row['varied']['reader']}" for row in rows]
    assert [(line["condition"], line["distance"]) for line in lines] == [(c, n) for c in conditions for n in "269"]
    for row in rows:
        task, run = row["task"], folder / row["folder"]
        points = json.loads((run / "distances.json").read_text())[task]
        accuracy = sum(point["score"] * point["examples"] for point in points) / sum(p["examples"] for p in points)
        assert accuracy == pytest.approx(row["result"]["metrics"][f"test/{task}/accuracy"])
        is_transformer = row["varied"]["reader"] == "transformer"
        assert (run / "figures" / f"reference-{task}-heads.svg").exists() == is_transformer
        if is_transformer:
            found = json.loads((run / "attention.json").read_text())[task]["reference"]
            weights = [weight for layer in found["weights"] for weight in layer]
            assert len(weights) == 4
            assert found["weights"][found["layer"]][found["head"]] == max(weights)


def test_each_reader_has_its_trunk() -> None:
    recipe, trunks = list_experiments(FILE)["reference"], dict[str, str]()
    for reader in ("lstm", "gru", "convolutional", "dilated", "recurrent_attention", "transformer"):
        settings = check_settings(recipe, {"reader": reader, "distances": "2,9", "examples": 10, "depth": 2, "dim": 16})
        trunks[reader] = str(build_described(recipe, settings, Experiment).trunk)
    assert len(set(trunks.values())) == 6
    assert "dilation=(2,)" in trunks["dilated"]
    assert "Attention" in trunks["recurrent_attention"]


@pytest.mark.parametrize("reader", ["lstm", "transformer"])  # The first reader of the comparison, and the last.
def test_distance_longer_than_the_positions_is_refused(reader: str) -> None:
    recipe = list_experiments(FILE)["reference"]
    settings = {"reader": reader, "distances": "2,300", "examples": 10, "positions": "learned"}
    with pytest.raises(InputError, match="distances=300"):
        build_described(recipe, check_settings(recipe, settings), Experiment)
