"""Trunks of a comparison, pair by pair: who is compared, with what name, and who is left out and said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unifier.trials.trunk_similarity import ANALYSES, NUM_NEIGHBORS, compare_representations

Arrays = dict[str, np.ndarray[Any, Any]]


def arrays(seed: int = 0, examples: int = 30, layers: tuple[str, ...] = ("columns", "blocks.0")) -> Arrays:
    draw = np.random.default_rng(seed)
    return {f"digits/{layer}": draw.standard_normal((examples, 6)).astype(np.float32) for layer in layers}


def row(folder: Path, left: Arrays | None, **changed: Any) -> dict[str, Any]:
    """A row of comparison.json, whose run left these arrays."""
    folder.mkdir()
    if left is not None:
        np.savez(folder / "representations.npz", **left)  # pyright: ignore[reportArgumentType]
    usual = {
        "experiment": "digits",
        "task": "digits",
        "seed": 0,
        "mode": "solo",
        "start": None,
        "shuffled": False,
        "trainable": "all",
        "varied": {},
    }
    return usual | {"folder": str(folder)} | changed


def test_each_pair_is_measured_at_every_layer_that_both_have(tmp_path: Path) -> None:
    one, other = arrays(0), arrays(1, layers=("columns", "blocks.0", "blocks.1"))
    other["digits/columns"] = one["digits/columns"]
    frozen = row(tmp_path / "c", arrays(2), mode="transfer", trainable="none")
    rows = [row(tmp_path / "a", one), row(tmp_path / "b", other, mode="joint"), frozen]
    found, problems = compare_representations(rows)
    assert problems == []
    solo = {"experiment": "digits", "mode": "solo", "start": None, "shuffled": False, "trainable": "all", "varied": {}}
    assert all(each["a"] == solo for each in found)
    assert [each["b"] for each in found[:2]] == [
        solo | {"mode": "joint"},
        solo | {"mode": "transfer", "trainable": "none"},
    ]
    assert len(found) == 2 * 2
    same, blocks = (each for each in found if each["b"]["mode"] == "joint")
    assert (same["layer"], same["task"], same["seed"]) == ("columns", "digits", 0)
    for name in ("cka", "neighbors"):
        assert same[name] == pytest.approx(1, abs=1e-6)
        assert same[f"{name}_calibrated"] == pytest.approx(1, abs=1e-6)
        assert same[f"{name}_p"] == pytest.approx(1 / 201)
        assert blocks[f"{name}_p"] > 0.01
        wanted = (blocks[name] - blocks[f"{name}_chance"]) / (1 - blocks[f"{name}_chance"])
        assert blocks[f"{name}_calibrated"] == pytest.approx(wanted)
    x, y = (torch.from_numpy(each["digits/blocks.0"]) for each in (one, other))
    for name, relation in ANALYSES.items():
        assert blocks[name] == pytest.approx(float((relation(x) * relation(y)).sum()), abs=1e-6)


def test_other_tasks_seeds_and_settings_are_not_compared(tmp_path: Path) -> None:
    text = {name.replace("digits", "en-fr"): kept for name, kept in arrays().items()}
    both = {**arrays(), **text}
    rows = [
        row(tmp_path / "a", both),
        row(tmp_path / "b", both, task="en-fr"),
        row(tmp_path / "c", both, seed=1),
        row(tmp_path / "d", both, varied={"patch": 4}),
    ]
    assert compare_representations(rows) == ([], [])
    found, _ = compare_representations([*rows, row(tmp_path / "e", both, task="en-fr", mode="joint")])
    assert {(each["task"], each["a"]["mode"], each["b"]["mode"]) for each in found} == {("en-fr", "solo", "joint")}


def test_rows_that_left_nothing_to_compare_are_named_and_the_rest_compared(tmp_path: Path) -> None:
    rows = [
        row(tmp_path / "good", arrays()),
        row(tmp_path / "missing", None),
        row(tmp_path / "broken", None),
        row(tmp_path / "few", arrays(examples=NUM_NEIGHBORS)),
        row(tmp_path / "another", arrays(), task="music"),
        row(tmp_path / "longer", arrays(examples=40), mode="transfer"),
        row(tmp_path / "fine", arrays(3), mode="joint"),
    ]
    (tmp_path / "broken" / "representations.npz").write_text("torn")
    found, problems = compare_representations(rows)
    assert {(each["a"]["mode"], each["b"]["mode"]) for each in found} == {("solo", "joint")}
    expected = {
        "missing": "no such file",
        "broken": "broken",
        "few": "10 examples of digits",
        "another": "0 examples of music",
        "longer": "40 examples of digits beside 30",
    }
    for line, (name, said) in zip(problems, expected.items(), strict=True):
        assert name in line
        assert said in line
        assert "\n" not in line
